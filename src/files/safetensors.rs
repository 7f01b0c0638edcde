//! A state in safetensors files: one file, or a directory of shards with or without an index.
//!
//! Files are untrusted: everything in their headers and in the index is checked before it is used.
//! Data is read by position, not mapped, so that a file that another program truncates is an error
//! and not a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::disk::{check_apart, reading};
use crate::files::file_source::FileSource;
use crate::files::header::{FileHeader, LENGTH_BYTES, MAX_HEADER_BYTES};
use crate::files::listing::ModelListing;
use crate::files::twin_folders::twin_folders;
use crate::files::weight_map::{FolderIndex, INDEX_NAME, INDEX_SUFFIX, index_name, stem};
use crate::files::{Layout, LayoutFile};
use crate::layout::FILE_SUFFIX;
use crate::plain_name::{flaw_of_plain_name, folder_of, is_of_tensors};
use crate::source::Source;
use crate::tensor::{State, TensorInfo, find, total_bytes};

/// The names of the files that say how folders belong together: in pipelines of diffusers, and in
/// sentence transformers.
const PARTS: [&str; 2] = ["model_index.json", "modules.json"];

/// A state in safetensors files.
#[derive(Debug)]
pub struct SafetensorsState {
    path: PathBuf,
    /// The opened files, one for each file of the layout, in the same order.
    shards: Vec<ShardFile>,
    layout: Layout,
    tensors: Vec<TensorInfo>,
    places: Vec<DataPlace>,
    indexes: Indexes,
    /// The listing of the directory; empty if none was listed.
    listing: ModelListing,
    /// Whether other processes may write to the files.
    is_watched: bool,
}

/// The indexes in use: for each folder with an index, the name of the index without the folder, and
/// its content.
type Indexes = BTreeMap<String, (String, FolderIndex)>;

/// One opened file.
#[derive(Debug)]
struct ShardFile {
    source: FileSource,
    header: FileHeader,
}

/// Offset of a tensor's data.
#[derive(Debug, Clone, Copy)]
pub(super) struct DataPlace {
    /// Number of the file.
    pub(super) file: usize,
    /// Offset in the file.
    pub(super) offset: u64,
}

