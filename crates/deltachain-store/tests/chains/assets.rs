//! Assets: files of a model directory beside the tensors, from the publisher to the follower, and
//! the errors when they are wrong.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};

use deltachain::chain::{Asset, ObjectName};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, Dtype, MemoryState, State};
use deltachain::{Error, ErrorClass, Result};
use deltachain_store::{
    Base, Directory, Follower, FollowerOptions, FsckOptions, Keep, Observer, OtherFiles, Phase,
    PublishOptions, PublishReport, Publisher, RawObjects, Store, StoreOptions, SwitchReport, fsck,
    init, log, plan_prune, prune, show,
};
use tempfile::TempDir;

use crate::common::Notes;
use crate::support::models::{Models, save};
use crate::support::shards::{commit_shards, publish_shard};

/// A chain in a directory, beside the models that are published.
struct Place {
    folder: TempDir,
    store: Store,
    models: Models,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions::default().attempts(1).part_bytes(1000);
        let store = Store::create(folder.path().join("chain").to_str().unwrap(), options).unwrap();
        init(&store).unwrap();
        Self {
            folder,
            store,
            models: Models::new(1, 40),
        }
    }

    /// Writes the directory of a version's model, with these assets.
    fn model(&mut self, version: u64, others: &[(&str, &[u8])]) -> SafetensorsState {
        let path = self
            .models
            .save(version, self.folder.path())
            .path()
            .to_owned();
        for (name, bytes) in others {
            fs::write(path.join(name), bytes).unwrap();
        }
        SafetensorsState::open(path).unwrap()
    }

    fn publish(&self, model: &SafetensorsState) -> PublishReport {
        self.publish_as(model, &PublishOptions::default(), &())
            .unwrap()
    }

    fn publish_as(
        &self,
        model: &SafetensorsState,
        options: &PublishOptions,
        observer: &dyn Observer,
    ) -> Result<PublishReport> {
        Publisher::open(self.store.clone(), options.clone())?.publish(model, Base::Chain, observer)
    }

    fn open(&self, other_files: OtherFiles) -> Follower<Directory> {
        let options = FollowerOptions::default().other_files(other_files);
        Follower::in_directory(
            self.store.clone(),
            &self.folder.path().join("follower"),
            options,
        )
        .unwrap()
    }

    fn current(&self) -> PathBuf {
        self.folder.path().join("follower/current")
    }

    fn object(&self, name: ObjectName) -> PathBuf {
        self.folder.path().join("chain").join(name.to_string())
    }

    /// Number of stored assets.
    fn stored(&self) -> usize {
        self.store
            .objects()
            .unwrap()
            .iter()
            .filter(|object| matches!(object.name, ObjectName::Asset(_)))
            .count()
    }
}

fn pull(subscriber: &mut Follower<Directory>, version: Option<u64>) -> SwitchReport {
    let prepared = subscriber
        .prepare(version, &())
        .unwrap()
        .expect("a version to load");
    subscriber.apply(prepared).unwrap()
}

/// Names and contents of the files in a directory, without folders.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file());
    entries
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                fs::read(path).unwrap(),
            )
        })
        .collect()
}

fn names(assets: &[Asset]) -> Vec<&str> {
    assets.iter().map(|asset| asset.name.as_str()).collect()
}

const CONFIG: (&str, &[u8]) = ("config.json", b"{\"architectures\":[\"Tiny\"]}\n");
const TOKENIZER: (&str, &[u8]) = ("tokenizer.json", &[7; 2500]);

