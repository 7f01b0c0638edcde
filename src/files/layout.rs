//! How a state is spread over safetensors files (SPEC section 12): which file holds which tensors and `__metadata__`.
//!
//! A layout is not part of a state. A link carries it as JSON in its metadata where the base's does not fit the target. Each
//! layout has exactly one such text.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{Error, Result};
use crate::json::{Reader, Writer};
use crate::plain_name::{flaw_of_plain_name, fold_case};
use crate::rules;
use crate::tensor::TensorInfo;

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

    /// The layout of a directory that holds the files of several layouts without a common tensor, such as the layouts
    /// of the shards of a version. Files of the same name and metadata are parts of one file. Files keep their names if
    /// all have one and no two are the same, regarding case or not. Otherwise a single file is called
    /// `model.safetensors`, and several are numbered: `model-00001-of-00002.safetensors`, and so on.
    ///
    /// # Errors
    /// USAGE if there is no file.
    pub fn joined<'a>(files: impl Iterator<Item = &'a LayoutFile>) -> Result<Self> {
        let mut files = merged(files);
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
    /// MALFORMED under R-LAY-01 if the text is not a layout, or not one of these tensors.
    pub fn parse(json: &str, tensors: &[TensorInfo]) -> Result<Self> {
        let layout = Self::read(json, || names(tensors))?;
        layout.check_covers(tensors).map_err(broken)?;
        Ok(layout)
    }

    /// Follows the layout through links, by the names of their tensors only: `links` gives for each link its layout
    /// key, the tensors that it writes and the tensors that it removes. `None` if no link states a layout.
    pub(crate) fn through<'a>(
        links: impl Iterator<Item = (Option<&'a str>, Vec<&'a str>, BTreeSet<&'a str>)>,
    ) -> Result<Option<String>> {
        let mut known: Option<Self> = None;
        for (json, written, removed) in links {
            known = match (json, known) {
                (Some(json), _) => Some(Self::read(json, Vec::new)?),
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

    /// Reads a layout of any tensors. `all` gives the tensors of a single file, which does not list them.
    fn read(json: &str, all: impl FnOnce() -> Vec<String>) -> Result<Self> {
        let mut files = read_files(json).map_err(|error| {
            let place = error.offset().map_or_else(String::new, |offset| format!(" (byte {offset} of the layout)"));
            broken(format!("{}{place}", error.message()))
        })?;
        if let [only] = files.as_mut_slice()
            && only.tensors.replace(all()).is_some()
        {
            return Err(broken("the only file lists its tensors, although it has all of them".to_owned()));
        }
        if !files.is_sorted_by(|left, right| left.name < right.name) {
            return Err(broken("the files are not in ascending order of their names".to_owned()));
        }
        let files = files.into_iter().map(|ReadFile { name, metadata, tensors }| {
            let tensors = tensors.ok_or_else(|| "a file among several does not list its tensors".to_owned())?;
            if tensors.is_sorted_by(|left, right| left < right) {
                Ok(LayoutFile { name, metadata, tensors })
            } else {
                Err("the tensors of a file are not in ascending order".to_owned())
            }
        });
        let layout = files.collect::<Result<Vec<_>, _>>().and_then(Self::new).map_err(broken)?;
        layout.listed().map_err(broken)?;
        Ok(layout)
    }

    /// All tensors that the files list. The error names one that is there twice.
    fn listed(&self) -> Result<BTreeSet<&str>, String> {
        let mut listed = BTreeSet::new();
        for name in self.files.iter().flat_map(|file| &file.tensors) {
            if !listed.insert(name.as_str()) {
                return Err(format!("the layout lists the tensor {name:?} twice"));
            }
        }
        Ok(listed)
    }

    /// Checks that the files list each of these tensors exactly once, and no other. The error names one that is wrong.
    pub(super) fn check_covers(&self, tensors: &[TensorInfo]) -> Result<(), String> {
        let listed = self.listed()?;
        let wanted: BTreeSet<&str> = tensors.iter().map(TensorInfo::name).collect();
        if let Some(unknown) = listed.difference(&wanted).next() {
            return Err(format!("the layout lists the tensor {unknown:?}, which the state does not have"));
        }
        match wanted.difference(&listed).next() {
            Some(missing) => Err(format!("the layout does not list the tensor {missing:?}")),
            None => Ok(()),
        }
    }

    /// The JSON text for [`LAYOUT_KEY`].
    pub fn to_json(&self) -> String {
        let is_only = self.files.len() == 1;
        let mut writer = Writer::default();
        writer.token("{\"files\":").array(&self.files, |writer, file| {
            writer.token("{\"name\":").optional(file.name.as_deref(), Writer::string);
            writer.token(",\"metadata\":").optional(file.metadata.as_ref(), Writer::strings);
            let tensors = (!is_only).then_some(file.tensors.as_slice());
            writer.token(",\"tensors\":").optional(tensors, |writer, tensors| {
                writer.array(tensors, |writer, name| {
                    writer.string(name);
                })
            });
            writer.token("}");
        });
        writer.token("}");
        writer.end()
    }

    /// The layout of a target with these tensors if its link does not state one; this is the base's layout. Each file
    /// keeps its tensors, removed tensors vanish, added tensors go to the last file (SPEC section 12).
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

    /// The layout of the target of a link with this metadata: the stated one, otherwise the base's, otherwise one file.
    ///
    /// # Errors
    /// MALFORMED under R-LAY-01 if the metadata states a layout that is none.
    pub fn of_target(metadata: &BTreeMap<String, String>, base: Option<&Self>, tensors: &[TensorInfo]) -> Result<Self> {
        match metadata.get(LAYOUT_KEY) {
            Some(json) => Self::parse(json, tensors),
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

/// Files of several layouts; files with the same name and metadata become one.
fn merged<'a>(parts: impl Iterator<Item = &'a LayoutFile>) -> Vec<LayoutFile> {
    let mut files: Vec<LayoutFile> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for part in parts {
        let place = part.name.as_ref().and_then(|name| places.get(name.as_str()));
        match place.and_then(|&place| files.get_mut(place)).filter(|file| file.metadata == part.metadata) {
            Some(file) => file.tensors.extend_from_slice(&part.tensors),
            None => {
                places.extend(part.name.as_deref().map(|name| (name, files.len())));
                files.push(part.clone());
            }
        }
    }
    files.iter_mut().for_each(|file| file.tensors.sort_unstable());
    files
}

/// The names of these tensors, ascending.
fn names(tensors: &[TensorInfo]) -> Vec<String> {
    let mut names: Vec<String> = tensors.iter().map(|info| info.name().to_owned()).collect();
    names.sort_unstable();
    names
}

fn broken(message: String) -> Error {
    Error::broken(&rules::LAY_01, message)
}

/// Why this cannot be the name of a file of a layout (R-LAY-01); `None` if it is one.
fn flaw_of_name(name: &str) -> Option<&'static str> {
    flaw_of_plain_name(name).or_else(|| (!name.ends_with(FILE_SUFFIX)).then_some("does not end in .safetensors"))
}

/// A file of a layout as the text has it.
struct ReadFile {
    name: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
    tensors: Option<Vec<String>>,
}

/// Reads the text as far as its form goes.
fn read_files(json: &str) -> Result<Vec<ReadFile>> {
    let mut reader = Reader::new(json, json.len(), &rules::LAY_01);
    reader.token("{\"files\":")?;
    let files = reader.array(1..=usize::MAX, |reader| {
        reader.token("{\"name\":")?;
        let name = reader.optional(Reader::string)?;
        reader.token(",\"metadata\":")?;
        let metadata = reader.optional(Reader::strings)?;
        reader.token(",\"tensors\":")?;
        let tensors = reader.optional(|reader| reader.array(0..=usize::MAX, Reader::string))?;
        reader.token("}")?;
        Ok(ReadFile { name, metadata, tensors })
    })?;
    reader.token("}")?;
    reader.end()?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;
    use crate::tensor::Dtype;

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
        // Each shard has a part of the same file.
        let [first, mut second] = [layout(&[Some("x.safetensors")]), layout(&[Some("x.safetensors")])];
        second.files[0].tensors = vec!["a".to_owned()];
        let one = Layout::joined([&first, &second].into_iter().flat_map(Layout::files)).unwrap();
        assert_eq!(one.files.len(), 1);
        assert_eq!(one.files[0].tensors, ["a", "t0"]);
        second.files[0].metadata = Some([("format".to_owned(), "pt".to_owned())].into());
        assert_eq!(names(&[first, second]), numbered);
        assert_eq!(Layout::joined([].iter()).unwrap_err().class(), crate::error::ErrorClass::Usage);
    }

    #[test]
    fn json_has_one_form_and_comes_back() {
        let two = r#"{"files":[{"name":"a.safetensors","metadata":{"format":"pt"},"tensors":["w","x"]},{"name":"b.safetensors","metadata":null,"tensors":["v"]}]}"#;
        let parsed = Layout::parse(two, &tensors(&["v", "w", "x"])).unwrap();
        assert!(parsed.is_directory());
        assert_eq!(parsed.to_json(), two);
        for one in [
            r#"{"files":[{"name":null,"metadata":null,"tensors":null}]}"#,
            r#"{"files":[{"name":null,"metadata":{},"tensors":null}]}"#,
            r#"{"files":[{"name":"Größe \" 1.safetensors","metadata":{"":"\u0000/"},"tensors":null}]}"#,
        ] {
            let parsed = Layout::parse(one, &tensors(&["v", "u"])).unwrap();
            assert_eq!(parsed.files()[0].tensors, ["u", "v"]);
            assert_eq!(parsed.to_json(), one);
        }
        let only = Layout::single_file(&tensors(&["v"]));
        assert_eq!(Layout::parse(&only.to_json(), &tensors(&["v"])).unwrap(), only);
        assert!(!only.is_directory());
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        let one = r#"{"files":[{"name":null,"metadata":null,"tensors":null}]}"#;
        let two = r#"{"files":[{"name":"a.safetensors","metadata":{"a":"b","c":"d"},"tensors":["v","x"]},{"name":"b.safetensors","metadata":null,"tensors":["w"]}]}"#;
        let (of_one, of_two) = (["v"], ["v", "w", "x"]);
        assert!(Layout::parse(one, &tensors(&of_one)).is_ok() && Layout::parse(two, &tensors(&of_two)).is_ok());
        for json in ["", "null", "[]", "{}", r#"{"files":[]}"#, r#"{"files":[{}]}"#] {
            assert!(!refusal(json, &of_one).is_empty());
        }
        for (old, new) in [
            ("{\"files\"", " {\"files\""),
            ("{\"files\"", "{ \"files\""),
            ("{\"files\"", "\u{feff}{\"files\""),
            ("{\"files\"", "{\"file\":1,\"files\""),
            ("]}", "]}\n"),
            ("]}", "],\"more\":1}"),
            ("\"name\":null,", ""),
            ("\"metadata\":null,", ""),
            (",\"tensors\":null", ""),
            ("\"name\":null,\"metadata\":null", "\"metadata\":null,\"name\":null"),
            ("\"name\":null", "\"name\":null,\"name\":null"),
            ("\"name\":null", "\"name\":1"),
            ("\"name\":null", "\"Name\":null"),
            ("\"metadata\":null", "\"metadata\":[]"),
            ("\"metadata\":null", "\"metadata\":{\"a\":1}"),
            ("\"tensors\":null", "\"tensors\":[\"v\"]"),
            ("\"tensors\":null", "\"tensors\":null,\"size\":1"),
        ] {
            assert!(one.contains(old), "{old}");
            assert!(!refusal(&one.replacen(old, new, 1), &of_one).is_empty());
        }
        for (old, new) in [
            ("\"a.safetensors\"", "null"),
            ("\"b.safetensors\"", "null"),
            ("\"a.safetensors\"", "\"c.safetensors\""),
            ("\"a.safetensors\"", "\"b.safetensors\""),
            ("\"a.safetensors\"", "\"B.safetensors\""),
            ("\"a.safetensors\"", "\"\\u0061.safetensors\""),
            ("\"a\":\"b\",\"c\":\"d\"", "\"c\":\"d\",\"a\":\"b\""),
            ("\"a\":\"b\",\"c\":\"d\"", "\"a\":\"b\",\"a\":\"d\""),
            ("[\"v\",\"x\"]", "[\"x\",\"v\"]"),
            ("[\"v\",\"x\"]", "[\"v\",\"v\",\"x\"]"),
            ("[\"v\",\"x\"]", "[\"v\", \"x\"]"),
            ("[\"v\",\"x\"]", "[\"v\",\"x\",]"),
            ("[\"w\"]", "null"),
            ("[\"w\"]", "[\"\\ud800\"]"),
        ] {
            assert!(two.contains(old), "{old}");
            assert!(!refusal(&two.replacen(old, new, 1), &of_two).is_empty());
        }
        assert!(refusal(&one.replacen("null", "nul", 1), &of_one).contains("byte 18 of the layout"));
    }

    #[test]
    fn each_tensor_is_listed_exactly_once() {
        let json = |first: &str, second: &str| {
            format!(
                r#"{{"files":[{{"name":"a.safetensors","metadata":null,"tensors":{first}}},{{"name":"b.safetensors","metadata":null,"tensors":{second}}}]}}"#
            )
        };
        assert!(Layout::parse(&json(r#"["v"]"#, r#"["w"]"#), &tensors(&["v", "w"])).is_ok());
        assert!(Layout::parse(&json(r#"["v","w"]"#, "[]"), &tensors(&["v", "w"])).is_ok());
        assert!(refusal(&json(r#"["v"]"#, "[]"), &["v", "w"]).contains("does not list the tensor \"w\""));
        assert!(refusal(&json(r#"["v"]"#, r#"["v"]"#), &["v"]).contains("twice"));
        assert!(refusal(&json(r#"["v","v"]"#, "[]"), &["v"]).contains("order"));
        assert!(refusal(&json(r#"["v"]"#, r#"["w"]"#), &["v"]).contains("does not have"));
    }

    #[test]
    fn only_plain_file_names_are_accepted() {
        let layout = |name: &str| {
            let file = LayoutFile { name: Some(name.to_owned()), metadata: None, tensors: Vec::new() };
            Layout { files: vec![file] }.to_json()
        };
        for name in [
            "model.safetensors",
            "a b\u{1F9EE}.safetensors",
            "console.safetensors",
            "com.safetensors",
            "com10.safetensors",
            "com⁴.safetensors",
            " aux.safetensors",
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
            "com².safetensors",
            "conin$.safetensors",
            "Aux .safetensors",
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
            let file = |name: &str| format!("{{\"name\":\"{name}\",\"metadata\":null,\"tensors\":[]}}");
            format!("{{\"files\":[{},{}]}}", file(first), file(second))
        };
        for (first, second) in [("a", "b"), ("Ä", "ä"), ("s", "ſ")] {
            let json = layout(&format!("{first}.safetensors"), &format!("{second}.safetensors"));
            assert!(Layout::parse(&json, &[]).is_ok(), "{first} {second}");
        }
        assert!(refusal(&layout("A.safetensors", "a.safetensors"), &[]).contains("twice"));
        assert!(refusal(&layout("a.safetensors", "a.safetensors"), &[]).contains("order"));
    }

    #[test]
    fn a_layout_is_followed_through_links_that_do_not_state_it() {
        let two = r#"{"files":[{"name":"1.safetensors","metadata":null,"tensors":["a"]},{"name":"2.safetensors","metadata":null,"tensors":["b"]}]}"#;
        let follow = |links: Vec<(Option<&'static str>, Vec<&'static str>, Vec<&'static str>)>| {
            let links = links.into_iter();
            Layout::through(links.map(|(json, written, removed)| (json, written, removed.into_iter().collect())))
                .unwrap()
        };
        assert_eq!(follow(vec![(None, vec!["a"], vec![]), (None, vec!["b"], vec![])]), None);
        assert_eq!(follow(vec![(None, vec![], vec![]), (Some(two), vec!["a", "b"], vec![])]).as_deref(), Some(two));
        let moved = follow(vec![(Some(two), vec![], vec![]), (None, vec!["b", "c"], vec!["a"])]).unwrap();
        let expected = r#"{"files":[{"name":"1.safetensors","metadata":null,"tensors":[]},{"name":"2.safetensors","metadata":null,"tensors":["b","c"]}]}"#;
        assert_eq!(moved, expected);
        let one = r#"{"files":[{"name":null,"metadata":{"k":"v"},"tensors":null}]}"#;
        assert_eq!(follow(vec![(Some(one), vec!["a"], vec![]), (None, vec!["c"], vec![])]).as_deref(), Some(one));
        let twice = two.replace("[\"b\"]", "[\"a\"]");
        for broken in ["{}", &twice] {
            assert!(Layout::through([(Some(broken), vec![], BTreeSet::new())].into_iter()).is_err());
        }
    }

    #[test]
    fn the_key_is_stated_only_where_needed() {
        let before = tensors(&["b", "c", "d"]);
        let json = r#"{"files":[{"name":"1.safetensors","metadata":{"k":"v"},"tensors":["b","d"]},{"name":"2.safetensors","metadata":null,"tensors":["c"]}]}"#;
        let base = Layout::parse(json, &before).unwrap();

        let after = tensors(&["a", "b", "c", "e"]);
        let carried = Layout::of_target(&BTreeMap::new(), Some(&base), &after).unwrap();
        assert_eq!(carried, base.carried_over(&after));
        assert_eq!(
            carried.to_json(),
            r#"{"files":[{"name":"1.safetensors","metadata":{"k":"v"},"tensors":["b"]},{"name":"2.safetensors","metadata":null,"tensors":["a","c","e"]}]}"#
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
