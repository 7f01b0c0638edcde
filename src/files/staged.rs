//! A state being written as safetensors files, which become visible when they are complete.
//!
//! Everything is written to a temporary file or directory next to its final place, and renamed when
//! it is complete and on disk. A failure before that leaves everything unchanged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::files::beside::{check_out, folders_of, indexed, others};
use crate::files::disk::{
    check_directory, create_file, create_folder, is_absent, parent_of, replace_directory,
    sync_directory, temporary, write_at, writing,
};
use crate::files::file_source::FileSource;
use crate::files::header::FileHeader;
use crate::files::output_file::OutputFile;
use crate::files::safetensors::{DataPlace, gather, locate};
use crate::files::weight_map::index_text;
use crate::files::write_back::WriteBack;
use crate::files::{Layout, SafetensorsState};
use crate::plain_name::folder_of;
use crate::tensor::{StateWriter, TensorInfo, total_bytes};

/// A state being written as safetensors files. [`StagedSafetensors::commit`] makes it visible; if
/// dropped without that, it leaves nothing behind.
///
/// A file that has the tensors and `__metadata__` of a file of the base gets that file's header, so
/// that equal states give equal files. Any other header is as the safetensors crate would write it.
#[derive(Debug)]
pub struct StagedSafetensors {
    out: PathBuf,
    replace: bool,
    staging: StagingPlace,
    tensors: Vec<TensorInfo>,
    places: Vec<DataPlace>,
    /// Names and texts of the index files that the model needs.
    indexes: BTreeMap<String, Vec<u8>>,
    /// Files to copy from the base's directory, with their names.
    other_files: Vec<(OsString, PathBuf)>,
    write_back: Option<WriteBack>,
    /// Bytes written to the files so far.
    written: AtomicU64,
}

#[derive(Debug)]
enum StagingPlace {
    File(OutputFile),
    Directory {
        directory: TempDir,
        shards: Vec<(String, File)>,
    },
}

impl StagingPlace {
    /// Creates the files of a layout, which begin with these headers, beside `out`.
    fn create(out: &Path, layout: &Layout, headers: &[FileHeader], replace: bool) -> Result<Self> {
        if !layout.is_directory() {
            let file = OutputFile::create(out, replace)?;
            for header in headers {
                begin(file.file(), header).map_err(|error| writing(error, out))?;
            }
            return Ok(Self::File(file));
        }
        let directory = temporary(0o777)
            .tempdir_in(parent_of(out))
            .map_err(|error| writing(error, out))?;
        let mut shards = Vec::with_capacity(headers.len());
        let names = layout.files().iter().filter_map(|file| file.name.as_ref());
        for (name, header) in names.zip(headers) {
            let file = create_folder(directory.path(), folder_of(name))
                .and_then(|()| create_file(&directory.path().join(name)))
                .and_then(|file| begin(&file, header).map(|()| file))
                .map_err(|error| writing(error, &out.join(name)))?;
            shards.push((name.clone(), file));
        }
        Ok(Self::Directory { directory, shards })
    }
}

/// The headers of a layout's files: those of the base where they fit, so that equal states give
/// equal files.
fn headers_of(
    tensors: &[TensorInfo],
    layout: &Layout,
    base: Option<&SafetensorsState>,
) -> Result<Vec<FileHeader>, String> {
    let by_name: HashMap<&str, &TensorInfo> =
        tensors.iter().map(|info| (info.name(), info)).collect();
    let mut headers = Vec::with_capacity(layout.files().len());
    for file in layout.files() {
        let infos = file.tensors.iter().filter_map(|name| {
            let inside = name.strip_prefix(file.folder())?;
            by_name.get(name.as_str()).map(|info| info.renamed(inside))
        });
        let infos: Vec<TensorInfo> = infos.collect();
        let infos: Vec<&TensorInfo> = infos.iter().collect();
        headers.push(match base.and_then(|base| base.header_like(file, &infos)) {
            Some(header) => header.clone(),
            None => FileHeader::build(file.metadata.as_ref(), &infos)?,
        });
    }
    Ok(headers)
}

