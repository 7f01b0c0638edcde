//! A state being written as safetensors files that nobody sees before they are complete.
//!
//! Everything is written to a temporary file or directory next to the place where it will be, and renamed when it is
//! complete and on disk. Whatever fails before leaves things as they were.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::{NamedTempFile, TempDir};

use crate::error::{Error, Result};
use crate::files::disk::{
    check_out, copy, create_file, is_absent, parent_of, persist, read_at, reading, replace_directory, sync_directory,
    temporary, write_at, writing,
};
use crate::files::header::Header;
use crate::files::safetensors::{Place, gather, locate};
use crate::files::weight_map::{INDEX_NAME, index_text};
use crate::files::write_back::WriteBack;
use crate::files::{Layout, SafetensorsState};
use crate::plain_name::fold_case;
use crate::tensor::{State, StateWriter, TensorInfo};

/// A state being written as safetensors files. [`StagedSafetensors::commit`] makes it visible; dropped without, it
/// leaves nothing behind.
///
/// A file that has the tensors and `__metadata__` of a file of the base gets that file's header, so that equal states
/// give equal files. Any other header is as the safetensors crate would write it.
#[derive(Debug)]
pub struct StagedSafetensors {
    out: PathBuf,
    replace: bool,
    staging: Staging,
    tensors: Vec<TensorInfo>,
    places: Vec<Place>,
    /// The text of the index file, if the model needs one.
    index: Option<Vec<u8>>,
    /// Files to copy from the base's directory.
    other_files: Vec<PathBuf>,
    write_back: Option<WriteBack>,
    /// Bytes given to the files so far.
    written: AtomicU64,
}

#[derive(Debug)]
enum Staging {
    File(NamedTempFile),
    Directory { directory: TempDir, shards: Vec<(String, File)> },
}

impl StagedSafetensors {
    /// Prepares to write a state with these tensors, ascending by name, to `out`, spread as `layout` says: a file, or a
    /// directory into which the other files of the base's directory are copied too. With `replace`, what is at `out` is
    /// replaced; it may be the base.
    ///
    /// # Errors
    /// USAGE if `out` exists and may not or cannot be replaced, if the layout does not fit these tensors, or if
    /// safetensors cannot hold them; IO if files cannot be created.
    pub fn create(
        out: &Path,
        tensors: &[TensorInfo],
        layout: &Layout,
        base: Option<&SafetensorsState>,
        replace: bool,
    ) -> Result<Self> {
        check_out(out, layout.is_directory(), replace)?;
        let usage = |flaw: String| Error::usage(flaw).in_file(out);
        if !tensors.is_sorted_by(|left, right| left.name() < right.name()) {
            return Err(usage("the tensors are not in ascending order".to_owned()));
        }
        layout.check_covers(tensors).map_err(usage)?;
        let by_name: HashMap<&str, &TensorInfo> = tensors.iter().map(|info| (info.name(), info)).collect();
        let mut headers = Vec::with_capacity(layout.files().len());
        for file in layout.files() {
            let infos: Vec<&TensorInfo> =
                file.tensors.iter().filter_map(|name| by_name.get(name.as_str()).copied()).collect();
            headers.push(match base.and_then(|base| base.header_like(file, &infos)) {
                Some(header) => header.clone(),
                None => Header::build(file.metadata.as_ref(), &infos).map_err(usage)?,
            });
        }
        let (tensors, places) = gather(headers.iter());

        let parent = parent_of(out);
        let staging = if layout.is_directory() {
            let directory = temporary(0o777).tempdir_in(parent).map_err(|error| writing(error, out))?;
            let mut shards = Vec::with_capacity(headers.len());
            for (name, header) in layout.files().iter().filter_map(|file| file.name.as_ref()).zip(&headers) {
                let file = create_file(&directory.path().join(name))
                    .and_then(|file| begin(&file, header).map(|()| file))
                    .map_err(|error| writing(error, &out.join(name)))?;
                shards.push((name.clone(), file));
            }
            Staging::Directory { directory, shards }
        } else {
            let file = temporary(0o666).tempfile_in(parent).map_err(|error| writing(error, out))?;
            for header in &headers {
                begin(file.as_file(), header).map_err(|error| writing(error, out))?;
            }
            Staging::File(file)
        };

        let base_directory = base.filter(|base| layout.is_directory() && base.layout().is_directory());
        let base_index = base_directory.and_then(|base| Some((base.index()?, base.tensors())));
        let index = if layout.files().len() > 1 || base_index.is_some() {
            Some(index_text(layout, &tensors, base_index).map_err(|error| usage(error.to_string()))?)
        } else {
            None
        };
        // Some file systems take names for the same that differ in case.
        let mut taken: BTreeSet<String> =
            layout.files().iter().flat_map(|file| &file.name).map(|name| fold_case(name)).collect();
        taken.insert(fold_case(INDEX_NAME));
        let other_files = base_directory
            .iter()
            .flat_map(|base| base.other_paths())
            .filter(|(name, _)| !name.to_str().is_some_and(|name| taken.contains(&fold_case(name))))
            .map(|(_, path)| path)
            .collect();
        let written = AtomicU64::new(headers.iter().map(|header| header.bytes.len() as u64).sum());
        let out = out.to_owned();
        Ok(Self { out, replace, staging, tensors, places, index, other_files, write_back: None, written })
    }