impl SafetensorsState {
    /// Opens a safetensors file, or a directory with the folders that [`ModelListing`] lists. The
    /// files of a folder are those that its index names (`model.safetensors.index.json`, or another
    /// `*.safetensors.index.json` if it is the only one), or without an index, all files whose
    /// names end in `.safetensors`. In the state, the name of a tensor begins with the folder of
    /// its file. Reads headers only.
    ///
    /// # Errors
    /// IO if a file cannot be read; USAGE if a file is not safetensors, if files contradict each
    /// other or the index, if a layout cannot hold the names of the files (SPEC section 12), or if
    /// it is certain that the directory is not one model. Also errors of [`ModelListing::of`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let kind = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing(path),
            _ => reading(error, path),
        })?;
        if kind.is_dir() {
            Self::open_directory(path)
        } else if kind.is_file() {
            let shard = ShardFile::open(path)?;
            Self::assemble(path, vec![(None, shard)], Indexes::new())
        } else {
            Err(Error::usage("not a file or directory").in_file(path))
        }
    }

    /// Opens these files of a directory, by their names in a layout, and ignores all others.
    /// Without names, opens the empty state. No other process may write to the files, which is not
    /// [checked](State::check_unchanged).
    ///
    /// # Errors
    /// Same errors as [`open`](Self::open).
    pub fn open_files<'n>(
        directory: &Path,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Self> {
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let mut indexes = Indexes::new();
        if names.is_empty() {
            return Ok(Self {
                path: directory.to_owned(),
                shards: Vec::new(),
                layout: Layout::single_file(&[]),
                tensors: Vec::new(),
                places: Vec::new(),
                indexes,
                listing: ModelListing::default(),
                is_watched: false,
            });
        }
        for (folder, files) in by_folder(&names) {
            let name = index_name(files.into_iter());
            let path = directory.join(folder).join(&name);
            if path.is_file() {
                indexes.insert(folder.to_owned(), (name, FolderIndex::read(&path)?));
            }
        }
        Ok(Self {
            is_watched: false,
            ..Self::open_named(directory, names, indexes)?
        })
    }

    fn open_directory(path: &Path) -> Result<Self> {
        let listing = ModelListing::of(path)?;
        let mut names = Vec::new();
        let mut indexes = Indexes::new();
        for (folder, found) in folders(&listing.files) {
            let index = found.index(path)?;
            let indexed: BTreeSet<&String> = index
                .iter()
                .flat_map(|(_, index)| index.weight_map.values())
                .collect();
            // Names are checked before any is used as a path: an index can hold any names.
            for &name in &indexed {
                if let Some(flaw) = flaw_of_plain_name(name) {
                    return Err(Error::usage(format!("the file name {name:?} {flaw}"))
                        .in_file(path.join(&folder)));
                }
                names.push(format!("{folder}{name}"));
            }
            if let Some(flaw) = index
                .as_ref()
                .and_then(|(name, index)| found.rival_of(name, index))
            {
                return Err(Error::usage(flaw).in_file(path.join(&folder)));
            }
            // The index of a state without tensors names no file.
            if indexed.is_empty() {
                for name in found.tensors {
                    let text = name.to_str();
                    let text = text.ok_or_else(|| {
                        Error::usage("the file name is not Unicode").in_file(path.join(name))
                    })?;
                    names.push(text.to_owned());
                }
            }
            if let Some((name, index)) = index {
                indexes.insert(folder, (name, index));
            }
        }
        if names.is_empty() {
            let left = listing.left_out.join(", ");
            let more = if left.is_empty() {
                left
            } else {
                format!("; left out: {left}")
            };
            return Err(
                Error::usage(format!("the directory holds no .safetensors file{more}"))
                    .in_file(path),
            );
        }
        let state = Self {
            listing,
            ..Self::open_named(path, names, indexes)?
        };
        state.check_is_one().map(|()| state)
    }

    /// True if a file says how the folders belong together.
    fn names_parts(&self) -> bool {
        let is_of_parts = |name: &OsString| PARTS.iter().any(|parts| name == parts);
        self.listing.files.iter().any(is_of_parts)
    }

    /// Refuses a directory in which two folders have the same files, with tensors of the same names
    /// and shapes: siblings, or a folder and one in it. They seem to be models of their own, such
    /// as several steps. A directory with a file that says how its folders belong together is
    /// accepted.
    ///
    /// # Errors
    /// USAGE.
    pub fn check_one_model(&self) -> Result<()> {
        if self.names_parts() {
            return Ok(());
        }
        let files = self.layout.files().iter().zip(&self.shards);
        let files = files.filter_map(|(file, shard)| {
            let name = file.name.as_deref()?;
            Some((name, &shard.header.tensors[..]))
        });
        if let Some((first, second)) = twin_folders(files) {
            let first = match first {
                "" => "the directory itself".to_owned(),
                folder => format!("{folder:?}"),
            };
            let message = format!(
                "{first} and {second:?} have the same files, with tensors of the same names and \
                 shapes, so each seems to be a model of its own: give one of them, or move one \
                 away. Parts of one model have a model_index.json beside them"
            );
            return Err(Error::usage(message).in_file(&self.path));
        }
        Ok(())
    }

    /// Refuses a directory in which several folders say that they are whole models, with the same
    /// tensors.
    fn check_is_one(&self) -> Result<()> {
        if self.names_parts() {
            return Ok(());
        }
        let mut models = BTreeMap::new();
        let folders = self
            .layout
            .folders()
            .into_iter()
            .filter(|folder| is_whole(&self.path.join(folder)));
        for folder in folders {
            let files = self
                .layout
                .files()
                .iter()
                .filter(|file| file.folder() == folder);
            let names: BTreeSet<&str> = files
                .flat_map(|file| &file.tensors)
                .map(|name| &name[folder.len()..])
                .collect();
            if let Some(other) = models.insert(names, folder) {
                let message = format!(
                    "{other:?} and {folder:?} each hold a model with the same tensors: give one of \
                     them"
                );
                return Err(Error::usage(message).in_file(&self.path));
            }
        }
        Ok(())
    }

    fn open_named(path: &Path, names: Vec<String>, indexes: Indexes) -> Result<Self> {
        let file = |name| LayoutFile {
            name: Some(name),
            metadata: None,
            tensors: Vec::new(),
        };
        let layout = Layout::new(names.into_iter().map(file).collect());
        let layout = layout.map_err(|flaw| Error::usage(flaw).in_file(path))?;
        let mut shards = Vec::with_capacity(layout.files().len());
        for name in layout.files().iter().filter_map(|file| file.name.clone()) {
            let file = path.join(&name);
            // Files found by listing the directory exist. The others are named by an index.
            if !file.exists() && !file.is_symlink() {
                let why = "the index names this file, which is missing: the model is incomplete; \
                           download it again";
                return Err(Error::usage(why).in_file(file));
            }
            let shard = ShardFile::open(&file)?;
            shards.push((Some(name), shard));
        }
        let state = Self::assemble(path, shards, indexes)?;
        state.check_indexes()?;
        Ok(state)
    }

    fn assemble(
        path: &Path,
        named: Vec<(Option<String>, ShardFile)>,
        indexes: Indexes,
    ) -> Result<Self> {
        let mut files = Vec::with_capacity(named.len());
        let mut shards = Vec::with_capacity(named.len());
        for (name, shard) in named {
            let folder = name.as_deref().map_or("", folder_of);
            let tensors = shard
                .header
                .tensors
                .iter()
                .map(|(info, _)| format!("{folder}{}", info.name()))
                .collect();
            files.push(LayoutFile {
                name,
                metadata: shard.header.metadata.clone(),
                tensors,
            });
            shards.push(shard);
        }
        let layout = Layout::new(files).map_err(|flaw| Error::usage(flaw).in_file(path))?;
        let (tensors, places) = gather(
            layout
                .files()
                .iter()
                .zip(shards.iter().map(|shard| &shard.header)),
        );
        let twice =
            (1..tensors.len()).find(|&number| tensors[number - 1].name() == tensors[number].name());
        if let Some(number) = twice {
            let name = |number: usize| {
                layout.files()[places[number].file]
                    .name
                    .as_deref()
                    .unwrap_or_default()
            };
            let (first, second) = (name(number - 1), name(number));
            let message = format!(
                "duplicate tensor: the files {first:?} and {second:?} both have one of this name"
            );
            return Err(Error::usage(message)
                .of_tensor(tensors[number].name())
                .in_file(path));
        }
        let (path, listing) = (path.to_owned(), ModelListing::default());
        Ok(Self {
            path,
            shards,
            layout,
            tensors,
            places,
            indexes,
            listing,
            is_watched: true,
        })
    }

    /// Checks that indexes and files agree on which file holds which tensor. The error names a
    /// tensor that is wrong.
    fn check_indexes(&self) -> Result<()> {
        for (folder, (name, index)) in &self.indexes {
            let flaw = self.flaw_of_index(folder, index);
            flaw.map_or(Ok(()), |flaw| {
                Err(Error::usage(flaw).in_file(self.path.join(folder).join(name)))
            })?;
        }
        Ok(())
    }

    fn flaw_of_index(&self, folder: &str, index: &FolderIndex) -> Option<String> {
        for file in self
            .layout
            .files()
            .iter()
            .filter(|file| file.folder() == folder)
        {
            let name = file.name.as_deref().unwrap_or_default();
            for tensor in file.tensors.iter().map(|tensor| &tensor[folder.len()..]) {
                if index.weight_map.get(tensor).map(String::as_str) != Some(&name[folder.len()..]) {
                    return Some(format!(
                        "the index does not say that the tensor {tensor:?} is in {name:?}"
                    ));
                }
            }
        }
        let is_there =
            |tensor: &String| find(self.tensors(), &format!("{folder}{tensor}")).is_some();
        let (tensor, file) = index
            .weight_map
            .iter()
            .find(|(tensor, _)| !is_there(tensor))?;
        Some(format!(
            "{file:?} does not hold the tensor {tensor:?}, as the index says"
        ))
    }

    /// The distribution of the state over files.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The path that was opened: of the directory, or of the single file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the files that hold the tensors, and of the indexes that say where, in order; with
    /// `/` after each folder. Empty for a state in a single file.
    pub fn model_files(&self) -> Vec<String> {
        let files = self
            .layout
            .files()
            .iter()
            .filter_map(|file| file.name.clone());
        let indexes = self
            .indexes
            .iter()
            .map(|(folder, (name, _))| format!("{folder}{name}"));
        let mut names: Vec<String> = files.chain(indexes).collect();
        names.sort_unstable();
        names
    }

    /// Names of the files of tensors in folders where nothing shows that they belong together, in
    /// order: a folder has several files, no index, and the files are not numbered
    /// (`model-00001-of-00002.safetensors`). Some model repositories have the same model twice in a
    /// folder, with other names of tensors.
    pub fn unindexed_files(&self) -> Vec<String> {
        let names: Vec<String> = self
            .layout
            .files()
            .iter()
            .filter_map(|file| file.name.clone())
            .collect();
        let alone = |(folder, files): &(&str, Vec<&str>)| {
            files.len() > 1
                && !self.indexes.contains_key(*folder)
                && files.iter().any(|file| stem(file).is_none())
        };
        let folders = by_folder(&names).into_iter().filter(alone);
        folders
            .flat_map(|(folder, files)| {
                files.into_iter().map(move |file| format!("{folder}{file}"))
            })
            .collect()
    }

    /// Names of the plain files in the directory and its folders that are neither shards nor index
    /// nor hidden, in order: no link covers them. Empty for a state in a single file.
    pub fn other_files(&self) -> Vec<String> {
        self.other_paths()
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect()
    }

    /// The file of a tensor's data, and the offset of the data in it; `tensor` is an index into
    /// [`tensors`](State::tensors).
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn place(&self, tensor: usize) -> (&Path, u64) {
        let DataPlace { file, offset } = self.places[tensor];
        (self.shards[file].source.path(), offset)
    }

    /// The entries of the directory that were not read, such as a trainer's checkpoints:
    /// [`ModelListing::left_out`].
    pub fn left_out(&self) -> &[String] {
        &self.listing.left_out
    }

    /// Refuses an output that is this model or one of its files, lies in it, or contains one of
    /// them; see [`check_apart`].
    ///
    /// # Errors
    /// USAGE.
    pub fn check_apart(&self, out: &Path) -> Result<()> {
        let names = self.listing.files.iter().map(|name| self.path.join(name));
        let files: Vec<PathBuf> = names.chain([self.path.clone()]).collect();
        check_apart(out, files.iter().map(PathBuf::as_path))
    }

    /// Paths of the other files, with their names.
    pub(super) fn other_paths(&self) -> impl Iterator<Item = (&OsString, PathBuf)> {
        let own: BTreeSet<String> = self.model_files().into_iter().collect();
        let is_own = move |name: &&OsString| name.to_str().is_some_and(|name| own.contains(name));
        self.listing
            .files
            .iter()
            .filter(move |name| !is_own(name))
            .map(|name| (name, self.path.join(name)))
    }

    /// The index of a folder, and the total bytes of the tensors in the folder's files.
    pub(super) fn index(&self, folder: &str) -> Option<(&FolderIndex, u64)> {
        let (_, index) = self.indexes.get(folder)?;
        let is_here = |place: &DataPlace| self.layout.files()[place.file].folder() == folder;
        let here = self
            .tensors
            .iter()
            .zip(&self.places)
            .filter(|(_, place)| is_here(place));
        Some((index, total_bytes(here.map(|(info, _)| info))))
    }

    /// The header of a file with these tensors, named as in the file, and this `__metadata__`, if
    /// there is such a file. A file of the same name is preferred.
    pub(super) fn header_like(
        &self,
        file: &LayoutFile,
        tensors: &[&TensorInfo],
    ) -> Option<&FileHeader> {
        let mut alike: Vec<(&LayoutFile, &FileHeader)> = self
            .layout
            .files()
            .iter()
            .zip(self.shards.iter().map(|shard| &shard.header))
            .filter(|(_, header)| header.describes(file.metadata.as_ref(), tensors))
            .collect();
        alike.sort_by_key(|(candidate, _)| candidate.name != file.name);
        alike.first().map(|(_, header)| *header)
    }
}