/// A directory that is about to become visible.
struct NewDirectory<'a> {
    /// Path of the temporary directory.
    path: &'a Path,
    shards: Vec<(String, File)>,
    indexes: &'a BTreeMap<String, Vec<u8>>,
    other_files: &'a [(OsString, PathBuf)],
    /// Path that the directory will have.
    out: &'a Path,
    replace: bool,
}

/// Completes a directory, waits until all of it is on disk, and renames it. Returns the number of
/// bytes written to its indexes and other files.
fn commit_directory(new: NewDirectory<'_>) -> Result<u64> {
    let mut written = 0;
    let mut folders = BTreeSet::new();
    let mut files = BTreeSet::new();
    for (name, file) in new.shards {
        file.sync_all()
            .map_err(|error| writing(error, &new.out.join(&name)))?;
        folders.extend(folders_of(&name));
        files.insert(name);
    }
    for (name, index) in new.indexes {
        create_file(&new.path.join(name))
            .and_then(|mut file| file.write_all(index).and_then(|()| file.sync_all()))
            .map_err(|error| writing(error, &new.out.join(name)))?;
        written += index.len() as u64;
    }
    for (name, path) in new.other_files {
        let shown = name.to_string_lossy();
        create_folder(new.path, folder_of(&shown)).map_err(|error| writing(error, path))?;
        written += copy(path, &new.path.join(name))?;
        folders.extend(folders_of(&shown));
        files.insert(shown.into_owned());
    }
    for folder in &folders {
        sync_directory(&new.path.join(folder))?;
    }
    sync_directory(new.path)?;
    check_directory(new.out, &files, new.replace)?;
    if !is_absent(new.out) {
        return replace_directory(new.path, new.out).map(|()| written);
    }
    fs::rename(new.path, new.out).map_err(|error| writing(error, new.out))?;
    sync_directory(parent_of(new.out))?;
    Ok(written)
}

impl StagedSafetensors {
    /// Prepares to write a state with these tensors, ascending by name, to `out`, spread as
    /// `layout` says: a file, or a directory into which the other files of the base's directory are
    /// copied too. With `replace`, an existing output is replaced; it may be the base. A directory
    /// is replaced if each file in it is a file of tensors or has a successor.
    ///
    /// # Errors
    /// USAGE if `out` exists and may not or cannot be replaced, if the layout does not fit these
    /// tensors, or if safetensors cannot hold them; IO if files cannot be created.
    pub fn create(
        out: &Path,
        tensors: &[TensorInfo],
        layout: &Layout,
        base: Option<&SafetensorsState>,
        replace: bool,
    ) -> Result<Self> {
        let base_directory =
            base.filter(|base| layout.is_directory() && base.layout().is_directory());
        let indexed = indexed(layout, base_directory);
        let other_files =
            base_directory.map_or_else(Vec::new, |base| others(base, layout, &indexed));
        check_out(out, layout, &other_files, replace)?;
        let usage = |flaw: String| Error::usage(flaw).in_file(out);
        if !tensors.is_sorted_by(|left, right| left.name() < right.name()) {
            return Err(usage("the tensors are not in ascending order".to_owned()));
        }
        layout.check_covers(tensors).map_err(usage)?;
        let headers = headers_of(tensors, layout, base).map_err(usage)?;
        let (tensors, places) = gather(layout.files().iter().zip(&headers));
        let mut indexes = BTreeMap::new();
        for (name, files) in indexed {
            let folder = folder_of(&name);
            let is_here = |place: &DataPlace| layout.files()[place.file].folder() == folder;
            let here = tensors
                .iter()
                .zip(&places)
                .filter(|(_, place)| is_here(place));
            let bytes = total_bytes(here.map(|(info, _)| info));
            let before = base_directory.and_then(|base| base.index(folder));
            let text = index_text(folder, &files, bytes, before);
            indexes.insert(name, text.map_err(|error| usage(error.to_string()))?);
        }
        let staging = StagingPlace::create(out, layout, &headers, replace)?;
        let written = AtomicU64::new(headers.iter().map(|header| header.bytes.len() as u64).sum());
        Ok(Self {
            out: out.to_owned(),
            replace,
            staging,
            tensors,
            places,
            indexes,
            other_files,
            write_back: None,
            written,
        })
    }

    /// Names of the files of the base's directory that [`commit`](Self::commit) copies, which no
    /// link covers.
    pub(crate) fn copied_files(&self) -> Vec<String> {
        self.other_files
            .iter()
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect()
    }

