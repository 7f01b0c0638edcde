//! A state in safetensors files: one file, or a directory of shards with or without an index.
//!
//! Files are untrusted: everything their headers and the index say is checked before it is believed. Data is read by
//! position, not mapped, so that a file cut short by someone else is an error and not a crash.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::disk::{read_at, reading};
use crate::files::header::{Header, LENGTH_BYTES, MAX_HEADER_BYTES};
use crate::files::layout::FILE_SUFFIX;
use crate::files::weight_map::{INDEX_NAME, Index};
use crate::files::{Layout, LayoutFile};
use crate::tensor::{State, TensorInfo};

/// A state in safetensors files.
#[derive(Debug)]
pub struct SafetensorsState {
    path: PathBuf,
    /// As many as the layout has files, in their order.
    shards: Vec<Shard>,
    layout: Layout,
    tensors: Vec<TensorInfo>,
    places: Vec<Place>,
    index: Option<Index>,
    other_files: Vec<OsString>,
}

/// One opened file.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    header: Header,
}

/// Where the data of a tensor begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Number of the file.
    pub(super) file: usize,
    /// Offset in the file.
    pub(super) offset: u64,
}

impl SafetensorsState {
    /// Opens a safetensors file, or a directory: the files that its `model.safetensors.index.json` names, or without
    /// an index all whose names end in `.safetensors`. Reads headers only.
    ///
    /// # Errors
    /// IO if something cannot be read; USAGE if it is not safetensors, if files contradict each other or the index, or
    /// if a layout cannot hold the names of the files (SPEC section 12).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let kind = fs::metadata(path).map_err(|error| reading(error, path))?;
        if kind.is_dir() {
            Self::open_directory(path)
        } else if kind.is_file() {
            let shard = Shard::open(path.to_owned())?;
            Self::assemble(path, vec![(None, shard)], None, Vec::new())
        } else {
            Err(Error::usage("neither a file nor a directory").in_file(path))
        }
    }

    fn open_directory(path: &Path) -> Result<Self> {
        let files = plain_files(path)?;
        let index_path = path.join(INDEX_NAME);
        let index = if files.iter().any(|name| name == INDEX_NAME) { Some(Index::read(&index_path)?) } else { None };
        let indexed: BTreeSet<&str> =
            index.iter().flat_map(|index| index.weight_map.values()).map(String::as_str).collect();
        // The index of a state without tensors names no file.
        let names: BTreeSet<OsString> = if indexed.is_empty() {
            let is_shard = |name: &&OsString| name.as_encoded_bytes().ends_with(FILE_SUFFIX.as_bytes());
            files.iter().filter(is_shard).cloned().collect()
        } else {
            indexed.iter().map(OsString::from).collect()
        };
        if names.is_empty() {
            return Err(Error::usage("the directory holds no .safetensors file").in_file(path));
        }
        // Names are checked before any is used as a path: an index can hold any names.
        let mut layout_files = Vec::with_capacity(names.len());
        for name in &names {
            let name =
                name.to_str().ok_or_else(|| Error::usage("the file name is not Unicode").in_file(path.join(name)))?;
            layout_files.push(LayoutFile { name: Some(name.to_owned()), metadata: None, tensors: Vec::new() });
        }
        let layout = Layout::new(layout_files).map_err(|flaw| Error::usage(flaw).in_file(path))?;

        let mut shards = Vec::with_capacity(names.len());
        for name in layout.files().iter().filter_map(|file| file.name.clone()) {
            let shard = Shard::open(path.join(&name))?;
            shards.push((Some(name), shard));
        }
        let is_other =
            |name: &OsString| name != INDEX_NAME && !names.contains(name) && !name.as_encoded_bytes().starts_with(b".");
        let other_files = files.into_iter().filter(is_other).collect();
        let state = Self::assemble(path, shards, index, other_files)?;
        state.check_index().map_err(|flaw| Error::usage(flaw).in_file(index_path))?;
        Ok(state)
    }

    fn assemble(
        path: &Path,
        named: Vec<(Option<String>, Shard)>,
        index: Option<Index>,
        other_files: Vec<OsString>,
    ) -> Result<Self> {
        let mut files = Vec::with_capacity(named.len());
        let mut shards = Vec::with_capacity(named.len());
        for (name, shard) in named {
            let tensors = shard.header.tensors.iter().map(|(info, _)| info.name().to_owned()).collect();
            files.push(LayoutFile { name, metadata: shard.header.metadata.clone(), tensors });
            shards.push(shard);
        }
        let layout = Layout::new(files).map_err(|flaw| Error::usage(flaw).in_file(path))?;
        let (tensors, places) = gather(shards.iter().map(|shard| &shard.header));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name() == pair[1].name()) {
            return Err(Error::usage("two files hold a tensor of this name").of_tensor(pair[0].name()).in_file(path));
        }
        Ok(Self { path: path.to_owned(), shards, layout, tensors, places, index, other_files })
    }

    /// Checks that index and files agree on which file holds which tensor. The error names a tensor that is wrong.
    fn check_index(&self) -> Result<(), String> {
        let Some(index) = &self.index else { return Ok(()) };
        for file in self.layout.files() {
            for tensor in &file.tensors {
                if index.weight_map.get(tensor) != file.name.as_ref() {
                    return Err(format!(
                        "the index does not say that the tensor {tensor:?} is in {:?}",
                        file.name.as_deref().unwrap_or_default()
                    ));
                }
            }
        }
        match index.weight_map.iter().find(|(tensor, _)| self.find(tensor).is_none()) {
            Some((tensor, file)) => Err(format!("{file:?} does not hold the tensor {tensor:?}, as the index says")),
            None => Ok(()),
        }
    }

    /// How the state is spread over files.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the plain files in the directory that are neither shards nor index nor hidden, in order: no link
    /// covers them. None for a state in a single file.
    pub fn other_files(&self) -> Vec<String> {
        self.other_files.iter().map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Paths of the other files, with their names.
    pub(super) fn other_paths(&self) -> impl Iterator<Item = (&OsString, PathBuf)> {
        self.other_files.iter().map(|name| (name, self.path.join(name)))
    }

    pub(super) fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }

    /// The header of a file with these tensors and this `__metadata__`, if there is such a file; at best of this name.
    pub(super) fn header_like(&self, file: &LayoutFile, tensors: &[&TensorInfo]) -> Option<&Header> {
        let mut alike: Vec<(&LayoutFile, &Header)> = self
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
        let shard = &self.shards[place.file];
        read_at(&shard.file, out, offset).map_err(|error| reading(error, &shard.path))
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self> {
        let refuse = |flaw: &str| Err(Error::usage(format!("not a safetensors file: {flaw}")).in_file(&path));
        let file = File::open(&path).map_err(|error| reading(error, &path))?;
        let status = file.metadata().map_err(|error| reading(error, &path))?;
        if !status.is_file() {
            return refuse("it is not a plain file");
        }
        let mut length = [0; LENGTH_BYTES];
        if status.len() < LENGTH_BYTES as u64 {
            return refuse("it is too short");
        }
        read_at(&file, &mut length, 0).map_err(|error| reading(error, &path))?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > status.len() - LENGTH_BYTES as u64 {
            return refuse("the header would end beyond the file");
        }
        let Some(header_bytes) = usize::try_from(header_bytes).ok().filter(|_| header_bytes <= MAX_HEADER_BYTES) else {
            return refuse(&format!("the header is longer than {MAX_HEADER_BYTES} bytes"));
        };
        let mut bytes = vec![0; LENGTH_BYTES + header_bytes];
        read_at(&file, &mut bytes, 0).map_err(|error| reading(error, &path))?;
        let header = match Header::parse(bytes) {
            Ok(header) => header,
            Err(flaw) => return refuse(&flaw),
        };
        if header.file_bytes != status.len() {
            return refuse(&format!("its header calls for {} bytes, it has {}", header.file_bytes, status.len()));
        }
        Ok(Self { path, file, header })
    }
}