impl State for SafetensorsState {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let (place, offset) = locate(&self.tensors, &self.places, tensor, offset, out.len())?;
        self.shards[place.file].source.read_at(offset, out)
    }

    fn check_unchanged(&self) -> Result<()> {
        if !self.is_watched {
            return Ok(());
        }
        let files = self.shards.iter().map(|shard| &shard.source);
        files
            .chain(self.indexes.values().map(|(_, index)| &index.source))
            .try_for_each(FileSource::check_unchanged)?;
        // A shard may have been added.
        let of_tensors = |files: &[OsString]| {
            files
                .iter()
                .filter(|name| is_of_tensors(&name.to_string_lossy()))
                .count()
        };
        if self.layout.is_directory()
            && of_tensors(&ModelListing::of(&self.path)?.files) != of_tensors(&self.listing.files)
        {
            return Err(Error::usage(
                "files were added while the directory was being read: retry when it is complete",
            )
            .in_file(&self.path));
        }
        Ok(())
    }
}

impl ShardFile {
    fn open(path: &Path) -> Result<Self> {
        let source = FileSource::open(path)?;
        let file_bytes = source.length()?;
        let refuse = |flaw: &str| {
            let mut begin = vec![0; usize::try_from(file_bytes.min(64)).unwrap_or(64)];
            source.read_at(0, &mut begin)?;
            let flaw = other_kind(&begin).unwrap_or(flaw);
            Err(Error::usage(format!("not a safetensors file: {flaw}")).in_file(path))
        };
        let mut length = [0; LENGTH_BYTES];
        if file_bytes < LENGTH_BYTES as u64 {
            return refuse("it is too short");
        }
        source.read_at(0, &mut length)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > file_bytes - LENGTH_BYTES as u64 {
            return refuse("the header would end beyond the file");
        }
        let too_long = || format!("the header is longer than {MAX_HEADER_BYTES} bytes");
        if header_bytes > MAX_HEADER_BYTES {
            return refuse(&too_long());
        }
        let Ok(header_bytes) = usize::try_from(header_bytes) else {
            return refuse(&too_long());
        };
        let mut bytes = vec![0; LENGTH_BYTES + header_bytes];
        source.read_at(0, &mut bytes)?;
        let header = match FileHeader::parse(bytes) {
            Ok(header) => header,
            Err(flaw) => return refuse(&flaw),
        };
        if header.file_bytes != file_bytes {
            return refuse(&format!(
                "its header describes {} bytes, but it has {file_bytes}",
                header.file_bytes
            ));
        }
        Ok(Self { source, header })
    }
}

