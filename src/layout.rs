//! Layouts of states (SPEC section 12): which safetensors file holds which tensors and
//! `__metadata__`.
//!
//! A layout is not part of a state. A link carries a layout as JSON in its metadata if the layout
//! of the base does not fit the target. Each layout has exactly one such text.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::json;
use crate::plain_name::{flaw_of_path_name, fold_case, folder_of};
use crate::rules;
use crate::tensor::{Digest, TensorInfo};

/// The metadata key of a link that holds the layout of its target (SPEC section 12).
pub const LAYOUT_KEY: &str = "deltachain.layout";

/// Suffix of the names of a layout's files.
pub(crate) const FILE_SUFFIX: &str = ".safetensors";

/// Distribution of a state over safetensors files (SPEC section 12).
///
/// It has at least one file. Either all files have names, which then follow R-LAY-01, or there is
/// one file without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Ascending by name, so that "the last file" means the same to all readers.
    files: Vec<LayoutFile>,
}

/// One file of a [`Layout`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutFile {
    /// Name inside the directory, with `/` after each folder; `None` for a state that is one file
    /// without a directory.
    pub name: Option<String>,
    /// The file's `__metadata__`.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Names of the file's tensors, ascending. They begin with the file's folder, which their names
    /// in the file itself do not have.
    pub tensors: Vec<String>,
}

impl LayoutFile {
    /// The folder that the file lies in: its name up to and including the last `/`.
    pub fn folder(&self) -> &str {
        self.name.as_deref().map_or("", folder_of)
    }
}

impl Layout {
    /// One file without name or metadata that holds these tensors.
    pub fn single_file(tensors: &[TensorInfo]) -> Self {
        Self {
            files: vec![LayoutFile {
                name: None,
                metadata: None,
                tensors: names(tensors),
            }],
        }
    }