    /// Names of the files of the base's directory that [`commit`](Self::commit) copies, which no link covers.
    pub fn copied_files(&self) -> Vec<String> {
        let names = self.other_files.iter().filter_map(|path| path.file_name());
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Lets [`commit`](Self::commit) copy no files of the base's directory.
    pub fn leave_other_files(&mut self) {
        self.other_files.clear();
    }

    /// Writes to the disk in the background all the time, so that [`commit`](Self::commit) has to wait only for the
    /// rest. Of use when the bytes come slowly and will be committed.
    ///
    /// # Errors
    /// IO.
    pub fn write_back_early(&mut self) -> Result<()> {
        let files = match &self.staging {
            Staging::File(file) => vec![file.as_file()],
            Staging::Directory { shards, .. } => shards.iter().map(|(_, file)| file).collect(),
        };
        let started = WriteBack::start(&files).map_err(|error| writing(error, &self.out))?;
        self.write_back = Some(started);
        Ok(())
    }

    /// Makes the state visible at `out`, at once and completely, after everything has reached the disk. Returns how many bytes
    /// have been written to all its files; where tensors are zero, nothing is.
    ///
    /// # Errors
    /// IO if something cannot be written, synchronised, copied or renamed; USAGE if meanwhile there is something at
    /// `out`. Then `out` is unchanged, with two exceptions: after the renaming, the directory could not be synced or
    /// the replaced files could not be removed.
    pub fn commit(self) -> Result<u64> {
        let mut written = self.written.into_inner();
        if let Some(write_back) = self.write_back {
            write_back.finish().map_err(|error| writing(error, &self.out))?;
        }
        match self.staging {
            Staging::File(file) => persist(file, &self.out, self.replace)?,
            Staging::Directory { directory, shards } => {
                for (name, file) in shards {
                    file.sync_all().map_err(|error| writing(error, &self.out.join(name)))?;
                }
                if let Some(index) = &self.index {
                    create_file(&directory.path().join(INDEX_NAME))
                        .and_then(|mut file| file.write_all(index).and_then(|()| file.sync_all()))
                        .map_err(|error| writing(error, &self.out.join(INDEX_NAME)))?;
                    written += index.len() as u64;
                }
                for path in &self.other_files {
                    written += copy(path, &directory.path().join(path.file_name().unwrap_or_default()))
                        .map_err(|error| Error::io("copying", error).in_file(path))?;
                }
                sync_directory(directory.path())?;
                check_out(&self.out, true, self.replace)?;
                if is_absent(&self.out) {
                    fs::rename(directory.path(), &self.out).map_err(|error| writing(error, &self.out))?;
                    sync_directory(parent_of(&self.out))?;
                } else {
                    replace_directory(directory.path(), &self.out)?;
                }
                // It has another name now, so there is nothing to remove.
                let _ = directory.keep();
            }
        }
        Ok(written)
    }

    fn file(&self, place: Place) -> Result<&File> {
        match &self.staging {
            Staging::File(file) => Some(file.as_file()),
            Staging::Directory { shards, .. } => shards.get(place.file).map(|(_, file)| file),
        }
        .ok_or_else(|| Error::usage("no such file in the layout"))
    }

    /// What to call a file in messages: the path that it will have.
    fn final_path(&self, place: Place) -> PathBuf {
        match &self.staging {
            Staging::Directory { shards, .. } if place.file < shards.len() => self.out.join(&shards[place.file].0),
            _ => self.out.clone(),
        }
    }
}

impl StateWriter for StagedSafetensors {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let (place, offset) = locate(&self.tensors, &self.places, tensor, offset, bytes.len())?;
        write_at(self.file(place)?, bytes, offset).map_err(|error| writing(error, &self.final_path(place)))?;
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if let Some(write_back) = &self.write_back {
            write_back.note(place.file, bytes.len() as u64);
        }
        Ok(())
    }
}

