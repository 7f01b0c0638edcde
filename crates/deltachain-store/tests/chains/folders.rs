//! Models in folders: pipelines whose parts have tensors of the same names, and folders that a
//! publisher leaves out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use deltachain::ErrorClass;
use deltachain::chain::ObjectName;
use deltachain::files::{Layout, LayoutFile, SafetensorsState, StagedSafetensors};
use deltachain::tensor::{MemoryState, State, StateWriter};
use deltachain_store::{
    Base, Directory, Follower, FollowerOptions, Health, OtherFiles, PublishOptions, PublishReport,
    Publisher, Store, StoreOptions, SwitchReport, check_directory, init,
};
use tempfile::TempDir;

use crate::common::{Chain, Notes, state};
use crate::support::shards::{commit_shards, publish_shard};

fn write(directory: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Names and contents of all files in a directory and its folders.
fn tree(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fn visit(directory: &Path, folder: &str, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
            let name = format!("{folder}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                visit(&entry.path(), &format!("{name}/"), found);
            } else {
                found.insert(name, fs::read(entry.path()).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(directory, "", &mut found);
    found
}

fn names(directory: &Path) -> Vec<String> {
    tree(directory).into_keys().collect()
}

/// Writes a model of these files, and opens it.
fn save(path: &Path, files: &[(&str, &[&str])], state: &MemoryState) -> SafetensorsState {
    write_tensors(path, files, state);
    SafetensorsState::open(path).unwrap()
}

/// Writes the files of a model.
fn write_tensors(path: &Path, files: &[(&str, &[&str])], state: &MemoryState) {
    let files = files.iter().map(|(name, tensors)| LayoutFile {
        name: Some((*name).to_owned()),
        metadata: Some([("format".to_owned(), (*name).to_owned())].into()),
        tensors: tensors.iter().map(|name| (*name).to_owned()).collect(),
    });
    let layout = Layout::joined(files.collect::<Vec<_>>().iter()).unwrap();
    let staged = StagedSafetensors::create(path, state.tensors(), &layout, None, false).unwrap();
    for (number, (_, data)) in state.iter().enumerate() {
        staged.write(number, 0, data).unwrap();
    }
    staged.commit().unwrap();
}

/// A chain, and the models and directories beside it.
struct Place {
    folder: TempDir,
    store: Store,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions::default().attempts(1);
        let store = Store::create(folder.path().join("chain").to_str().unwrap(), options).unwrap();
        init(&store).unwrap();
        Self { folder, store }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a pipeline: two encoders with tensors of the same names, a part in two files, assets
    /// in folders.
    fn pipeline(&self, name: &str, byte: u8) -> SafetensorsState {
        let tensors = [
            ("text/w", &[byte; 60][..]),
            ("text 2/w", &[7; 60]),
            ("unet/a", &[byte, 1]),
            ("unet/b", &[2]),
        ];
        let files: [(&str, &[&str]); 4] = [
            ("text/model.safetensors", &["text/w"]),
            ("text 2/model.safetensors", &["text 2/w"]),
            ("unet/diffusion-00001-of-00002.safetensors", &["unet/a"]),
            ("unet/diffusion-00002-of-00002.safetensors", &["unet/b"]),
        ];
        let path = self.at(name);
        write_tensors(&path, &files, &state(&tensors));
        let step = byte.to_string();
        let others = [
            ("model_index.json", "{}"),
            ("tokenizer/vocab.txt", "words"),
            ("scheduler/deep/config.json", &step),
        ];
        write(&path, &others);
        SafetensorsState::open(path).unwrap()
    }

    fn publish(&self, model: &SafetensorsState) -> PublishReport {
        self.publish_told(model, &Notes::default()).unwrap()
    }

    fn publish_told(
        &self,
        model: &SafetensorsState,
        notes: &Notes,
    ) -> deltachain::Result<PublishReport> {
        Publisher::open(self.store.clone(), PublishOptions::default())?.publish(
            model,
            Base::Chain,
            notes,
        )
    }

    fn open(&self) -> Follower<Directory> {
        Follower::in_directory(
            self.store.clone(),
            &self.at("follower"),
            FollowerOptions::default(),
        )
        .unwrap()
    }

    /// Directories of the versions that the follower keeps.
    fn versions(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.at("follower/versions"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        entries.collect()
    }
}

fn pull(subscriber: &mut Follower<Directory>, version: Option<u64>) -> SwitchReport {
    let prepared = subscriber
        .prepare(version, &())
        .unwrap()
        .expect("a version to load");
    subscriber.apply(prepared).unwrap()
}

#[test]
fn a_pipeline_comes_back_byte_for_byte() {
    let place = Place::new();
    let models: Vec<_> = (0..4_u8)
        .map(|step| place.pipeline(&format!("step {step}"), step))
        .collect();
    for model in &models {
        let published = place.publish(model);
        let assets: Vec<_> = published
            .assets
            .iter()
            .map(|asset| asset.name.as_str())
            .collect();
        assert_eq!(
            assets,
            [
                "model_index.json",
                "scheduler/deep/config.json",
                "tokenizer/vocab.txt"
            ]
        );
    }
    let mut subscriber = place.open();
    let mut vocabulary = Vec::new();
    for (version, model) in (0..).zip(&models) {
        let switched = pull(&mut subscriber, Some(version));
        assert_eq!(switched.routes, [(version.checked_sub(1), version)]);
        assert_eq!(tree(&switched.directory), tree(model.path()));
        assert!(tree(model.path()).contains_key("unet/diffusion.safetensors.index.json"));
        // Only the previous version stays, and no trace of older ones.
        assert_eq!(place.versions().len(), if version == 0 { 1 } else { 2 });
        vocabulary.push(switched.directory.join("tokenizer/vocab.txt"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let inode = |path: &PathBuf| fs::metadata(path).unwrap().ino();
        assert_eq!(
            inode(&vocabulary[2]),
            inode(&vocabulary[3]),
            "a hard link to the same file"
        );
    }
    // A new process trusts the files that are there.
    drop(subscriber);
    let mut subscriber = place.open();
    assert!(subscriber.prepare(None, &()).unwrap().is_none());
    drop(subscriber);
    assert_eq!(
        check_directory(&place.at("follower"), &()).unwrap().tensors,
        8
    );

    // Assets are dropped and added again without downloading the tensors.
    let options = FollowerOptions::default().other_files(OtherFiles::None);
    let mut bare =
        Follower::in_directory(place.store.clone(), &place.at("follower"), options).unwrap();
    let switched = pull(&mut bare, None);
    assert_eq!(
        (switched.routes, names(&switched.directory)),
        (vec![], models[3].model_files())
    );
    drop(bare);
    let switched = pull(&mut place.open(), None);
    assert_eq!(
        (switched.routes, tree(&switched.directory)),
        (vec![], tree(models[3].path()))
    );
}

#[test]
fn what_happens_to_files_in_folders_is_noticed() {
    let place = Place::new();
    (0..3_u8).for_each(|step| drop(place.publish(&place.pipeline(&format!("step {step}"), step))));
    let mut subscriber = place.open();
    let first = pull(&mut subscriber, Some(0)).directory;
    drop(subscriber);
    let vae = first.join("scheduler/deep/config.json");
    fs::remove_file(&vae).unwrap();
    let file = first.join("text 2/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let health = Health::of(&place.at("follower"), None).unwrap();
    assert_eq!(
        health.problems,
        ["files are missing or have another length: scheduler/deep/config.json"]
    );
    let report = check_directory(&place.at("follower"), &()).unwrap();
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems[0].contains("is missing") && problems[1].contains("\"text 2/w\""),
        "{problems:?}"
    );

    // The damaged version is rebuilt. Foreign entries in folders of the old one stay, with their
    // folders only.
    write(
        &first,
        &[
            ("tokenizer/mine.txt", "precious"),
            ("text/mine/f", "precious"),
        ],
    );
    #[cfg(unix)]
    {
        fs::rename(first.join("unet"), place.at("elsewhere")).unwrap();
        std::os::unix::fs::symlink(place.at("elsewhere"), first.join("unet")).unwrap();
    }
    let mut subscriber = place.open();
    assert_eq!(
        pull(&mut subscriber, Some(1)).routes,
        [(None, 0), (Some(0), 1)]
    );
    pull(&mut subscriber, Some(2));
    let mut kept = vec!["text/mine/f".to_owned(), "tokenizer/mine.txt".to_owned()];
    if cfg!(unix) {
        kept.push("unet".to_owned());
        assert_eq!(names(&place.at("elsewhere")).len(), 3);
        fs::remove_file(first.join("unet")).unwrap();
        kept.pop();
    } else {
        kept.retain(|name| !name.starts_with("unet"));
    }
    assert_eq!(names(&first), kept);
    assert!(!first.join("scheduler").exists());
}

#[test]
fn checkpoints_and_chains_beside_the_model_are_not_published() {
    let place = Place::new();
    let model = place.at("output");
    save(
        &model,
        &[("model.safetensors", &["w"])],
        &state(&[("w", &[1])]),
    );
    for step in 1..=40 {
        let step = model.join(format!("checkpoint-{step}00"));
        save(
            &step,
            &[("model.safetensors", &["w"])],
            &state(&[("w", &[2])]),
        );
        write(&step, &[("optimizer.pt", "large")]);
    }
    write(
        &model,
        &[
            ("runs/now/events", "x"),
            (".git/config", "x"),
            ("store/chain.json", "{}"),
            ("store/files/f.dcf", "x"),
        ],
    );
    drop(
        Follower::in_directory(
            place.store.clone(),
            &model.join("follower"),
            FollowerOptions::default(),
        )
        .unwrap(),
    );
    let notes = Notes::default();
    let published = place
        .publish_told(&SafetensorsState::open(&model).unwrap(), &notes)
        .unwrap();
    assert_eq!(
        published
            .assets
            .iter()
            .map(|asset| asset.name.as_str())
            .collect::<Vec<_>>(),
        ["runs/now/events"]
    );
    assert_eq!(published.elements, 1);
    let remarks = notes.remarks();
    let [told] = &remarks
        .iter()
        .filter(|remark| remark.contains("not published"))
        .collect::<Vec<_>>()[..]
    else {
        panic!("{remarks:?}")
    };
    for left in [
        "checkpoint-100 (a trainer's checkpoint)",
        ".git (hidden)",
        "store (a chain)",
        "follower (the directory of a follower)",
    ] {
        assert!(told.contains(left), "{left}: {told}");
    }
    // A directory of nothing but checkpoints is not a model.
    fs::remove_file(model.join("model.safetensors")).unwrap();
    let error = SafetensorsState::open(&model).unwrap_err();
    assert!(
        error.class() == ErrorClass::Usage && error.message().contains("checkpoint-100"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn no_file_of_tensors_lies_in_an_asset() {
    let place = Place::new();
    let model = place.pipeline("model", 1);
    // Two files with these names can exist here, but not on every file system.
    write(model.path(), &[("UNet", "x")]);
    let error = place.publish_told(&model, &Notes::default()).unwrap_err();
    assert_eq!(
        (error.rule(), error.class()),
        (None, ErrorClass::Usage),
        "{error}"
    );
    assert!(
        error
            .message()
            .contains("\"UNet\" and \"unet\" differ in case only"),
        "{error}"
    );

    // One shard has the asset, the other a file in the folder of that name.
    let shards = [
        save(
            &place.at("shard 0"),
            &[("model.safetensors", &["w"])],
            &state(&[("w", &[1])]),
        ),
        save(
            &place.at("shard 1"),
            &[("unet/model.safetensors", &["unet/w"])],
            &state(&[("unet/w", &[1])]),
        ),
    ];
    write(shards[0].path(), &[("unet", "x")]);
    let part = |number: usize| {
        let options = PublishOptions::default();
        let part = publish_shard(
            &place.store,
            &shards[number],
            Base::Nothing,
            number,
            2,
            &options,
            &(),
        )
        .unwrap();
        serde_json::from_str(&serde_json::to_string(&part).unwrap()).unwrap()
    };
    let parts = [part(0), part(1)];
    let error = commit_shards(&place.store, &parts, &PublishOptions::default(), &()).unwrap_err();
    assert_eq!(error.rule(), Some("R-PUB-10"), "{error}");
}

#[test]
fn an_asset_that_is_a_folder_of_the_model_is_refused() {
    let place = Place::new();
    place.publish(&place.pipeline("step 0", 0));
    place.publish(&place.pipeline("step 1", 1));
    let mut subscriber = place.open();
    pull(&mut subscriber, Some(0));
    let path = place.at("chain").join(ObjectName::Commit(1).to_string());
    let commit = fs::read_to_string(&path).unwrap();
    fs::write(&path, commit.replace("tokenizer/vocab.txt", "unet")).unwrap();
    let error = subscriber.prepare(None, &()).unwrap_err();
    assert_eq!(
        (error.class(), error.rule()),
        (ErrorClass::Usage, None),
        "{error}"
    );
    assert!(error.file().unwrap().ends_with("unet"), "{error}");
    assert_eq!(
        tree(&place.at("follower/current")),
        tree(&place.at("step 0"))
    );
    // A follower without assets is not affected.
    drop(subscriber);
    let options = FollowerOptions::default().other_files(OtherFiles::None);
    pull(
        &mut Follower::in_directory(place.store.clone(), &place.at("follower"), options).unwrap(),
        None,
    );
}

#[test]
fn folders_that_publishers_leave_out_are_followed_all_the_same() {
    const LAYOUT: &str = r#"{"files":[{"name":"checkpoint-1/a.safetensors","metadata":null,"tensors":["checkpoint-1/a"]},{"name":"x/b.safetensors","metadata":null,"tensors":["x/b"]}]}"#;
    let mut chain = Chain::new();
    chain.layout = Some(LAYOUT);
    let noise: Vec<u8> = (0..500_u32)
        .map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[2])
        .collect();
    let version = |byte: u8| state(&[("checkpoint-1/a", &noise), ("x/b", &[byte])]);
    chain.add(version(1), &[None]);
    chain.layout = None;
    chain.add(version(2), &[Some(0)]);
    let mut more = version(3);
    more.insert("x/c", deltachain::tensor::Dtype::U8, &[1], vec![9])
        .unwrap();
    chain.add(more, &[Some(1)]);
    let mut homeless = version(3);
    homeless
        .insert("y", deltachain::tensor::Dtype::U8, &[1], vec![9])
        .unwrap();
    chain.add(homeless, &[Some(2)]);

    let folder = tempfile::tempdir().unwrap();
    let others = tempfile::tempdir().unwrap();
    write(others.path(), &[("x/chain.json", "{}"), ("x/y/z", "")]);
    let open = || {
        let options =
            FollowerOptions::default().other_files(OtherFiles::Directory(others.path().to_owned()));
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap()
    };
    pull(&mut open(), Some(0));
    let switched = pull(&mut open(), Some(1));
    assert_eq!(switched.routes, [(Some(0), 1)]);
    let mut subscriber = open();
    let switched = pull(&mut subscriber, Some(2));
    assert_eq!(switched.routes, [(Some(1), 2)]);
    assert_eq!(
        names(&switched.directory),
        ["checkpoint-1/a.safetensors", "x/b.safetensors"]
    );
    assert_eq!(
        check_directory(folder.path(), &()).unwrap().problems.len(),
        0
    );
    // The layout has no file for a tensor in none of its folders.
    let error = subscriber.prepare(Some(3), &()).unwrap_err();
    assert_eq!(
        (error.rule(), error.class()),
        (Some("R-LAY-01"), ErrorClass::Malformed),
        "{error}"
    );

    fs::remove_file(others.path().join("x/chain.json")).unwrap();
    let switched = pull(&mut subscriber, Some(2));
    assert_eq!(
        names(&switched.directory),
        ["checkpoint-1/a.safetensors", "x/b.safetensors", "x/y/z"]
    );
}