#[test]
fn a_model_directory_comes_back_byte_for_byte() {
    let mut place = Place::new();
    // From version 6 on, the tensors are in three files, two of them with an index.
    for version in [0, 6] {
        let others = [
            CONFIG,
            TOKENIZER,
            ("empty", b""),
            ("模型 é.txt", b"x"),
            ("modeling_tiny.py", b"pass\n"),
        ];
        let model = place.model(version, &others);
        let published = place.publish(&model);
        assert_eq!(
            names(&published.assets),
            [
                "config.json",
                "empty",
                "modeling_tiny.py",
                "tokenizer.json",
                "模型 é.txt"
            ]
        );
        assert_eq!(
            show(&place.store, None, None).unwrap().assets,
            published.assets
        );
        let switched = pull(&mut place.open(OtherFiles::Assets), None);
        assert!(
            files(model.path()) == files(&switched.directory),
            "{:?}",
            files(&switched.directory).keys()
        );
        assert!(files(model.path()).len() >= 6);
    }
    let fetched = |index: usize| log(&place.store, None, None).unwrap()[index].assets.clone();
    assert_eq!(fetched(0), fetched(1));
    assert_eq!(place.stored(), 5, "stored once for all versions");
}

#[test]
fn what_cannot_be_an_asset_is_named() {
    let mut place = Place::new();
    let others = [
        CONFIG,
        (".gitattributes", b"x".as_slice()),
        ("deltachain.layout.json", b"{}"),
        ("stray.SAFETENSORS", b"x"),
    ];
    let model = place.model(0, &others);
    fs::create_dir(model.path().join("checkpoint-500")).unwrap();
    save(
        &MemoryState::new(),
        &model.path().join("checkpoint-500/deep"),
        false,
    );
    File::create(model.path().join("video.mp4"))
        .unwrap()
        .set_len(Asset::MOST_BYTES + 1)
        .unwrap();
    #[cfg(unix)]
    {
        fs::write(place.folder.path().join("elsewhere"), "behind a link").unwrap();
        std::os::unix::fs::symlink("../elsewhere", model.path().join("linked")).unwrap();
        std::os::unix::fs::symlink("nowhere", model.path().join("broken")).unwrap();
    }
    let remarks = Notes::default();
    let model = SafetensorsState::open(model.path()).unwrap();
    let published = place
        .publish_as(&model, &PublishOptions::default(), &remarks)
        .unwrap();
    let [remark] = &remarks.remarks()[..] else {
        panic!("one remark")
    };
    for (name, why) in [
        (".gitattributes", "hidden"),
        ("deltachain.layout.json", "reserved"),
        ("stray.SAFETENSORS", "tensors"),
        ("checkpoint-500", "a trainer's checkpoint"),
        ("video.mp4", "too large"),
        #[cfg(unix)]
        ("broken", "cannot be read"),
    ] {
        let told = remark
            .split_once(&format!("{name} ("))
            .unwrap_or_else(|| panic!("{name}: {remark}"))
            .1;
        assert!(
            told.split_once(')').unwrap().0.contains(why),
            "{name}: {remark}"
        );
    }
    let taken = if cfg!(unix) {
        &["config.json", "linked"][..]
    } else {
        &["config.json"]
    };
    assert_eq!(names(&published.assets), taken);
    let directory = pull(&mut place.open(OtherFiles::Assets), None).directory;
    #[cfg(unix)]
    assert_eq!(files(&directory)["linked"], b"behind a link");
}

/// Changes a file as soon as an operation reports progress in this phase.
#[cfg(unix)]
struct Meddler(Phase, PathBuf, AtomicBool);

#[cfg(unix)]
impl Observer for Meddler {
    fn begin(&self, _phase: Phase, _bytes: u64) {}

    fn advance(&self, phase: Phase, _bytes: u64) -> Result<()> {
        if phase == self.0 && self.2.swap(false, Ordering::Relaxed) {
            let file = File::options().write(true).open(&self.1).unwrap();
            let before = file.metadata().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"!", before.len() - 1).unwrap();
            // Like rsync, it restores the time of modification.
            file.set_modified(before.modified().unwrap()).unwrap();
        }
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, _text: &str) {}
}