/// Reads what has been written.
impl State for StagedSafetensors {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let (place, offset) = locate(&self.tensors, &self.places, tensor, offset, out.len())?;
        read_at(self.file(place)?, out, offset).map_err(|error| reading(error, &self.final_path(place)))
    }
}

/// Writes the header and gives the file its length; the data is zero until written.
fn begin(file: &File, header: &Header) -> io::Result<()> {
    write_at(file, &header.bytes, 0)?;
    file.set_len(header.file_bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;
    use crate::error::ErrorClass;
    use crate::files::header::file_of;
    use crate::tensor::{Dtype, MemoryState};

    const ODD: &str = r#" {"z":{"shape":[2],"dtype":"U8","data_offsets":[0,2]}, "Ma\u00df":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},
        "none":{"dtype":"BF16","shape":[0,3],"data_offsets":[6,6]}, "__metadata__":{"b":"2","a":"1"}}   "#;
    const ODD_DATA: [u8; 6] = [1, 2, 3, 4, 5, 6];
    const INDEX: &str =
        r#"{"weight_map": {"a":"2.safetensors", "b":"1.safetensors"}, "metadata":{"total_size":3,"note":[1]}}"#;

    /// Writes all of `state`, in small steps, and commits.
    fn write(state: &impl State, staged: StagedSafetensors) -> Result<u64> {
        for (number, info) in state.tensors().iter().enumerate() {
            for offset in 0..info.bytes() {
                let mut byte = [0];
                state.read(number, offset, &mut byte)?;
                staged.write(number, offset, &byte)?;
            }
        }
        assert_eq!(MemoryState::copy_of(&staged)?, MemoryState::copy_of(state)?);
        staged.commit()
    }

    fn rewrite(base: &SafetensorsState, out: &Path, replace: bool) -> Result<u64> {
        write(base, StagedSafetensors::create(out, base.tensors(), base.layout(), Some(base), replace)?)
    }

    /// Writes a directory of two shards with an index and other files.
    fn make_shards(folder: &Path) -> SafetensorsState {
        fs::create_dir(folder).unwrap();
        let a = r#"{ "a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{"format":"pt"}}"#;
        fs::write(folder.join("2.safetensors"), file_of(a, &[1, 2])).unwrap();
        let b = r#"{"b" :{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;
        fs::write(folder.join("1.safetensors"), file_of(b, &[3])).unwrap();
        fs::write(folder.join(INDEX_NAME), INDEX).unwrap();
        fs::write(folder.join("Wörter buch.json"), "words").unwrap();
        fs::write(folder.join(".hidden"), "").unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        SafetensorsState::open(folder).unwrap()
    }

    fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap_or_default()))
            .collect()
    }

    fn refused(result: Result<impl Sized>, text: &str) {
        let error = result.map(|_| ()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage, "{error}");
        assert!(error.to_string().contains(text) && error.file().is_some(), "{error}");
    }

    #[test]
    fn an_equal_state_gives_an_equal_file() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("nach her \u{1F9EE}"));
        fs::write(&before, file_of(ODD, &ODD_DATA)).unwrap();
        let base = SafetensorsState::open(&before).unwrap();
        rewrite(&base, &after, false).unwrap();
        assert_eq!(fs::read(&before).unwrap(), fs::read(&after).unwrap());
        assert_eq!(contents(folder.path()).len(), 2);
    }

    #[test]
    fn another_header_is_one_of_the_safetensors_crate() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        fs::write(&before, file_of(ODD, &ODD_DATA)).unwrap();
        let base = SafetensorsState::open(&before).unwrap();
        let mut target = MemoryState::copy_of(&base).unwrap();
        target.insert("z", Dtype::U8, &[2, 1], vec![7, 8]).unwrap();
        let layout = base.layout().carried_over(target.tensors());
        write(&target, StagedSafetensors::create(&after, target.tensors(), &layout, Some(&base), false).unwrap())
            .unwrap();

        let bytes = fs::read(&after).unwrap();
        let (_, read) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(read.offset_keys(), ["Maß", "none", "z"]);
        assert_eq!(read.metadata().as_ref().unwrap().len(), 2);
        let reopened = SafetensorsState::open(&after).unwrap();
        assert_eq!(MemoryState::copy_of(&reopened).unwrap(), target);
        assert_eq!(*reopened.layout(), layout);
    }

    #[test]
    fn an_equal_directory_is_equal_in_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        let base = make_shards(&before);
        rewrite(&base, &after, false).unwrap();
        let mut expected = contents(&before);
        assert!(expected.remove(".hidden").is_some() && expected.remove("folder").is_some());
        assert_eq!(contents(&after), expected);
        assert_eq!(expected.len(), 4);
        // Replacing the base itself is allowed: everything is read before.
        let base = SafetensorsState::open(&after).unwrap();
        rewrite(&base, &after, true).unwrap();
        assert_eq!(contents(&after), expected);
        assert_eq!(contents(folder.path()).len(), 2);
    }

    #[test]
    fn other_files_can_be_left() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        let base = make_shards(&before);
        let mut staged = StagedSafetensors::create(&after, base.tensors(), base.layout(), Some(&base), false).unwrap();
        assert_eq!(staged.copied_files(), ["Wörter buch.json"]);
        staged.leave_other_files();
        assert_eq!(staged.copied_files(), [""; 0]);
        write(&base, staged).unwrap();
        assert_eq!(contents(&after).into_keys().collect::<Vec<_>>(), ["1.safetensors", "2.safetensors", INDEX_NAME]);
    }

    #[test]
    fn a_changed_directory_gets_a_new_index() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        let base = make_shards(&before);
        let mut wider = MemoryState::copy_of(&base).unwrap();
        wider.insert("b", Dtype::U8, &[3], vec![5; 3]).unwrap();
        let wider_map = serde_json::json!({ "a": "2.safetensors", "b": "1.safetensors" });
        let mut other = MemoryState::copy_of(&base).unwrap();
        other.remove("b");
        other.insert("c", Dtype::U8, &[], vec![5]).unwrap();
        let other_map = serde_json::json!({ "a": "2.safetensors", "c": "2.safetensors" });

        // The same tensors in the same files yet another size; then the same size, yet other tensors.
        for (target, total_size, weight_map) in [(wider, 5, wider_map), (other, 3, other_map)] {
            let layout = base.layout().carried_over(target.tensors());
            let staged = StagedSafetensors::create(&after, target.tensors(), &layout, Some(&base), true).unwrap();
            write(&target, staged).unwrap();
            let index: Value = serde_json::from_slice(&fs::read(after.join(INDEX_NAME)).unwrap()).unwrap();
            let metadata = serde_json::json!({ "total_size": total_size, "note": [1] });
            assert_eq!(index, serde_json::json!({ "metadata": metadata, "weight_map": weight_map }));
            assert_eq!(MemoryState::copy_of(&SafetensorsState::open(&after).unwrap()).unwrap(), target);
        }
    }

    #[test]
    fn an_emptied_directory_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        let base = make_shards(&before);
        let layout = base.layout().carried_over(&[]);
        StagedSafetensors::create(&after, &[], &layout, Some(&base), false).unwrap().commit().unwrap();
        let reopened = SafetensorsState::open(&after).unwrap();
        assert!(reopened.tensors().is_empty());
        assert_eq!(*reopened.layout(), layout);
    }

    #[test]
    fn a_directory_of_one_file_needs_no_index() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let mut target = MemoryState::new();
        target.insert("Größe", Dtype::F4, &[2], vec![0x21]).unwrap();
        let layout =
            Layout::parse(r#"{"files":[{"name":"m.safetensors","metadata":null,"tensors":null}]}"#, target.tensors())
                .unwrap();
        write(&target, StagedSafetensors::create(&out, target.tensors(), &layout, None, false).unwrap()).unwrap();
        assert_eq!(contents(&out).into_keys().collect::<Vec<_>>(), ["m.safetensors"]);
        assert_eq!(MemoryState::copy_of(&SafetensorsState::open(&out).unwrap()).unwrap(), target);
    }

    #[test]
    fn other_files_do_not_displace_shards() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        make_shards(&before);
        fs::write(before.join("New.safetensors"), "stale").unwrap();
        let base = SafetensorsState::open(&before).unwrap();
        assert!(base.other_files().contains(&"New.safetensors".to_owned()));
        let layout =
            Layout::parse(r#"{"files":[{"name":"new.safetensors","metadata":null,"tensors":null}]}"#, base.tensors())
                .unwrap();
        write(&base, StagedSafetensors::create(&after, base.tensors(), &layout, Some(&base), false).unwrap()).unwrap();
        let files = contents(&after);
        assert_eq!(files.keys().collect::<Vec<_>>(), ["Wörter buch.json", INDEX_NAME, "new.safetensors"]);
        assert_ne!(files["new.safetensors"], b"stale");
    }

    #[test]
    fn what_exists_is_kept_unless_it_is_to_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (base, out) = (folder.path().join("base"), folder.path().join("out"));
        fs::write(&base, file_of(ODD, &ODD_DATA)).unwrap();
        let base = SafetensorsState::open(&base).unwrap();
        let create = |replace| StagedSafetensors::create(&out, base.tensors(), base.layout(), Some(&base), replace);

        // It appears after the check.
        let staged = create(true).unwrap();
        fs::create_dir(&out).unwrap();
        refused(staged.commit(), "only a file");
        fs::remove_dir(&out).unwrap();
        let staged = create(false).unwrap();
        fs::write(&out, "precious").unwrap();
        refused(staged.commit(), "exists");
        refused(create(false), "exists");
        assert_eq!(fs::read(&out).unwrap(), b"precious");
        assert_eq!(contents(folder.path()).len(), 2);

        let staged = create(true).unwrap();
        assert_eq!(fs::read(&out).unwrap(), b"precious");
        write(&base, staged).unwrap();
        assert_eq!(fs::read(&out).unwrap(), file_of(ODD, &ODD_DATA));

        fs::remove_file(&out).unwrap();
        fs::create_dir(&out).unwrap();
        refused(create(true), "only a file");
        refused(StagedSafetensors::create(Path::new(".."), base.tensors(), base.layout(), None, true), "no name");
    }

    #[test]
    fn a_directory_with_more_than_plain_files_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let base = make_shards(&folder.path().join("base"));
        let out = folder.path().join("out");
        let create = |replace| StagedSafetensors::create(&out, base.tensors(), base.layout(), Some(&base), replace);
        refused(rewrite(&base, base.path(), true), "would remove");

        let staged = create(false).unwrap();
        fs::create_dir(&out).unwrap();
        refused(staged.commit(), "exists");
        refused(create(false), "exists");
        fs::write(out.join("old.txt"), "").unwrap();
        let staged = create(true).unwrap();
        fs::create_dir(out.join("sub")).unwrap();
        refused(create(true), "\"sub\"");
        fs::remove_dir(out.join("sub")).unwrap();
        fs::write(out.join(".git"), "").unwrap();
        refused(create(true), "\".git\"");
        fs::remove_file(out.join(".git")).unwrap();
        write(&base, staged).unwrap();
        assert!(!contents(&out).contains_key("old.txt"));
        assert_eq!(contents(folder.path()).len(), 2);

        fs::remove_dir_all(&out).unwrap();
        fs::write(&out, "").unwrap();
        refused(create(true), "only a directory");
    }

    #[test]
    fn dropping_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let base = make_shards(&folder.path().join("base"));
        let single = Layout::single_file(base.tensors());
        for layout in [base.layout(), &single] {
            let out = folder.path().join("out");
            let staged = StagedSafetensors::create(&out, base.tensors(), layout, Some(&base), false).unwrap();
            staged.write(0, 0, &[1]).unwrap();
            assert_eq!(contents(folder.path()).len(), 2);
            assert!(!out.exists());
            drop(staged);
            assert_eq!(contents(folder.path()).len(), 1);
        }
        // A file of the base that vanishes is found late.
        fs::write(base.path().join("late"), "").unwrap();
        let base = SafetensorsState::open(base.path()).unwrap();
        let out = folder.path().join("out");
        let staged = StagedSafetensors::create(&out, base.tensors(), base.layout(), Some(&base), false).unwrap();
        fs::remove_file(base.path().join("late")).unwrap();
        let error = staged.commit().unwrap_err();
        assert!(error.file().unwrap().ends_with("late"), "{error}");
        assert_eq!(contents(folder.path()).len(), 1);
        let nowhere = folder.path().join("no").join("out");
        let error = StagedSafetensors::create(&nowhere, &[], &Layout::single_file(&[]), None, false).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Io);
    }

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let info = |name: &str| TensorInfo::new(name, Dtype::U8, [4]).unwrap();
        let create =
            |tensors: &[TensorInfo], layout: &Layout| StagedSafetensors::create(&out, tensors, layout, None, false);
        let sorted = [info("a"), info("b")];
        let unsorted = [info("b"), info("a")];
        refused(create(&unsorted, &Layout::single_file(&unsorted)), "ascending");
        refused(create(&sorted, &Layout::single_file(&sorted[..1])), "does not list the tensor \"b\"");
        refused(create(&sorted[..1], &Layout::single_file(&sorted)), "does not have");
        let reserved = [info("__metadata__")];
        refused(create(&reserved, &Layout::single_file(&reserved)), "named __metadata__");
        assert!(contents(folder.path()).is_empty());

        let staged = create(&sorted, &Layout::single_file(&sorted)).unwrap();
        staged.write(1, 1, &[1, 2]).unwrap();
        for (tensor, offset) in [(0, 3), (1, u64::MAX), (2, 0)] {
            assert_eq!(staged.write(tensor, offset, &[1, 2]).unwrap_err().class(), ErrorClass::Usage);
        }
        let copy = MemoryState::copy_of(&staged).unwrap();
        assert_eq!((copy.get("a").unwrap().1, copy.get("b").unwrap().1), (&[0; 4][..], &[0, 1, 2, 0][..]));
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_the_usual_ones() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        fs::write(folder.path().join("plain"), "").unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let named =
            Layout::parse(r#"{"files":[{"name":"m.safetensors","metadata":null,"tensors":null}]}"#, &[]).unwrap();
        for (name, layout) in [("file", &Layout::single_file(&[])), ("directory", &named)] {
            StagedSafetensors::create(&folder.path().join(name), &[], layout, None, false).unwrap().commit().unwrap();
        }
        assert_eq!(mode("file"), mode("plain"));
        assert_eq!(mode("directory"), mode("folder"));
        assert_eq!(mode("directory/m.safetensors"), mode("plain"));
    }
}