/// The kind of a file that is not a safetensors file, by its first bytes.
fn other_kind(begin: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 11] = [
        (
            b"version ",
            "it is a pointer of Git LFS: `git lfs pull` fetches the file",
        ),
        (
            b"<",
            "it is a page of HTML or XML, such as the error of a download: download the file again",
        ),
        (b"\x80", PICKLE),
        (
            b"GGUF",
            "it is a GGUF file: give the checkpoint that it was made from",
        ),
        (
            b"{",
            "it is JSON: give the folder of an index, or a file that the index names",
        ),
        (b"\x1f\x8b", "it is compressed with gzip: unpack it"),
        (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it"),
        (
            b"\x89HDF\r\n",
            "it is an HDF5 file: load it with the program that wrote it, and save it as \
            safetensors",
        ),
        (b"\x93NUMPY", NUMPY),
        (
            b"\x89DCF",
            "it is a link of deltachain: build a state from it with `apply`",
        ),
        (b"PK", kind_of_zip(begin)),
    ];
    let known = kinds
        .into_iter()
        .find(|(magic, _)| begin.starts_with(magic))
        .map(|(_, kind)| kind);
    known.or_else(|| {
        is_onnx(begin).then_some("it is an ONNX file: give the checkpoint that it was made from")
    })
}

