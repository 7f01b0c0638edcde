//! Assets: the other files of a model directory, such as configuration and tokenizer, that belong
//! to a version beside its tensors (SPEC sections 18 to 20). A publisher stores them, a subscriber
//! puts them into its directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use deltachain::chain::{Asset, FileReference};
use deltachain::files::SafetensorsState;
use deltachain::tensor::Digest;
use deltachain::{Error, FileSource, Progress, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use icu_normalizer::ComposingNormalizerBorrowed;

use crate::access::copies::FileStores;
use crate::access::store::{Store, StoredObject};
use crate::access::whole::ChainFile;
use crate::assets::excluded::Excluded;
use crate::assets::other_files::{FoundFiles, failed_with, list, second_name};
use crate::assets::training_state::training_state;
use crate::directory::names::make_place;
use crate::directory::unfinished;
use crate::observer::{InPhase, Observer, Phase};

/// Advice on publishing fewer other files.
pub(crate) const LEAVE_OUT: &str = "--exclude PATTERN leaves files out, --no-assets all of them; \
                                    in Python Like(exclude=) and Like(other_files=False)";

/// Stores the other files of a model directory and its folders, and returns them as the assets of a
/// commit, ascending by name. Assets in `known` are in the store already. The observer learns which
/// files are left out: files of trainers, files that match a pattern of `exclude`, and files that
/// cannot be assets (R-LAY-02). Temporary copies are made in `scratch`.
///
/// # Errors
/// USAGE if there are more than a commit can name, or a pattern would leave tensors out; IO, also
/// if a file changes while it is read; the observer's error.
pub(crate) fn store_assets(
    store: &Store,
    state: &SafetensorsState,
    known: &[Asset],
    exclude: &[String],
    scratch: &Path,
    observer: &dyn Observer,
) -> Result<Vec<Asset>> {
    if !state.layout().is_directory() {
        return Ok(Vec::new());
    }
    let mut excluded = Excluded::new(exclude)?;
    let FoundFiles { taken, left } = candidates(state, &mut excluded)?;
    let unused = excluded.unused();
    if !unused.is_empty() {
        observer.remark(&format!(
            "no file to leave out matches {}",
            unused.join(", ")
        ));
    }
    if !left.is_empty() {
        observer.remark(&format!("not published: {}", list(&left)));
    }
    if taken.len() > Asset::MOST {
        let message = format!(
            "there are {} files besides the tensors; a version has no more than {}. {LEAVE_OUT}",
            taken.len(),
            Asset::MOST
        );
        return Err(Error::usage(message).in_file(state.path()));
    }
    let known: BTreeSet<FileReference> = known.iter().map(|asset| asset.file).collect();
    taken
        .into_iter()
        .map(|(name, path)| store_asset(store, name, &path, &known, scratch, observer))
        .collect()
}

/// The files that can be assets.
fn candidates(state: &SafetensorsState, excluded: &mut Excluded) -> Result<FoundFiles> {
    let own: BTreeSet<String> = state.model_files().into_iter().collect();
    for name in &own {
        if let Some(pattern) = excluded.pattern_of(name) {
            return Err(Error::usage(format!(
                "{pattern:?} would leave out {name:?}, which holds or names tensors: leave out \
                 other files, or publish another directory"
            ))
            .in_file(state.path()));
        }
    }
    // Each folder of training state is reported once.
    let mut skipped = BTreeSet::new();
    let is_skipped = |name: &str| {
        if own.contains(name) {
            return true;
        }
        // A pattern counts as used even if it only matches files that are left out anyway.
        let pattern = excluded.pattern_of(name);
        let by_pattern = pattern.map(|pattern| format!("{name} (left out by {pattern:?})"));
        let Some(left) = training_state(name).or(by_pattern) else {
            return false;
        };
        skipped.insert(left);
        true
    };
    let flaw = |path: &Path, name: &str| match fs::metadata(path) {
        Err(_) => Some("cannot be read"),
        Ok(found) if found.len() > Asset::MOST_BYTES => Some("is too large"),
        Ok(_) => Asset::flaw_of_name(name),
    };
    let mut found = FoundFiles::of(state.path(), is_skipped, flaw)?;
    check_forms(own.iter().chain(found.taken.keys()))
        .map_err(|error| error.in_file(state.path()))?;
    found.left.extend(skipped);
    Ok(found)
}

/// Refuses two names that differ only in their Unicode form, such as é as one character and as two.
/// Some file systems treat them as one name, so followers there would get one file instead of two.
fn check_forms<'a>(names: impl Iterator<Item = &'a String>) -> Result<()> {
    let composed = ComposingNormalizerBorrowed::new_nfc();
    let mut forms = BTreeMap::new();
    for name in names.flat_map(|name| Path::new(name).ancestors()) {
        let name = name.to_string_lossy();
        let form = composed.normalize(&name).into_owned();
        let other = forms.entry(form).or_insert_with(|| name.clone());
        if *other != name {
            return Err(Error::usage(format!(
                "two files have the name {name:?}, in two forms of Unicode: rename or remove one \
                 of them"
            )));
        }
    }
    Ok(())
}

