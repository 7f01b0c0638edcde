//! How a state is spread over safetensors files (SPEC section 12): which file holds which tensors and `__metadata__`.
//!
//! A layout is not part of a state. A link carries it as JSON in its metadata where the base's does not fit the target.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, Result};
use crate::rules;
use crate::tensor::header::{UniqueStrings, printable};
use crate::tensor::{Dtype, TensorInfo};

/// The metadata key of a link that holds the layout of its target (SPEC section 12).
pub const LAYOUT_KEY: &str = "deltachain.layout";

/// What the name of a file of a layout ends in.
pub(super) const FILE_SUFFIX: &str = ".safetensors";

/// How a state is spread over safetensors files (SPEC section 12).
///
/// It has at least one file. Either all files have names, which then keep R-LAY-01, or there is one file without name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Ascending by name, so that "the last file" means the same to everyone.
    files: Vec<LayoutFile>,
}

/// One file of a [`Layout`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutFile {
    /// Name inside the directory; `None` for a state that is one file without a directory.
    pub name: Option<String>,
    /// The file's `__metadata__`.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Names of the file's tensors, ascending.
    pub tensors: Vec<String>,
}

impl Layout {
    /// One file without name or metadata that holds these tensors.
    pub fn single_file(tensors: &[TensorInfo]) -> Self {
        Self { files: vec![LayoutFile { name: None, metadata: None, tensors: names(tensors) }] }
    }