const PICKLE: &str = "it is a PyTorch pickle: load it with PyTorch, and save it as safetensors";
const NUMPY: &str = "it is a NumPy file: load it with NumPy, and save it with safetensors.numpy";

/// The kind of a ZIP archive, by the name of its first member, which comes after 30 bytes.
fn kind_of_zip(begin: &[u8]) -> &'static str {
    let length = begin.get(26).copied().unwrap_or_default();
    let name = begin.get(30..30 + usize::from(length)).unwrap_or_default();
    if name.ends_with(b".npy") {
        NUMPY
    } else if name.contains(&b'/') {
        PICKLE
    } else {
        "it is a ZIP archive: unpack it; if it is a PyTorch file, load it with PyTorch, and save \
         it as safetensors"
    }
}

/// True for the beginning of an ONNX model, which has no magic: field 1 of a Protocol Buffers
/// message, the version of the format, and then another field, with a length.
fn is_onnx(begin: &[u8]) -> bool {
    matches!(begin, [0x08, 1..=20, 0x12 | 0x1a | 0x22 | 0x3a | 0x42, ..])
}

/// The error for a path with nothing there, which may be the name of a repository.
fn missing(path: &Path) -> Error {
    let mut parts = path.components();
    let is_name = matches!((parts.next(), parts.next(), parts.next()), (Some(Component::Normal(first)), Some(_), None)
        if !Path::new(first).exists());
    let more = if is_name {
        format!(
            "; if it is a Hugging Face repository, run `hf download {} --local-dir DIR`, and give \
             DIR",
            path.display()
        )
    } else {
        String::new()
    };
    Error::usage(format!("there is no such file or directory{more}")).in_file(path)
}