/// Stores a file, unless it is in the store already.
fn store_asset(
    store: &Store,
    name: String,
    path: &Path,
    known: &BTreeSet<FileReference>,
    scratch: &Path,
    observer: &dyn Observer,
) -> Result<Asset> {
    let hashing = InPhase::begin(observer, Phase::Hash, 0);
    let file = copy(path, &mut io::sink(), &hashing)?;
    drop(hashing);
    let asset = Asset { name, file };
    let is_there = |stored: StoredObject| stored.size == file.size;
    if known.contains(&file) || store.find(asset.object_name())?.is_some_and(is_there) {
        return Ok(asset);
    }
    // Uploads a copy, so that the stored bytes are the hashed bytes, even if another process writes
    // to the file meanwhile.
    let mut copied = unfinished::file(scratch).map_err(failed_with("copying", path))?;
    let uploading = InPhase::begin(observer, Phase::Upload, file.size);
    if copy(path, copied.as_file_mut(), &())? != file {
        return Err(Error::changed(path));
    }
    store.upload(copied.path(), asset.object_name(), file.size, observer)?;
    drop(uploading);
    Ok(asset)
}

/// Copies a file and returns its digest and size. Reads at most one byte more than an asset can
/// have, and fails if the file changes meanwhile.
fn copy(from: &Path, to: &mut dyn Write, progress: &dyn Progress) -> Result<FileReference> {
    let source = FileSource::open(from)?;
    let mut file = source.file().take(Asset::MOST_BYTES + 1);
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = file
            .read(&mut buffer)
            .map_err(failed_with("reading", from))?;
        if count == 0 {
            source.check_unchanged()?;
            return Ok(FileReference {
                digest: Digest(*hasher.finalize().as_bytes()),
                size: hasher.count(),
            });
        }
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count])
            .map_err(failed_with("copying", from))?;
        progress.advance(0)?;
    }
}

/// Puts the assets of a version into its directory, and syncs their contents to disk. Assets that
/// the directory of the previous version, `before`, contains become hard links to these files, or
/// copies; the others are downloaded. Returns the number of downloaded bytes.
///
/// # Errors
/// R-CHN-15, R-CHN-16; USAGE if a folder with tensor files has the name of an asset; IO; the
/// observer's error.
pub(crate) fn take_assets(
    stores: &FileStores,
    assets: &[Asset],
    before: Option<&Path>,
    to: &Path,
    observer: &dyn Observer,
) -> Result<u64> {
    let mut missing = Vec::new();
    for asset in assets {
        let old = before
            .map(|before| before.join(&asset.name))
            .filter(|old| is_asset(old, asset));
        match old {
            Some(old) => second_name(&old, &make_place(to, &asset.name)?)
                .map_err(failed_with("taking", &old))?,
            None => missing.push(asset),
        }
    }
    let bytes = missing.iter().map(|asset| asset.file.size).sum();
    let downloading = InPhase::begin(observer, Phase::Download, bytes);
    let fetched = stream::iter(missing).map(|asset| fetch(stores, asset, to, &downloading));
    // The order is kept, so that the first failure is the same each time.
    let store = &stores.url;
    store.block_on(fetched.buffered(store.options.parallel).try_collect::<()>())?;
    Ok(bytes)
}

/// Returns true if a file is this asset; false if it cannot be read.
fn is_asset(path: &Path, asset: &Asset) -> bool {
    let is_there = fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_file() && found.len() == asset.file.size);
    is_there && copy(path, &mut io::sink(), &()).is_ok_and(|found| found == asset.file)
}

async fn fetch(
    stores: &FileStores,
    asset: &Asset,
    to: &Path,
    progress: &dyn Progress,
) -> Result<()> {
    let path = make_place(to, &asset.name)?;
    let mut file = File::create_new(&path).map_err(failed_with("writing", &path))?;
    loop {
        let write = |bytes: &[u8]| {
            file.write_all(bytes)
                .map_err(failed_with("writing", &path))?;
            progress.advance(bytes.len() as u64)
        };
        let request = stores.file(ChainFile::Asset(asset));
        let part_bytes = stores.url.options.part_bytes;
        let Err(error) = request.read_whole(part_bytes, write).await else {
            break;
        };
        let may_be_of_copy = error.rule().is_some() && stores.accuse(Some(asset.object_name()));
        if !may_be_of_copy {
            return Err(error);
        }
        file.rewind()
            .and_then(|()| file.set_len(0))
            .map_err(failed_with("writing", &path))?;
    }
    file.sync_all().map_err(failed_with("writing", &path))
}