#[cfg(unix)]
#[test]
fn of_files_that_change_while_they_are_read_nothing_is_published() {
    let mut place = Place::new();
    let first = place.model(0, &[CONFIG]);
    place.publish(&first);
    let long = vec![b'x'; 200_000];
    for (version, phase, changed) in [
        (1, Phase::Hash, "a first.txt"),
        (1, Phase::Compare, "model.safetensors"),
        (0, Phase::Compare, "model.safetensors"),
    ] {
        let model = place.model(1, &[CONFIG, ("a first.txt", &long)]);
        let base = place.model(0, &[CONFIG]);
        let path = if version == 1 {
            model.path()
        } else {
            base.path()
        }
        .join(changed);
        let meddler = Meddler(phase, path.clone(), AtomicBool::new(true));
        let mut publisher =
            Publisher::open(place.store.clone(), PublishOptions::default()).unwrap();
        let error = publisher
            .publish(&model, Base::State((&base).into()), &meddler)
            .unwrap_err();
        assert!(
            error.message().contains("changed while it was being read"),
            "{changed}: {error:?}"
        );
        assert_eq!(
            (error.class(), error.file()),
            (ErrorClass::Io, path.to_str())
        );
        assert_eq!(log(&place.store, None, None).unwrap().len(), 1, "{changed}");
    }
    // A file may change after it has been read.
    let model = place.model(1, &[CONFIG]);
    let meddler = Meddler(
        Phase::Compare,
        model.path().join("config.json"),
        AtomicBool::new(true),
    );
    let published = place
        .publish_as(&model, &PublishOptions::default(), &meddler)
        .unwrap();
    assert!(
        published
            .assets
            .iter()
            .any(|asset| asset.file.digest == Digest::of_bytes(CONFIG.1))
    );
}

#[test]
fn no_more_are_published_than_a_commit_can_name() {
    let mut place = Place::new();
    let model = place.model(0, &[]);
    for number in 0..=Asset::MOST {
        fs::write(model.path().join(number.to_string()), []).unwrap();
    }
    let error = place
        .publish_as(&model, &PublishOptions::default(), &())
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage);
    assert!(error.message().contains("1025"), "{error}");
    assert!(log(&place.store, None, None).unwrap().is_empty());
    fs::remove_file(model.path().join("0")).unwrap();
    assert_eq!(place.publish(&model).assets.len(), Asset::MOST);
    assert_eq!(place.stored(), 1, "all assets have the same empty content");
    assert_eq!(
        files(&pull(&mut place.open(OtherFiles::Assets), None).directory).len(),
        Asset::MOST + 1
    );
}

#[test]
fn files_that_may_be_two_models_are_named() {
    let mut place = Place::new();
    let model = place.model(0, &[CONFIG]);
    let told = || {
        let remarks = Notes::default();
        let model = SafetensorsState::open(model.path()).unwrap();
        place
            .publish_as(&model, &PublishOptions::default(), &remarks)
            .unwrap();
        remarks.remarks()
    };
    assert_eq!(told(), Vec::<String>::new());
    let mut other = MemoryState::new();
    other
        .insert("tok_embeddings.weight", Dtype::BF16, &[2], vec![0; 4])
        .unwrap();
    let folder = place.folder.path().join("other");
    save(&other, &folder, false);
    fs::rename(
        folder.join("model.safetensors"),
        model.path().join("consolidated.safetensors"),
    )
    .unwrap();
    let told = told();
    assert!(
        told[0].ends_with("consolidated.safetensors, model.safetensors"),
        "{told:?}"
    );
}