    /// Orders the files and checks their names. The error says what is wrong with them.
    pub(super) fn new(mut files: Vec<LayoutFile>) -> Result<Self, String> {
        if files.is_empty() {
            return Err("the layout has no file".to_owned());
        }
        let mut folded = BTreeSet::new();
        for file in &files {
            let Some(name) = &file.name else {
                if files.len() > 1 {
                    return Err("a file among several has no name".to_owned());
                }
                continue;
            };
            if let Some(flaw) = flaw_of_name(name) {
                return Err(format!("the file name {name:?} {flaw}"));
            }
            if !folded.insert(fold_case(name)) {
                return Err(format!("the file name {name:?} is there twice, regarding case or not"));
            }
        }
        files.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Self { files })
    }

    /// The layout of a directory that holds these files of several layouts without a common tensor, such as those of the
    /// shards of a version. Files keep their names if all have one and no two are the same, regarding case or not. Otherwise a single
    /// file is called `model.safetensors`, and several are numbered: `model-00001-of-00002.safetensors`, and so on.
    ///
    /// # Errors
    /// USAGE if there is no file.
    pub fn joined<'a>(files: impl Iterator<Item = &'a LayoutFile>) -> Result<Self> {
        let mut files: Vec<LayoutFile> = files.cloned().collect();
        let names: BTreeSet<String> = files.iter().flat_map(|file| &file.name).map(|name| fold_case(name)).collect();
        if names.len() < files.len() {
            let count = files.len();
            for (number, file) in (1..).zip(&mut files) {
                file.name = Some(match count {
                    1 => format!("model{FILE_SUFFIX}"),
                    _ => format!("model-{number:05}-of-{count:05}{FILE_SUFFIX}"),
                });
            }
        }
        Self::new(files).map_err(Error::usage)
    }

    /// The files, ascending by name; at least one.
    pub fn files(&self) -> &[LayoutFile] {
        &self.files
    }

    /// Whether the files have names, and so belong in a directory.
    pub fn is_directory(&self) -> bool {
        self.files.iter().any(|file| file.name.is_some())
    }

    /// Reads the JSON text of [`LAYOUT_KEY`] for a target with these tensors.
    ///
    /// # Errors
    /// MALFORMED under R-LAY-01 if the text is no layout, or not one of these tensors.
    pub fn parse(json: &str, tensors: &[TensorInfo]) -> Result<Self> {
        Self::read(json, tensors, false).map_err(|message| Error::broken(&rules::LAY_01, message))
    }

    /// Follows the layout through links of which only the names of their tensors are known: `links` gives for each link
    /// its layout key, the tensors it writes and those it removes. `None` if no link states a layout.
    pub(crate) fn through<'a>(
        links: impl Iterator<Item = (Option<&'a str>, Vec<&'a str>, BTreeSet<&'a str>)>,
    ) -> Result<Option<String>> {
        let mut known: Option<Self> = None;
        for (json, written, removed) in links {
            known = match (json, known) {
                (Some(json), _) => Some(Self::read_listed(json)?),
                (None, Some(before)) => {
                    let listed = before.files.iter().flat_map(|file| &file.tensors).map(String::as_str);
                    let names: BTreeSet<&str> = listed.chain(written).filter(|name| !removed.contains(name)).collect();
                    Some(before.carried_over_to(&names))
                }
                (None, None) => None,
            };
        }
        Ok(known.map(|layout| layout.to_json()))
    }

    /// Reads a layout for whatever tensors it lists itself.
    fn read_listed(json: &str) -> Result<Self> {
        let broken = |message: String| Error::broken(&rules::LAY_01, message);
        let document = document(json).map_err(broken)?;
        let mut listed: Vec<String> =
            document.files.into_iter().filter_map(|Object(file)| file.tensors).flatten().collect();
        listed.sort_unstable();
        listed.dedup();
        let infos: Vec<TensorInfo> =
            listed.into_iter().filter_map(|name| TensorInfo::new(name, Dtype::U8, [])).collect();
        Self::parse(json, &infos)
    }

    /// `is_part` if the layout is of more tensors than these, the others of which are left out.
    fn read(json: &str, tensors: &[TensorInfo], is_part: bool) -> Result<Self, String> {
        let document = document(json)?;
        let taken: BTreeSet<&str> = tensors.iter().map(TensorInfo::name).collect();
        let only = document.files.len() == 1;
        let mut files = Vec::with_capacity(document.files.len());
        for Object(file) in document.files {
            let tensors = match file.tensors {
                Some(mut listed) => {
                    listed.retain(|name| !is_part || taken.contains(name.as_str()));
                    listed.sort_unstable();
                    listed
                }
                None if only => names(tensors),
                None => return Err("a file among several does not list its tensors".to_owned()),
            };
            files.push(LayoutFile { name: file.name, metadata: file.metadata.map(|strings| strings.0), tensors });
        }
        let layout = Self::new(files)?;
        layout.check_covers(tensors)?;
        Ok(layout)
    }

    /// Checks that the files list each of these tensors exactly once, and no other. The error names one that is wrong.
    pub(super) fn check_covers(&self, tensors: &[TensorInfo]) -> Result<(), String> {
        let mut listed: Vec<&str> = self.files.iter().flat_map(|file| &file.tensors).map(String::as_str).collect();
        listed.sort_unstable();
        if let Some([name, ..]) = listed.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("the layout lists the tensor {name:?} twice"));
        }
        let wanted: BTreeSet<&str> = tensors.iter().map(TensorInfo::name).collect();
        if let Some(unknown) = listed.iter().find(|name| !wanted.contains(*name)) {
            return Err(format!("the layout lists the tensor {unknown:?}, which the state does not have"));
        }
        let listed: BTreeSet<&str> = listed.into_iter().collect();
        match wanted.difference(&listed).next() {
            Some(missing) => Err(format!("the layout does not list the tensor {missing:?}")),
            None => Ok(()),
        }
    }

    /// The JSON text for [`LAYOUT_KEY`]: compact, always the same for the same layout.
    pub fn to_json(&self) -> String {
        let only = self.files.len() == 1;
        let files = self.files.iter().map(|file| NewFile {
            name: file.name.as_deref(),
            metadata: file.metadata.as_ref(),
            tensors: (!only).then_some(file.tensors.as_slice()),
        });
        let document = NewDocument { files: files.collect() };
        // Writing strings to memory cannot fail; an empty text would be refused by every reader.
        serde_json::to_string(&document).unwrap_or_default()
    }

    /// The layout of a target with these tensors whose link does not state one, this being the base's: each file keeps
    /// its tensors, removed ones vanish, added ones go to the last file (SPEC section 12).
    #[must_use]
    pub fn carried_over(&self, tensors: &[TensorInfo]) -> Self {
        self.carried_over_to(&tensors.iter().map(TensorInfo::name).collect())
    }

    fn carried_over_to(&self, names: &BTreeSet<&str>) -> Self {
        let places: HashMap<&str, usize> = (0..)
            .zip(&self.files)
            .flat_map(|(place, file)| file.tensors.iter().map(move |name| (name.as_str(), place)))
            .collect();
        let last = self.files.len().saturating_sub(1);
        let mut files: Vec<LayoutFile> =
            self.files.iter().map(|file| LayoutFile { tensors: Vec::new(), ..file.clone() }).collect();
        for &name in names {
            let place = places.get(name).copied().unwrap_or(last);
            files[place].tensors.push(name.to_owned());
        }
        Self { files }
    }

    /// The layout of the target of a link with this metadata: the one stated, else that of the base, else one file.
    ///
    /// # Errors
    /// MALFORMED under R-LAY-01 if the metadata states a layout that is none.
    pub fn of_target(metadata: &BTreeMap<String, String>, base: Option<&Self>, tensors: &[TensorInfo]) -> Result<Self> {
        match metadata.get(LAYOUT_KEY) {
            Some(json) => Self::parse(json, tensors),
            None => Ok(Self::without_key(base, tensors)),
        }
    }

    /// As [`Layout::of_target`], for a reader that takes only these tensors (SPEC section 19): `base` is what it got here
    /// for the version before. Files of which it takes none stay, since what is added later may go there.
    ///
    /// # Errors
    /// As for [`Layout::of_target`], as far as these tensors are concerned.
    pub fn of_part(metadata: &BTreeMap<String, String>, base: Option<&Self>, tensors: &[TensorInfo]) -> Result<Self> {
        match metadata.get(LAYOUT_KEY) {
            Some(json) => Self::read(json, tensors, true).map_err(|message| Error::broken(&rules::LAY_01, message)),
            None => Ok(Self::without_key(base, tensors)),
        }
    }

    /// What a link has to state under [`LAYOUT_KEY`] so that [`Layout::of_target`] gives `target`; `None` if nothing.
    pub fn metadata_value(target: &Self, base: Option<&Self>, tensors: &[TensorInfo]) -> Option<String> {
        (*target != Self::without_key(base, tensors)).then(|| target.to_json())
    }

    fn without_key(base: Option<&Self>, tensors: &[TensorInfo]) -> Self {
        base.map_or_else(|| Self::single_file(tensors), |base| base.carried_over(tensors))
    }
}