    /// Orders the files and checks their names. The error describes what is wrong.
    pub(crate) fn new(mut files: Vec<LayoutFile>) -> Result<Self, String> {
        if files.is_empty() {
            return Err("the layout has no file".to_owned());
        }
        let mut folded = BTreeSet::new();
        let mut folders = BTreeMap::new();
        for file in &files {
            let Some(name) = &file.name else {
                if files.len() > 1 {
                    return Err("a file among several has no name".to_owned());
                }
                continue;
            };
            let unlike =
                || (!name.ends_with(FILE_SUFFIX)).then_some("does not end in .safetensors");
            if let Some(flaw) = flaw_of_path_name(name).or_else(unlike) {
                return Err(format!("the file name {name:?} {flaw}"));
            }
            if !folded.insert(fold_case(name)) {
                return Err(format!(
                    "duplicate file name {name:?} (compared with and without case)"
                ));
            }
            for folder in iter::successors(Some(file.folder()), |folder| outer(folder)) {
                let other = *folders.entry(fold_case(folder)).or_insert(folder);
                if other != folder {
                    return Err(format!(
                        "the folders {other:?} and {folder:?} differ in case only"
                    ));
                }
            }
            if let Some(tensor) = file
                .tensors
                .iter()
                .find(|tensor| !tensor.starts_with(file.folder()))
            {
                return Err(format!(
                    "the name of the tensor {tensor:?} does not begin with the folder of {name:?}"
                ));
            }
        }
        files.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Self { files })
    }

    /// The layout of a directory that holds the files of several layouts without a common tensor,
    /// such as the layouts of the shards of a version. Files of the same name and metadata are
    /// parts of one file. The files of a folder keep their names if all have one, and no two are
    /// the same when case is ignored. Otherwise a single file is called `model.safetensors`, and
    /// several are numbered: `model-00001-of-00002.safetensors`, and so on.
    ///
    /// # Errors
    /// USAGE if there is no file.
    pub fn joined<'a>(files: impl Iterator<Item = &'a LayoutFile>) -> Result<Self> {
        let mut folders: BTreeMap<String, Vec<LayoutFile>> = BTreeMap::new();
        for file in merged(files) {
            folders
                .entry(fold_case(file.folder()))
                .or_default()
                .push(file);
        }
        for files in folders.values_mut() {
            let names: BTreeSet<String> = files
                .iter()
                .flat_map(|file| &file.name)
                .map(|name| fold_case(name))
                .collect();
            let count = files.len();
            if names.len() == count {
                continue;
            }
            for (number, file) in (1..).zip(files) {
                let folder = file.folder();
                file.name = Some(match count {
                    1 => format!("{folder}model{FILE_SUFFIX}"),
                    _ => format!("{folder}model-{number:05}-of-{count:05}{FILE_SUFFIX}"),
                });
            }
        }
        Self::new(folders.into_values().flatten().collect()).map_err(Error::usage)
    }

    /// The files, ascending by name; at least one.
    pub fn files(&self) -> &[LayoutFile] {
        &self.files
    }

    /// Whether the files have names, and so belong in a directory.
    pub fn is_directory(&self) -> bool {
        self.files.iter().any(|file| file.name.is_some())
    }

    /// The folders that the files lie in, ascending, each with the `/` at its end. The directory
    /// itself is not included.
    pub fn folders(&self) -> BTreeSet<&str> {
        self.files
            .iter()
            .map(LayoutFile::folder)
            .filter(|folder| !folder.is_empty())
            .collect()
    }

    /// Reads the JSON text of [`LAYOUT_KEY`] for a target with these tensors.
    ///
    /// # Errors
    /// MALFORMED under R-LAY-01 if the text is not a layout, or not one of these tensors.
    pub fn parse(json: &str, tensors: &[TensorInfo]) -> Result<Self> {
        let LayoutForm { mut files } = json::read(json, 0, &rules::LAY_01).map_err(|error| {
            let place = error.offset().map_or_else(String::new, |offset| {
                format!(" (byte {offset} of the layout)")
            });
            broken(format!("{}{place}", error.message()))
        })?;
        if let [only] = files.as_mut_slice()
            && only.tensors.replace(names(tensors).into()).is_some()
        {
            return Err(broken(
                "the only file lists its tensors, although it has all of them".to_owned(),
            ));
        }
        if !files.is_sorted_by(|left, right| left.name < right.name) {
            return Err(broken(
                "the files are not in ascending order of their names".to_owned(),
            ));
        }
        let files = files.into_iter().map(
            |FileForm {
                 name,
                 metadata,
                 tensors,
             }| match tensors {
                None => Err("a file among several does not list its tensors".to_owned()),
                Some(tensors) if tensors.is_sorted_by(|left, right| left < right) => {
                    Ok(LayoutFile {
                        name: name.into_owned(),
                        metadata: metadata.into_owned(),
                        tensors: tensors.into_owned(),
                    })
                }
                Some(_) => Err("the tensors of a file are not in ascending order".to_owned()),
            },
        );
        let layout = files
            .collect::<Result<Vec<_>, _>>()
            .and_then(Self::new)
            .map_err(broken)?;
        layout.check_covers(tensors).map_err(broken)?;
        Ok(layout)
    }

    /// Checks that the files list each of these tensors exactly once, and no other. The error names
    /// a wrong tensor.
    pub(crate) fn check_covers(&self, tensors: &[TensorInfo]) -> Result<(), String> {
        let mut listed = BTreeSet::new();
        for name in self.files.iter().flat_map(|file| &file.tensors) {
            if !listed.insert(name.as_str()) {
                return Err(format!("duplicate tensor {name:?} in the layout"));
            }
        }
        let wanted: BTreeSet<&str> = tensors.iter().map(TensorInfo::name).collect();
        if let Some(unknown) = listed.difference(&wanted).next() {
            return Err(format!(
                "the layout lists the tensor {unknown:?}, which the state does not have"
            ));
        }
        match wanted.difference(&listed).next() {
            Some(missing) => Err(format!("the layout does not list the tensor {missing:?}")),
            None => Ok(()),
        }
    }

    /// BLAKE3-256 of [the text](Self::to_json): the digest that a commit names (SPEC section 25.1).
    pub fn digest(&self) -> Digest {
        Digest::of_bytes(self.to_json().as_bytes())
    }

    /// The JSON text for [`LAYOUT_KEY`].
    pub fn to_json(&self) -> String {
        let is_only = self.files.len() == 1;
        let forms = self.files.iter().map(
            |LayoutFile {
                 name,
                 metadata,
                 tensors,
             }| FileForm {
                name: Cow::Borrowed(name),
                metadata: Cow::Borrowed(metadata),
                tensors: (!is_only).then_some(Cow::Borrowed(tensors)),
            },
        );
        json::write(&LayoutForm {
            files: forms.collect(),
        })
    }

    /// The layout of a target with these tensors if its link does not state one; `self` is the
    /// base's layout. Each file keeps its tensors, removed tensors vanish, an added tensor goes to
    /// the last file of the longest folder that its name begins with (SPEC section 12).
    ///
    /// # Errors
    /// MALFORMED under R-LAY-01 if there is no file for an added tensor.
    pub fn carried_over(&self, tensors: &[TensorInfo]) -> Result<Self> {
        let places: HashMap<&str, usize> = (0..)
            .zip(&self.files)
            .flat_map(|(place, file)| file.tensors.iter().map(move |name| (name.as_str(), place)))
            .collect();
        // If a folder has several files, the map keeps the last one.
        let last: BTreeMap<&str, usize> = (0..)
            .zip(&self.files)
            .map(|(place, file)| (file.folder(), place))
            .collect();
        let mut files: Vec<LayoutFile> = self
            .files
            .iter()
            .map(|file| LayoutFile {
                tensors: Vec::new(),
                ..file.clone()
            })
            .collect();
        let names: BTreeSet<&str> = tensors.iter().map(TensorInfo::name).collect();
        for name in names {
            let folders = || iter::successors(Some(folder_of(name)), |folder| outer(folder));
            let place = places
                .get(name)
                .copied()
                .or_else(|| folders().find_map(|folder| last.get(folder).copied()));
            let place = place.ok_or_else(|| {
                broken(format!(
                    "the tensor {name:?} is added, and no file lies in a folder that its name \
                     begins with"
                ))
            })?;
            files[place].tensors.push(name.to_owned());
        }
        Ok(Self { files })
    }

    /// The layout of the target of a link with this metadata: the stated one, otherwise the base's,
    /// otherwise one file.
    ///
    /// # Errors
    /// MALFORMED under R-LAY-01 if the stated layout is invalid.
    pub fn of_target(
        metadata: &BTreeMap<String, String>,
        base: Option<&Self>,
        tensors: &[TensorInfo],
    ) -> Result<Self> {
        match metadata.get(LAYOUT_KEY) {
            Some(json) => Self::parse(json, tensors),
            None => Self::without_key(base, tensors),
        }
    }

    /// The value that a link must state under [`LAYOUT_KEY`] so that [`Layout::of_target`] gives
    /// `target`; `None` if it need not state any.
    pub fn metadata_value(
        target: &Self,
        base: Option<&Self>,
        tensors: &[TensorInfo],
    ) -> Option<String> {
        let is_known = Self::without_key(base, tensors).is_ok_and(|known| known == *target);
        (!is_known).then(|| target.to_json())
    }

    fn without_key(base: Option<&Self>, tensors: &[TensorInfo]) -> Result<Self> {
        base.map_or_else(
            || Ok(Self::single_file(tensors)),
            |base| base.carried_over(tensors),
        )
    }
}