#[test]
fn nobody_has_to_publish_or_to_take_them() {
    let mut place = Place::new();
    let model = place.model(0, &[CONFIG]);
    let options = PublishOptions::default().assets(false);
    let remarks = Notes::default();
    assert_eq!(
        place.publish_as(&model, &options, &remarks).unwrap().assets,
        []
    );
    assert!(remarks.remarks()[0].contains("config.json"));
    assert_eq!(place.stored(), 0);
    let model = place.model(1, &[CONFIG]);
    place.publish(&model);

    let others = tempfile::tempdir().unwrap();
    fs::write(others.path().join("generation_config.json"), "{}").unwrap();
    let mut subscriber = place.open(OtherFiles::None);
    assert_eq!(pull(&mut subscriber, Some(0)).routes, [(None, 0)]);
    pull(&mut subscriber, Some(1));
    assert_eq!(
        files(&place.current()).into_keys().collect::<Vec<_>>(),
        ["model.safetensors"]
    );
    drop(subscriber);
    let weights = files(&place.current());
    // Another choice of assets does not download the tensors again.
    for (wanted, expected, downloaded) in [
        (
            OtherFiles::Assets,
            &["config.json", "model.safetensors"][..],
            CONFIG.1.len() as u64,
        ),
        (
            OtherFiles::Directory(others.path().to_owned()),
            &["generation_config.json", "model.safetensors"],
            0,
        ),
        (
            OtherFiles::Assets,
            &["config.json", "model.safetensors"],
            CONFIG.1.len() as u64,
        ),
        (OtherFiles::None, &["model.safetensors"], 0),
    ] {
        let mut subscriber = place.open(wanted.clone());
        let switched = pull(&mut subscriber, None);
        assert_eq!(
            (switched.from, switched.version, switched.downloaded),
            (Some(1), 1, downloaded),
            "{wanted:?}"
        );
        assert_eq!(switched.routes, []);
        let now = files(&place.current());
        assert_eq!(now.keys().collect::<Vec<_>>(), expected, "{wanted:?}");
        assert_eq!(now["model.safetensors"], weights["model.safetensors"]);
        assert!(subscriber.prepare(None, &()).unwrap().is_none());
        drop(subscriber);
        assert!(place.open(wanted).prepare(None, &()).unwrap().is_none());
    }
}

#[test]
fn what_the_version_before_has_is_not_fetched() {
    let mut place = Place::new();
    for (version, others) in [
        (0, &[CONFIG, TOKENIZER, ("old", b"x")][..]),
        (1, &[("config.json", b"{}"), TOKENIZER]),
        // The new content has the same length.
        (2, &[("config.json", b"[]"), TOKENIZER]),
    ] {
        let model = place.model(version, others);
        place.publish(&model);
    }
    let mut subscriber = place.open(OtherFiles::Assets);
    let first = pull(&mut subscriber, Some(0)).directory;
    let links = |version: u64| {
        show(&place.store, Some(version), None)
            .unwrap()
            .routes
            .last()
            .unwrap()
            .files[0]
            .size
    };
    let second = pull(&mut subscriber, Some(1));
    assert_eq!(second.downloaded, links(1) + 2);
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let inode = |directory: &Path| {
            fs::metadata(directory.join("tokenizer.json"))
                .unwrap()
                .ino()
        };
        assert_eq!(
            inode(&first),
            inode(&second.directory),
            "a hard link to the same file"
        );
    }
    assert!(first.join("old").exists() && !second.directory.join("old").exists());
    // The follower notices files that were changed in its directory.
    fs::remove_file(second.directory.join("tokenizer.json")).unwrap();
    fs::write(second.directory.join("tokenizer.json"), [8; 2500]).unwrap();
    let third = pull(&mut subscriber, Some(2));
    assert_eq!(third.downloaded, links(2) + 2 + 2500);
    assert_eq!(
        (
            &*files(&third.directory)["tokenizer.json"],
            &*files(&third.directory)["config.json"]
        ),
        (TOKENIZER.1, &b"[]"[..])
    );
}