/// The names of these tensors, ascending.
fn names(tensors: &[TensorInfo]) -> Vec<String> {
    let mut names: Vec<String> = tensors.iter().map(|info| info.name().to_owned()).collect();
    names.sort_unstable();
    names
}

/// Names with the same folded form may be the same file where case does not count.
pub(super) fn fold_case(name: &str) -> String {
    name.to_ascii_lowercase()
}

/// What makes this no name of a file of a layout (R-LAY-01); `None` if it is one.
fn flaw_of_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > 255 {
        Some("is longer than 255 bytes")
    } else if name.contains(['/', '\\', ':']) || name.starts_with('.') {
        Some("is a path or hidden")
    } else if name.contains(char::is_control) {
        Some("holds a control character")
    } else if !name.ends_with(FILE_SUFFIX) {
        Some("does not end in .safetensors")
    } else if is_device_name(name) {
        Some("is a Windows device name")
    } else {
        None
    }
}

/// Windows takes `con.safetensors` for the console: what counts is the part before the first dot.
fn is_device_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_uppercase();
    match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" => true,
        _ => stem
            .strip_prefix("COM")
            .or_else(|| stem.strip_prefix("LPT"))
            .is_some_and(|number| number.len() == 1 && number.bytes().all(|digit| digit.is_ascii_digit())),
    }
}