/// Names of the files in a directory, also behind links, in order.
fn plain_files(directory: &Path) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| reading(error, directory))? {
        let entry = entry.map_err(|error| reading(error, directory))?;
        if entry.path().is_file() {
            names.push(entry.file_name());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The tensors of several files, ascending by name, with their places. A name in two files appears twice.
pub(super) fn gather<'a>(headers: impl Iterator<Item = &'a Header>) -> (Vec<TensorInfo>, Vec<Place>) {
    let mut all: Vec<(TensorInfo, Place)> = (0..)
        .zip(headers)
        .flat_map(|(file, header)| {
            header.tensors.iter().map(move |(info, offset)| (info.clone(), Place { file, offset: *offset }))
        })
        .collect();
    all.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));
    all.into_iter().unzip()
}

/// The place of a tensor and the offset in its file of a range of its bytes.
pub(super) fn locate(
    tensors: &[TensorInfo],
    places: &[Place],
    tensor: usize,
    offset: u64,
    length: usize,
) -> Result<(Place, u64)> {
    let (Some(info), Some(place)) = (tensors.get(tensor), places.get(tensor)) else {
        return Err(Error::usage("no such tensor in the state"));
    };
    let end = offset.checked_add(length as u64).filter(|end| *end <= info.bytes());
    // The sum is the smaller of two that were checked with the header: the data ends inside the file.
    end.and_then(|_| Some((*place, place.offset.checked_add(offset)?)))
        .ok_or_else(|| Error::usage("no such range in the state").of_tensor(info.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;
    use crate::files::header::file_of;
    use crate::tensor::{Dtype, MemoryState};

    const A: &str = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    const B: &str = r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;

    fn usage(path: &Path, text: &str) {
        let error = SafetensorsState::open(path).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        let file = error.file().unwrap();
        assert!(file.starts_with(path.to_str().unwrap()), "{file}");
    }

    #[test]
    fn a_file_is_read_by_position() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Größe 1 \u{1F9EE}.anything");
        let json = r#" {"z":{"shape":[],"dtype":"U8","data_offsets":[0,1]}, "Maß\n":{"dtype":"BF16","shape":[0,3],"data_offsets":[1,1]},
            "b":{"dtype":"F32","shape":[1,2],"data_offsets":[1,9]},"__metadata__":{"format":"pt"}}  "#;
        fs::write(&path, file_of(json, &[9, 1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
        let state = SafetensorsState::open(&path).unwrap();
        assert_eq!(state.path(), path);
        assert_eq!(state.other_files(), [""; 0]);
        assert!(!state.layout().is_directory());
        assert_eq!(state.layout().to_json(), r#"{"files":[{"name":null,"metadata":{"format":"pt"},"tensors":null}]}"#);
        assert_eq!(state.layout().files()[0].tensors, ["Maß\n", "b", "z"]);

        let mut expected = MemoryState::new();
        expected.insert("z", Dtype::U8, &[], vec![9]).unwrap();
        expected.insert("Maß\n", Dtype::BF16, &[0, 3], vec![]).unwrap();
        expected.insert("b", Dtype::F32, &[1, 2], vec![1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(MemoryState::copy_of(&state).unwrap(), expected);

        let mut bytes = [0; 3];
        state.read(1, 5, &mut bytes).unwrap();
        assert_eq!(bytes, [6, 7, 8]);
        for (tensor, offset) in [(1, 6), (1, u64::MAX), (2, 0), (3, 0)] {
            assert_eq!(state.read(tensor, offset, &mut bytes).unwrap_err().class(), ErrorClass::Usage);
        }
    }

    #[test]
    fn all_dtypes_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.safetensors");
        let mut memory = MemoryState::new();
        for dtype in Dtype::all() {
            let length = usize::try_from(dtype.bits()).unwrap();
            memory.insert(dtype.name(), dtype, &[2, 4], vec![dtype.code(); length]).unwrap();
        }
        let header = Header::build(None, &memory.tensors().iter().collect::<Vec<_>>()).unwrap();
        let mut file = header.bytes.clone();
        file.resize(usize::try_from(header.file_bytes).unwrap(), 0);
        for (info, offset) in &header.tensors {
            let start = usize::try_from(*offset).unwrap();
            let data = memory.get(info.name()).unwrap().1;
            file[start..start + data.len()].copy_from_slice(data);
        }
        fs::write(&path, file).unwrap();
        let state = SafetensorsState::open(&path).unwrap();
        assert_eq!(state.tensors().len(), 22);
        assert_eq!(MemoryState::copy_of(&state).unwrap(), memory);
    }

    #[test]
    fn files_of_another_length_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let whole = file_of(A, &[1, 2]);
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            usage(&path, "not a safetensors file: ");
        }
        fs::write(&path, &whole).unwrap();
        assert!(SafetensorsState::open(&path).is_ok());
        fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        usage(&path, "calls for 63 bytes, it has 64");
        fs::write(&path, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
        usage(&path, "beyond the file");
        let huge = File::create(&path).unwrap();
        huge.set_len(MAX_HEADER_BYTES + 9).unwrap();
        std::io::Write::write_all(&mut &huge, &(MAX_HEADER_BYTES + 1).to_le_bytes()).unwrap();
        usage(&path, "longer than 100000000 bytes");
    }

    #[test]
    fn what_is_not_there_is_an_io_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = SafetensorsState::open(folder.path().join("missing")).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Io);
        assert!(error.file().unwrap().ends_with("missing"));
        usage(folder.path(), "holds no .safetensors file");
    }

    #[test]
    fn a_directory_without_index_is_all_its_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("2.safetensors"), file_of(A, &[1, 2])).unwrap();
        fs::write(folder.path().join("1.safetensors"), file_of(B, &[3])).unwrap();
        fs::write(folder.path().join("tokenizer.json"), "").unwrap();
        fs::write(folder.path().join(".hidden"), "").unwrap();
        fs::create_dir(folder.path().join("folder.safetensors")).unwrap();
        let state = SafetensorsState::open(folder.path()).unwrap();
        assert_eq!(
            state.layout().to_json(),
            r#"{"files":[{"name":"1.safetensors","metadata":null,"tensors":["b"]},{"name":"2.safetensors","metadata":null,"tensors":["a"]}]}"#
        );
        assert_eq!(state.other_files(), ["tokenizer.json"]);
        let copy = MemoryState::copy_of(&state).unwrap();
        assert_eq!((copy.get("a").unwrap().1, copy.get("b").unwrap().1), (&[1, 2][..], &[3][..]));

        fs::write(
            folder.path().join("3.safetensors"),
            file_of(&A.replace('a', "\\u0061").replace("d\\u0061t\\u0061", "data"), &[1, 2]),
        )
        .unwrap();
        usage(folder.path(), "two files hold a tensor of this name");
        fs::remove_file(folder.path().join("3.safetensors")).unwrap();
        fs::write(folder.path().join("con.safetensors"), file_of("{}", &[])).unwrap();
        usage(folder.path(), "Windows device name");
    }

    #[test]
    fn an_index_says_which_files_count() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("1.safetensors"), file_of(A, &[1, 2])).unwrap();
        fs::write(folder.path().join("2.safetensors"), file_of(B, &[3])).unwrap();
        fs::write(folder.path().join("all.safetensors"), file_of(A, &[1, 2])).unwrap();
        let index = |text: &str| fs::write(folder.path().join(INDEX_NAME), text).unwrap();

        index(r#"{"metadata":{"total_size":3},"weight_map":{"a":"1.safetensors","b":"2.safetensors"},"more":[]}"#);
        let state = SafetensorsState::open(folder.path()).unwrap();
        assert_eq!(state.tensors().len(), 2);
        assert_eq!(state.layout().files().len(), 2);
        assert_eq!(state.other_files(), ["all.safetensors"]);

        index(r#"{"weight_map":{"b":"2.safetensors"}}"#);
        assert_eq!(SafetensorsState::open(folder.path()).unwrap().tensors().len(), 1);

        for (text, message) in [
            ("", "not an index"),
            ("{}", "not an index"),
            (r#"{"weight_map":{"a":1}}"#, "not an index"),
            (r#"{"weight_map":{"a":"1.safetensors","\u0061":"1.safetensors"}}"#, "appears twice"),
            (r#"{"weight_map":{"a":"2.safetensors","b":"2.safetensors"}}"#, "does not hold the tensor \"a\""),
            (r#"{"weight_map":{"c":"1.safetensors"}}"#, "does not say that the tensor \"a\""),
            (r#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}"#, "does not say that the tensor"),
            (r#"{"weight_map":{"a":"../1.safetensors"}}"#, "is a path"),
            (r#"{"weight_map":{"a":"/1.safetensors"}}"#, "is a path"),
            (r#"{"weight_map":{"a":".."}}"#, "is a path"),
            (r#"{"weight_map":{"a":"1.bin"}}"#, "does not end in"),
            (r#"{"weight_map":{}}"#, "two files hold"),
        ] {
            index(text);
            usage(folder.path(), message);
        }
        index(r#"{"weight_map":{"a":"missing.safetensors"}}"#);
        assert_eq!(SafetensorsState::open(folder.path()).unwrap_err().class(), ErrorClass::Io);
    }
}