/// Files of a folder, by kind.
#[derive(Default)]
struct Folder<'a> {
    /// Names of the files of tensors.
    tensors: Vec<&'a OsStr>,
    /// Names of the indexes.
    indexes: Vec<&'a OsStr>,
}

/// Sorts these files of a directory by folder. The names of folders have a `/` at the end.
fn folders(files: &[OsString]) -> BTreeMap<String, Folder<'_>> {
    let mut folders: BTreeMap<String, Folder<'_>> = BTreeMap::new();
    for name in files {
        let ends_in = |suffix: &str| name.as_encoded_bytes().ends_with(suffix.as_bytes());
        let shown = name.to_string_lossy();
        if ends_in(FILE_SUFFIX) {
            folders
                .entry(folder_of(&shown).to_owned())
                .or_default()
                .tensors
                .push(name);
        } else if ends_in(INDEX_SUFFIX) {
            folders
                .entry(folder_of(&shown).to_owned())
                .or_default()
                .indexes
                .push(name);
        }
    }
    folders
}

impl Folder<'_> {
    /// The index in use, with its name without the folder.
    fn index(&self, directory: &Path) -> Result<Option<(String, FolderIndex)>> {
        let last = |name: &&OsStr| {
            Path::new(name)
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        let usual = self.indexes.iter().find(|name| last(name) == INDEX_NAME);
        let index = match (usual, &self.indexes[..]) {
            (Some(index), _) | (None, [index]) => index,
            (None, []) => return Ok(None),
            (None, [first, second, ..]) => {
                let [first, second] = [first, second].map(|name| name.to_string_lossy());
                let message =
                    format!("duplicate index: {first:?} and {second:?}; remove one of them");
                return Err(Error::usage(message).in_file(directory));
            }
        };
        Ok(Some((
            last(index),
            FolderIndex::read(&directory.join(index))?,
        )))
    }

    /// Describes a single file that may be the model instead of the files that the index names:
    /// loaders differ in which of them they load.
    fn rival_of(&self, name: &str, index: &FolderIndex) -> Option<String> {
        let single = name.strip_suffix(".index.json")?;
        let is_there = self
            .tensors
            .iter()
            .any(|file| Path::new(file).file_name() == Some(OsStr::new(single)));
        let is_named =
            index.weight_map.is_empty() || index.weight_map.values().any(|file| file == single);
        let message = format!(
            "{single:?} lies beside {name:?}, which does not name it: remove the one that is out \
             of date"
        );
        (is_there && !is_named).then_some(message)
    }
}