/// Files of several layouts; files with the same name and metadata become one.
fn merged<'a>(parts: impl Iterator<Item = &'a LayoutFile>) -> Vec<LayoutFile> {
    let mut files: Vec<LayoutFile> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for part in parts {
        let place = part
            .name
            .as_ref()
            .and_then(|name| places.get(name.as_str()));
        match place
            .and_then(|&place| files.get_mut(place))
            .filter(|file| file.metadata == part.metadata)
        {
            Some(file) => file.tensors.extend_from_slice(&part.tensors),
            None => {
                places.extend(part.name.as_deref().map(|name| (name, files.len())));
                files.push(part.clone());
            }
        }
    }
    files
        .iter_mut()
        .for_each(|file| file.tensors.sort_unstable());
    files
}

/// The names of these tensors, ascending.
fn names(tensors: &[TensorInfo]) -> Vec<String> {
    let mut names: Vec<String> = tensors.iter().map(|info| info.name().to_owned()).collect();
    names.sort_unstable();
    names
}

/// The folder that a folder lies in; `None` for the directory itself.
fn outer(folder: &str) -> Option<&str> {
    folder.strip_suffix('/').map(folder_of)
}

fn broken(message: String) -> Error {
    Error::broken(&rules::LAY_01, message)
}

/// The JSON form of a layout.
#[derive(Serialize, Deserialize)]
struct LayoutForm<'a> {
    files: Vec<FileForm<'a>>,
}

/// The JSON form of a file of a layout.
#[derive(Serialize, Deserialize)]
struct FileForm<'a> {
    name: Cow<'a, Option<String>>,
    metadata: Cow<'a, Option<BTreeMap<String, String>>>,
    /// `None` for the only file of a layout, which has all tensors.
    tensors: Option<Cow<'a, [String]>>,
}

#[cfg(test)]
mod tests;