    /// Makes [`commit`](Self::commit) copy no files of the base's directory, and write indexes only
    /// for folders with several files. Then the layout alone determines the set of files.
    pub fn leave_other_files(&mut self) {
        self.other_files.clear();
        if let StagingPlace::Directory { shards, .. } = &self.staging {
            let in_folder = |folder: &str| {
                shards
                    .iter()
                    .filter(|(name, _)| folder_of(name) == folder)
                    .count()
            };
            self.indexes
                .retain(|index, _| in_folder(folder_of(index)) > 1);
        }
    }

    /// Syncs files to disk in the background while they are written, so that
    /// [`commit`](Self::commit) waits only for the rest. Useful if bytes arrive slowly and will be
    /// committed.
    ///
    /// # Errors
    /// IO.
    pub fn write_back_early(&mut self) -> Result<()> {
        let files = match &self.staging {
            StagingPlace::File(file) => vec![file.file()],
            StagingPlace::Directory { shards, .. } => shards.iter().map(|(_, file)| file).collect(),
        };
        let started = WriteBack::start(&files).map_err(|error| writing(error, &self.out))?;
        self.write_back = Some(started);
        Ok(())
    }

    /// Makes the complete state visible at `out`, after everything has reached the disk. Returns
    /// the number of bytes written to all its files; nothing is written where tensors are zero.
    ///
    /// # Errors
    /// IO if something cannot be written, synchronised, copied or renamed; USAGE if something has
    /// appeared at `out` meanwhile. After an error, `out` is unchanged, with three exceptions:
    /// after the renaming, the directory could not be synced or the replaced files could not be
    /// removed; or a replaced directory could not be moved back.
    pub fn commit(self) -> Result<u64> {
        let mut written = self.written.into_inner();
        if let Some(write_back) = self.write_back {
            write_back
                .finish()
                .map_err(|error| writing(error, &self.out))?;
        }
        match self.staging {
            StagingPlace::File(file) => file.commit()?,
            StagingPlace::Directory { directory, shards } => {
                written += commit_directory(NewDirectory {
                    path: directory.path(),
                    shards,
                    indexes: &self.indexes,
                    other_files: &self.other_files,
                    out: &self.out,
                    replace: self.replace,
                })?;
                // The directory has another name now, so there is nothing to remove.
                let _ = directory.keep();
            }
        }
        Ok(written)
    }

    fn file(&self, place: DataPlace) -> Result<&File> {
        match &self.staging {
            StagingPlace::File(file) => Some(file.file()),
            StagingPlace::Directory { shards, .. } => shards.get(place.file).map(|(_, file)| file),
        }
        .ok_or_else(|| Error::usage("no such file in the layout"))
    }

    /// The path of a file in messages: the one that it will have after the commit.
    fn final_path(&self, place: DataPlace) -> PathBuf {
        match &self.staging {
            StagingPlace::Directory { shards, .. } if place.file < shards.len() => {
                self.out.join(&shards[place.file].0)
            }
            _ => self.out.clone(),
        }
    }
}

impl StateWriter for StagedSafetensors {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let (place, offset) = locate(&self.tensors, &self.places, tensor, offset, bytes.len())?;
        write_at(self.file(place)?, bytes, offset)
            .map_err(|error| writing(error, &self.final_path(place)))?;
        self.written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if let Some(write_back) = &self.write_back {
            write_back.note(place.file, bytes.len() as u64);
        }
        Ok(())
    }
}

/// Copies a file's content and syncs the copy to disk; returns the size in bytes.
fn copy(from: &Path, to: &Path) -> Result<u64> {
    let source = FileSource::open(from)?;
    let copied = create_file(to).and_then(|mut copy| {
        let bytes = io::copy(&mut source.file(), &mut copy)?;
        copy.sync_all().map(|()| bytes)
    });
    source.check_unchanged()?;
    copied.map_err(|error| Error::io("copying", error).in_file(from))
}

/// Writes the header and gives the file its length; the data is zero until written.
fn begin(file: &File, header: &FileHeader) -> io::Result<()> {
    write_at(file, &header.bytes, 0)?;
    file.set_len(header.file_bytes)
}

#[cfg(test)]
mod tests;