/// Whether a folder's `config.json` says that it is a whole model of transformers.
fn is_whole(folder: &Path) -> bool {
    let Ok(config) = FileSource::open(folder.join("config.json")) else {
        return false;
    };
    let mut text = String::new();
    let read = config
        .file()
        .take(MAX_HEADER_BYTES)
        .read_to_string(&mut text);
    if read.is_err() {
        return false;
    }
    let Ok(config) = serde_json::from_str::<serde_json::Value>(&text) else {
        return false;
    };
    config
        .get("architectures")
        .is_some_and(|named| !named.is_null())
}

/// The folders of these files, each with the names of its files without the folder.
pub(super) fn by_folder(names: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut folders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        let folder = folder_of(name);
        folders
            .entry(folder)
            .or_default()
            .push(&name[folder.len()..]);
    }
    folders
}

/// The tensors of several files, ascending by name, with their places. A name in two files appears
/// twice.
pub(super) fn gather<'a>(
    files: impl Iterator<Item = (&'a LayoutFile, &'a FileHeader)>,
) -> (Vec<TensorInfo>, Vec<DataPlace>) {
    let mut all: Vec<(TensorInfo, DataPlace)> = Vec::new();
    for (number, (file, header)) in files.enumerate() {
        let folder = file.folder();
        for (info, offset) in &header.tensors {
            let info = if folder.is_empty() {
                info.clone()
            } else {
                info.renamed(format!("{folder}{}", info.name()))
            };
            all.push((
                info,
                DataPlace {
                    file: number,
                    offset: *offset,
                },
            ));
        }
    }
    all.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));
    all.into_iter().unzip()
}

/// The place of a tensor, and the offset of a range of its bytes in its file.
pub(super) fn locate(
    tensors: &[TensorInfo],
    places: &[DataPlace],
    tensor: usize,
    offset: u64,
    length: usize,
) -> Result<(DataPlace, u64)> {
    let (Some(info), Some(place)) = (tensors.get(tensor), places.get(tensor)) else {
        return Err(Error::usage("no such tensor in the state"));
    };
    let end = offset
        .checked_add(length as u64)
        .filter(|end| *end <= info.bytes());
    // The sum does not overflow: the end of the data was checked with the header, and lies inside
    // the file.
    end.and_then(|_| Some((*place, place.offset.checked_add(offset)?)))
        .ok_or_else(|| Error::usage("no such range in the state").of_tensor(info.name()))
}

#[cfg(test)]
mod tests;