fn document(json: &str) -> Result<Document, String> {
    let read: Result<Object<Document>, _> = serde_json::from_str(json);
    read.map(|Object(document)| document).map_err(|error| format!("bad layout: {}", printable(&error)))
}

/// The JSON text, as read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    files: Vec<Object<File>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, deserialize_with = "present")]
    name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    metadata: Option<UniqueStrings>,
    #[serde(default, deserialize_with = "present")]
    tensors: Option<Vec<String>>,
}

/// A struct written as a JSON object; serde alone also accepts an array of the fields' values.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// A field may be absent, but not `null`.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The JSON text, as written.
#[derive(Serialize)]
struct NewDocument<'a> {
    files: Vec<NewFile<'a>>,
}

#[derive(Serialize)]
struct NewFile<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<&'a [String]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;

    fn tensors(names: &[&str]) -> Vec<TensorInfo> {
        names.iter().map(|name| TensorInfo::new(*name, Dtype::U8, []).unwrap()).collect()
    }

    fn refusal(json: &str, names: &[&str]) -> String {
        let error = Layout::parse(json, &tensors(names)).unwrap_err();
        assert_eq!((error.class(), error.rule()), (ErrorClass::Malformed, Some("R-LAY-01")), "{json}");
        error.message().to_owned()
    }

    #[test]
    fn files_of_shards_share_a_directory() {
        let layout = |names: &[Option<&str>]| Layout {
            files: (0..)
                .zip(names)
                .map(|(number, name)| LayoutFile {
                    name: name.map(str::to_owned),
                    metadata: None,
                    tensors: vec![format!("t{number}")],
                })
                .collect(),
        };
        let names = |layouts: &[Layout]| -> Vec<String> {
            Layout::joined(layouts.iter().flat_map(Layout::files))
                .unwrap()
                .files()
                .iter()
                .filter_map(|file| file.name.clone())
                .collect()
        };
        assert_eq!(names(&[layout(&[None])]), ["model.safetensors"]);
        assert_eq!(names(&[layout(&[Some("x.safetensors")])]), ["x.safetensors"]);
        let (a, b) = (layout(&[Some("b.safetensors")]), layout(&[Some("a.safetensors")]));
        assert_eq!(names(&[a, b]), ["a.safetensors", "b.safetensors"]);
        let numbered = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(names(&[layout(&[None]), layout(&[None])]), numbered);
        assert_eq!(names(&[layout(&[Some("A.safetensors")]), layout(&[Some("a.safetensors")])]), numbered);
        assert_eq!(Layout::joined([].iter()).unwrap_err().class(), crate::error::ErrorClass::Usage);
    }

    #[test]
    fn json_has_one_form_and_comes_back() {
        let two = r#"{"files":[{"name":"a.safetensors","metadata":{"format":"pt"},"tensors":["w","x"]},{"name":"b.safetensors","tensors":["v"]}]}"#;
        let parsed = Layout::parse(two, &tensors(&["v", "w", "x"])).unwrap();
        assert!(parsed.is_directory());
        assert_eq!(parsed.to_json(), two);
        let shuffled = r#" {"files": [ {"tensors":["v"],"name":"b.safetensors"}, {"name":"a.safetensors","tensors":["x","\u0077"],"metadata":{"format":"pt"}} ]} "#;
        assert_eq!(Layout::parse(shuffled, &tensors(&["v", "w", "x"])).unwrap(), parsed);

        for one in
            [r#"{"files":[{}]}"#, r#"{"files":[{"metadata":{}}]}"#, r#"{"files":[{"name":"Größe \" 1.safetensors"}]}"#]
        {
            let parsed = Layout::parse(one, &tensors(&["v"])).unwrap();
            assert_eq!(parsed.files()[0].tensors, ["v"]);
            assert_eq!(parsed.to_json(), one);
        }
        let explicit = Layout::parse(r#"{"files":[{"tensors":["v"]}]}"#, &tensors(&["v"])).unwrap();
        assert_eq!(explicit, Layout::single_file(&tensors(&["v"])));
        assert!(!explicit.is_directory());
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        for json in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"files":[]}"#,
            "[[{}]]",
            r#"{"files":[["a.safetensors",{},["v"]]]}"#,
            r#"{"files":[{}],"more":1}"#,
            r#"{"files":[{"size":1}]}"#,
            r#"{"files":[{}]} x"#,
            r#"{"files":[{"name":null}]}"#,
            r#"{"files":[{"metadata":null}]}"#,
            r#"{"files":[{"tensors":null}]}"#,
            r#"{"files":[{"metadata":{"a":1}}]}"#,
            r#"{"files":[{"metadata":{"a":"","a":""}}]}"#,
            r#"{"files":[{}],"files":[{}]}"#,
            r#"{"files":[{"name":"a.safetensors","name":"a.safetensors"}]}"#,
            r#"{"files":[{"name":"a.safetensors","tensors":["v"]},{"tensors":[]}]}"#,
            r#"{"files":[{"name":"a.safetensors","tensors":["v"]},{"name":"b.safetensors"}]}"#,
        ] {
            assert!(!refusal(json, &["v"]).is_empty());
        }
    }

    #[test]
    fn each_tensor_is_listed_exactly_once() {
        let json = |first: &str, second: &str| {
            format!(
                r#"{{"files":[{{"name":"a.safetensors","tensors":{first}}},{{"name":"b.safetensors","tensors":{second}}}]}}"#
            )
        };
        assert!(Layout::parse(&json(r#"["v"]"#, r#"["w"]"#), &tensors(&["v", "w"])).is_ok());
        assert!(Layout::parse(&json(r#"["w","v"]"#, "[]"), &tensors(&["v", "w"])).is_ok());
        assert!(refusal(&json(r#"["v"]"#, "[]"), &["v", "w"]).contains("does not list the tensor \"w\""));
        assert!(refusal(&json(r#"["v"]"#, r#"["v"]"#), &["v"]).contains("twice"));
        assert!(refusal(&json(r#"["v","v"]"#, "[]"), &["v"]).contains("twice"));
        assert!(refusal(&json(r#"["v"]"#, r#"["w"]"#), &["v"]).contains("does not have"));
    }

    #[test]
    fn only_plain_file_names_are_accepted() {
        let layout = |name: &str| serde_json::json!({ "files": [{ "name": name }] }).to_string();
        for name in [
            "model.safetensors",
            "a b\u{1F9EE}.safetensors",
            "console.safetensors",
            "com.safetensors",
            "com10.safetensors",
            "com².safetensors",
            "conin$.safetensors",
            "Aux .safetensors",
            &format!("{}.safetensors", "x".repeat(255 - 12)),
        ] {
            assert!(Layout::parse(&layout(name), &[]).is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "model.bin",
            "model.SAFETENSORS",
            "model.safetensors ",
            "model.safetensors.",
            "/model.safetensors",
            "../model.safetensors",
            "a/b.safetensors",
            "a\\b.safetensors",
            "C:a.safetensors",
            "a.safetensors\0",
            "a\0.safetensors",
            "a\n.safetensors",
            "a\u{7F}.safetensors",
            "a\u{9B}.safetensors",
            "con.safetensors",
            "NUL.safetensors",
            "prn.x.safetensors",
            "com0.safetensors",
            "com1.safetensors",
            "LPT9.safetensors",
            ".safetensors",
            "..safetensors",
            ".a.safetensors",
            &format!("{}.safetensors", "x".repeat(256 - 12)),
        ] {
            assert!(refusal(&layout(name), &[]).contains("file name"), "{name}");
        }
    }

    #[test]
    fn file_names_differ_regarding_case_or_not() {
        let layout = |first: &str, second: &str| {
            serde_json::json!({ "files": [{ "name": first, "tensors": [] }, { "name": second, "tensors": [] }] })
                .to_string()
        };
        for (first, second) in [("a", "b"), ("ä", "Ä"), ("s", "ſ")] {
            let json = layout(&format!("{first}.safetensors"), &format!("{second}.safetensors"));
            assert!(Layout::parse(&json, &[]).is_ok(), "{first} {second}");
        }
        for (first, second) in [("a", "a"), ("a", "A")] {
            let json = layout(&format!("{first}.safetensors"), &format!("{second}.safetensors"));
            assert!(refusal(&json, &[]).contains("twice"), "{first} {second}");
        }
    }

    #[test]
    fn a_layout_is_followed_through_links_that_do_not_state_it() {
        let two = r#"{"files":[{"name":"1.safetensors","tensors":["a"]},{"name":"2.safetensors","tensors":["b"]}]}"#;
        let follow = |links: Vec<(Option<&'static str>, Vec<&'static str>, Vec<&'static str>)>| {
            let links = links.into_iter();
            Layout::through(links.map(|(json, written, removed)| (json, written, removed.into_iter().collect())))
                .unwrap()
        };
        assert_eq!(follow(vec![(None, vec!["a"], vec![]), (None, vec!["b"], vec![])]), None);
        assert_eq!(follow(vec![(None, vec![], vec![]), (Some(two), vec!["a", "b"], vec![])]).as_deref(), Some(two));
        let moved = follow(vec![(Some(two), vec![], vec![]), (None, vec!["b", "c"], vec!["a"])]).unwrap();
        let expected =
            r#"{"files":[{"name":"1.safetensors","tensors":[]},{"name":"2.safetensors","tensors":["b","c"]}]}"#;
        assert_eq!(moved, expected);
        let one = r#"{"files":[{"metadata":{"k":"v"}}]}"#;
        assert_eq!(follow(vec![(Some(one), vec!["a"], vec![]), (None, vec!["c"], vec![])]).as_deref(), Some(one));
        assert!(Layout::through([(Some("{}"), vec![], BTreeSet::new())].into_iter()).is_err());
    }

    #[test]
    fn the_key_is_stated_only_where_needed() {
        let before = tensors(&["b", "c", "d"]);
        let json = r#"{"files":[{"name":"1.safetensors","metadata":{"k":"v"},"tensors":["b","d"]},{"name":"2.safetensors","tensors":["c"]}]}"#;
        let base = Layout::parse(json, &before).unwrap();

        let after = tensors(&["a", "b", "c", "e"]);
        let carried = Layout::of_target(&BTreeMap::new(), Some(&base), &after).unwrap();
        assert_eq!(carried, base.carried_over(&after));
        assert_eq!(
            carried.to_json(),
            r#"{"files":[{"name":"1.safetensors","metadata":{"k":"v"},"tensors":["b"]},{"name":"2.safetensors","tensors":["a","c","e"]}]}"#
        );
        assert_eq!(Layout::metadata_value(&carried, Some(&base), &after), None);

        let single = Layout::single_file(&after);
        assert_eq!(Layout::of_target(&BTreeMap::new(), None, &after).unwrap(), single);
        assert_eq!(Layout::metadata_value(&single, None, &after), None);

        for (target, base) in [(&single, Some(&base)), (&carried, None)] {
            let json = Layout::metadata_value(target, base, &after).unwrap();
            let metadata = BTreeMap::from([(LAYOUT_KEY.to_owned(), json)]);
            assert_eq!(Layout::of_target(&metadata, base, &after).unwrap(), *target);
        }
    }
}