#[test]
fn missing_and_damaged_ones_are_told_and_the_version_held_stays() {
    let mut place = Place::new();
    for (version, config) in [(0, b"{}"), (1, b"[]")] {
        let model = place.model(version, &[("config.json", config), TOKENIZER]);
        place.publish(&model);
    }
    let mut subscriber = place.open(OtherFiles::Assets);
    pull(&mut subscriber, Some(0));
    let config = ObjectName::Asset(Digest::of_bytes(b"[]"));
    let told = |error: &Error| (error.rule(), error.class(), error.file().map(str::to_owned));
    let named = |rule, class| (Some(rule), class, Some(config.to_string()));
    for damaged in [&b"()"[..], b"[", b"[]x", b""] {
        fs::write(place.object(config), damaged).unwrap();
        let error = subscriber.prepare(Some(1), &()).unwrap_err();
        assert_eq!(
            told(&error),
            named("R-CHN-16", ErrorClass::Corrupt),
            "{damaged:?}"
        );
    }
    // Its size is right, so a publisher does not store it again: only a reader notices.
    fs::write(place.object(config), b"()").unwrap();
    let model = place.model(2, &[("config.json", b"[]")]);
    place.publish(&model);
    assert_eq!(fs::read(place.object(config)).unwrap(), b"()");
    let check = |deep: bool| {
        let options = FsckOptions::default().deep(deep.then(|| place.folder.path().join("deep")));
        let report = fsck(&place.store, &options, &()).unwrap();
        assert_eq!(report.assets, 3);
        report.problems.iter().map(told).collect::<Vec<_>>()
    };
    assert_eq!(
        (check(false), check(true)),
        (Vec::new(), vec![named("R-CHN-16", ErrorClass::Corrupt)])
    );
    fs::write(place.object(config), b"[]x").unwrap();
    assert_eq!(check(false), [named("R-CHN-16", ErrorClass::Corrupt)]);

    fs::remove_file(place.object(config)).unwrap();
    let error = subscriber.prepare(Some(1), &()).unwrap_err();
    assert_eq!(told(&error), named("R-CHN-15", ErrorClass::Chain));
    assert_eq!(check(false), [named("R-CHN-15", ErrorClass::Chain)]);
    assert_eq!(files(&place.current())["config.json"], b"{}");
    assert_eq!(subscriber.held().unwrap().version, 0);
    drop(subscriber);
    // A follower without assets is not affected.
    pull(&mut place.open(OtherFiles::None), Some(1));
    // Publishing the model again repairs the asset.
    place.publish(&model);
    pull(&mut place.open(OtherFiles::Assets), None);
    assert_eq!(files(&place.current())["config.json"], b"[]");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let mut place = Place::new();
    let model = place.model(0, &[CONFIG]);
    place.publish(&model);
    let path = place.object(ObjectName::Commit(0));
    let commit = fs::read_to_string(&path).unwrap();
    for name in [
        "../config.json",
        "/etc/config",
        "a\\\\b",
        ".bashrc",
        "con.json",
        "model.safetensors",
        "x.",
    ] {
        fs::write(&path, commit.replace("config.json", name)).unwrap();
        let error = place
            .open(OtherFiles::Assets)
            .prepare(None, &())
            .unwrap_err();
        assert_eq!(error.rule(), Some("R-DOC-08"), "{name}: {error}");
        assert!(!place.current().exists());
    }
}

#[test]
fn pruning_leaves_them() {
    let mut place = Place::new();
    for version in 0..3 {
        let model = place.model(
            version,
            &[(
                "config.json",
                format!("{{\"version\":{version}}}").as_bytes(),
            )],
        );
        place.publish(&model);
    }
    // No version has ever referenced this asset.
    let stray = ObjectName::Asset(Digest::of_bytes(b"stray"));
    fs::write(place.object(stray), "stray").unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_hours(100);
    for object in place.store.objects().unwrap() {
        if !matches!(object.name, ObjectName::Commit(_)) {
            File::options()
                .append(true)
                .open(place.object(object.name))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
    }
    let plan = plan_prune(
        &place.store,
        &Keep {
            last: 1,
            ..Keep::default()
        },
    )
    .unwrap();
    prune(&place.store, &plan, &()).unwrap();
    assert_eq!(place.stored(), 4);
    assert_eq!(
        fsck(&place.store, &FsckOptions::default(), &())
            .unwrap()
            .problems
            .len(),
        0
    );
}

#[test]
fn those_of_several_shards_are_those_of_the_first() {
    let place = Place::new();
    let shard = |number: u8| {
        let mut state = MemoryState::new();
        state
            .insert(
                &format!("t{number}"),
                deltachain::tensor::Dtype::U8,
                &[1],
                vec![number],
            )
            .unwrap();
        let path = place.folder.path().join(format!("shard {number}"));
        save(&state, &path, false);
        fs::write(path.join("config.json"), format!("{{\"shard\":{number}}}")).unwrap();
        SafetensorsState::open(path).unwrap()
    };
    let remarks = Notes::default();
    let parts: Vec<_> = (0..2)
        .map(|number| {
            let state = shard(number);
            assert_eq!(state.tensors().len(), 1);
            let options = PublishOptions::default();
            let part = publish_shard(
                &place.store,
                &state,
                Base::Nothing,
                number.into(),
                2,
                &options,
                &remarks,
            )
            .unwrap();
            serde_json::from_str(&serde_json::to_string(&part).unwrap()).unwrap()
        })
        .collect();
    assert_eq!(
        remarks.remarks(),
        ["not published (shard 0 publishes the other files): config.json"]
    );
    let config = ObjectName::Asset(Digest::of_bytes(b"{\"shard\":0}"));
    let bytes = fs::read(place.object(config)).unwrap();
    fs::remove_file(place.object(config)).unwrap();
    let commit = || commit_shards(&place.store, &parts, &PublishOptions::default(), &());
    assert_eq!(commit().unwrap_err().rule(), Some("R-CHN-15"));
    fs::write(place.object(config), &bytes[1..]).unwrap();
    assert_eq!(commit().unwrap_err().rule(), Some("R-CHN-16"));
    fs::write(place.object(config), &bytes).unwrap();
    assert_eq!(names(&commit().unwrap().assets), ["config.json"]);
    // A follower of one shard gets the assets, too.
    let options = FollowerOptions::default().shards(Some(vec![1]));
    let directory = place.folder.path().join("half");
    let directory = pull(
        &mut Follower::in_directory(place.store.clone(), &directory, options).unwrap(),
        None,
    )
    .directory;
    assert_eq!(files(&directory)["config.json"], bytes);
}

/// A directory with the files that two trainers leave behind.
#[test]
fn training_state_is_left_out_and_listed() {
    let mut place = Place::new();
    let model = place.model(0, &[CONFIG, TOKENIZER, ("optimizer.pt", &[1; 5000])]);
    let at = |name: &str| model.path().join(name);
    for folder in ["global_step9", "scheduler", "logs"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    for name in [
        "rng_state_0.pth",
        "trainer_state.json",
        "latest",
        "global_step9/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "global_step9/mp_rank_00_model_states.pt",
        "scheduler/scheduler_config.json",
        "scheduler/optimizer.pt",
        "logs/optimizer.pt",
    ] {
        fs::write(at(name), name).unwrap();
    }
    // A trainer may leave more files than a version can have.
    for rank in 0..1100 {
        fs::write(at(&format!("random_states_{rank}.pkl")), "x").unwrap();
    }
    let model = SafetensorsState::open(model.path()).unwrap();
    let notes = Notes::default();
    let published = place
        .publish_as(&model, &PublishOptions::default(), &notes)
        .unwrap();
    assert_eq!(
        names(&published.assets),
        [
            "config.json",
            "logs/optimizer.pt",
            "scheduler/optimizer.pt",
            "scheduler/scheduler_config.json",
            "tokenizer.json"
        ]
    );
    let said = notes.remarks().join("\n");
    for left in [
        "global_step9 (training state of DeepSpeed), latest (training state of DeepSpeed), \
         optimizer.pt (training state of transformers)",
        "random_states_0.pkl (training state of accelerate)",
    ] {
        assert!(said.contains(left), "{said}");
    }
    // The error about too many assets names the ways out.
    for number in 0..Asset::MOST {
        fs::write(at(&format!("{number}.txt")), "x").unwrap();
    }
    let model = SafetensorsState::open(model.path()).unwrap();
    let error = place
        .publish_as(&model, &PublishOptions::default(), &())
        .unwrap_err();
    assert!(
        error.message().contains("--exclude") && error.message().contains("--no-assets"),
        "{error}"
    );
    let options = PublishOptions::default().exclude(vec!["[0-9]*.txt".to_owned()]);
    let published = place.publish_as(&model, &options, &()).unwrap();
    assert_eq!(published.assets.len(), 5);
}

#[test]
fn patterns_leave_other_files_out() {
    let mut place = Place::new();
    let model = place.model(0, &[CONFIG, TOKENIZER, ("a.log", b"a")]);
    fs::create_dir_all(model.path().join("eval/old")).unwrap();
    fs::write(model.path().join("eval/old/b.json"), "b").unwrap();
    fs::write(model.path().join("eval/c.log"), "c").unwrap();
    let model = SafetensorsState::open(model.path()).unwrap();
    let publish = |patterns: &[&str], observer: &dyn Observer| {
        let patterns = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        let options = PublishOptions::default().exclude(patterns);
        place.publish_as(&model, &options, observer)
    };
    for (patterns, expected) in [
        (
            &["*.log"][..],
            &["config.json", "eval/old/b.json", "tokenizer.json"][..],
        ),
        (&["eval/*"], &["a.log", "config.json", "tokenizer.json"]),
        (
            &["a.log", "{tokenizer,config}.json", "*/c.*"],
            &["eval/old/b.json"],
        ),
    ] {
        let notes = Notes::default();
        let published = publish(patterns, &notes).unwrap();
        assert_eq!(names(&published.assets), expected);
        let said = notes.remarks().join("\n");
        assert!(said.contains("(left out by"), "{said}");
        assert!(!said.contains("no file to leave out matches"), "{said}");
    }
    // A pattern that matches no file only causes a remark. A pattern that matches tensors, or is
    // invalid, is refused.
    let notes = Notes::default();
    let published = publish(&["*.lgo", "a.log"], &notes).unwrap();
    assert_eq!(published.assets.len(), 4);
    let said = notes.remarks().join("\n");
    assert!(
        said.contains(r#"no file to leave out matches "*.lgo""#),
        "{said}"
    );
    for (pattern, why) in [("*", "holds or names tensors"), ("a[", "cannot be used")] {
        let error = publish(&[pattern], &()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage, "{error}");
        assert!(error.message().contains(why), "{error}");
    }
}

#[test]
fn other_files_that_are_larger_than_the_link_are_told() {
    let mut place = Place::new();
    let large = vec![5; 2 << 20];
    let publish = |place: &mut Place, version: u64, others: &[(&str, &[u8])]| {
        let model = place.model(version, others);
        let notes = Notes::default();
        let published = place
            .publish_as(&model, &PublishOptions::default(), &notes)
            .unwrap();
        let warned = notes
            .remarks()
            .join("\n")
            .contains("bytes of other files are new");
        (published.asset_bytes, published.new_asset_bytes, warned)
    };
    let small = CONFIG.1.len() as u64;
    let all = small + large.len() as u64;
    assert_eq!(publish(&mut place, 0, &[CONFIG]), (small, small, false));
    let others = [CONFIG, ("video.mp4", &large[..])];
    assert_eq!(publish(&mut place, 1, &others), (all, all - small, true));
    // The contents are in the store already, also under another name.
    let others = [CONFIG, ("film.mp4", &large[..])];
    assert_eq!(publish(&mut place, 2, &others), (all, 0, false));
}

/// File systems of macOS treat two such names as one, like names that differ in case only.
#[test]
fn names_in_two_forms_of_unicode_are_refused() {
    let mut place = Place::new();
    let model = place.model(0, &[CONFIG]);
    let at = |name: &str| model.path().join(name);
    fs::create_dir(at("\u{e9}")).unwrap();
    fs::write(at("\u{e9}/a.json"), "1").unwrap();
    place.publish(&SafetensorsState::open(model.path()).unwrap());
    fs::create_dir(at("e\u{301}")).unwrap();
    // This file system treats the two names as one folder.
    if fs::read_dir(at("e\u{301}")).unwrap().next().is_some() {
        return;
    }
    fs::write(at("e\u{301}/b.json"), "2").unwrap();
    let model = SafetensorsState::open(model.path()).unwrap();
    let options = PublishOptions::default();
    let error = place.publish_as(&model, &options, &()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    assert!(error.message().contains("forms of Unicode"), "{error}");
    // Files that are left out do not matter.
    let options = options.exclude(vec!["*/b.json".to_owned()]);
    place.publish_as(&model, &options, &()).unwrap();
}
