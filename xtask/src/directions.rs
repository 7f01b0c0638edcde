//! Which module of the library may use which: dependencies point one way (ARCHITECTURE.md).
//!
//! The lower modules have a list of what they may use. Tests may use anything.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::workspace::root;

/// A module with what it may use of its own crate.
struct Layer {
    /// Folder below `src`.
    module: &'static str,
    /// Paths below `crate`; everything below them is allowed too.
    may_use: &'static [&'static str],
    /// Whether it may use the parts of `std` that reach outside the program.
    outside: bool,
}

const LAYERS: &[Layer] = &[
    Layer {
        module: "format",
        may_use: &[
            "error",
            "format",
            "limits",
            "rules",
            "tensor::DescribedDtype",
            "tensor::Digest",
            "tensor::Dtype",
            "tensor::PIECE_BYTES",
            "tensor::TensorInfo",
        ],
        outside: false,
    },
    Layer {
        module: "codec",
        may_use: &["codec", "error", "format", "limits", "rules", "tensor::Dtype", "tensor::PIECE_BYTES"],
        outside: false,
    },
    Layer { module: "tensor", may_use: &["error", "limits", "progress", "rules", "tensor"], outside: false },
    Layer {
        module: "files",
        may_use: &["error", "files", "json", "limits", "plain_name", "rules", "tensor"],
        outside: true,
    },
    Layer {
        module: "memory",
        may_use: &["codec::changes", "codec::lane", "error", "memory", "progress", "rules", "table", "tensor"],
        outside: false,
    },
    Layer {
        module: "chain",
        may_use: &[
            "chain",
            "error",
            "format::Header",
            "json",
            "limits",
            "plain_name",
            "rules",
            "tensor::Digest",
            "tensor::StateDigests",
            "tensor::TensorInfo",
        ],
        outside: false,
    },
];

/// The parts of `std` that reach outside the program.
const OUTSIDE: &[&str] = &["env", "fs", "io", "net", "process", "time"];

/// Checks the sources of the library.
pub(crate) fn check() -> Result {
    let root = root()?;
    let mut files = 0;
    let mut flaws = Vec::new();
    for layer in LAYERS {
        for file in sources(&root.join("src").join(layer.module))? {
            let text = fs::read_to_string(&file)?;
            let shown = file.strip_prefix(&root)?.display().to_string();
            flaws.extend(flaws_of(layer, &text).into_iter().map(|(line, flaw)| format!("{shown}:{line}: {flaw}")));
            files += 1;
        }
    }
    for flaw in &flaws {
        println!("{flaw}");
    }
    if flaws.is_empty() {
        println!("{files} files use what they may");
        Ok(())
    } else {
        Err(format!("{} uses against the directions in ARCHITECTURE.md", flaws.len()).into())
    }
}

/// The files of a module that are no tests, in order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What a source of this layer uses although it must not, with line numbers.
fn flaws_of(layer: &Layer, text: &str) -> Vec<(usize, String)> {
    let mut flaws = Vec::new();
    for (line, path) in used_paths(text) {
        let allowed = match path.split_once("::") {
            Some(("crate", rest)) => {
                layer.may_use.iter().any(|may| rest == *may || rest.starts_with(&format!("{may}::")))
            }
            Some((_, rest)) => {
                layer.outside || !OUTSIDE.iter().any(|out| rest == *out || rest.starts_with(&format!("{out}::")))
            }
            None => true,
        };
        if !allowed {
            flaws.push((line, format!("`{}` must not use `{path}`", layer.module)));
        }
    }
    flaws
}

/// All paths of a source that begin with `crate` or `std`, in `use` or elsewhere, with line numbers. Comments do not
/// count, nor does what follows `#[cfg(test)]` at the start of a line.
fn used_paths(text: &str) -> Vec<(usize, String)> {
    let mut code = String::new();
    for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
        // A `//` in a string hides the rest of its line, in which no path is likely.
        code += line.split("//").next().unwrap_or_default();
        code.push('\n');
    }
    let mut paths = Vec::new();
    let mut rest = code.as_str();
    while let Some(place) = next_root(rest) {
        let line = 1 + code[..code.len() - rest.len() + place].matches('\n').count();
        rest = &rest[place..];
        let mut found = Vec::new();
        rest = path_tree(rest, "", &mut found);
        paths.extend(found.into_iter().map(|path| (line, path)));
    }
    paths
}

/// Where the next `crate::` or `std::` begins that is not the end of a longer name.
fn next_root(text: &str) -> Option<usize> {
    let begins = |root: &'static str| {
        text.match_indices(root).map(|(place, _)| place).find(|&place| !text[..place].ends_with(is_word))
    };
    [begins("crate::"), begins("std::")].into_iter().flatten().min()
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Reads `a::b::{c, d::e}` into the paths that it stands for, each with `prefix` before it. Returns what follows.
fn path_tree<'a>(text: &'a str, prefix: &str, paths: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    let name_end = text.find(|character| !is_word(character)).unwrap_or(text.len());
    let (name, rest) = text.split_at(name_end);
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
    let Some(below) = rest.strip_prefix("::") else {
        paths.push(path);
        return rest;
    };
    let Some(mut list) = below.trim_start().strip_prefix('{') else {
        return path_tree(below, &path, paths);
    };
    loop {
        // What is between names: commas, `as`, `*`, `self`.
        list = list.trim_start();
        if list.starts_with(is_word) {
            list = path_tree(list, &path, paths);
        } else if let Some(after) = list.strip_prefix('}') {
            return after;
        } else if let Some(character) = list.chars().next() {
            list = &list[character.len_utf8()..];
        } else {
            return list;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        used_paths(text).into_iter().map(|(_, path)| path).collect()
    }

    #[test]
    fn paths_are_found_wherever_they_are() {
        assert_eq!(paths("use crate::error::{Error, Result};"), ["crate::error::Error", "crate::error::Result"]);
        assert_eq!(
            paths("use crate::{\n    a::{b, c::d},\n    e,\n};\nfn f(x: std::io::Error) {}"),
            ["crate::a::b", "crate::a::c::d", "crate::e", "std::io::Error"]
        );
        assert_eq!(paths("let x: Vec<crate::a::B<std::c::D>>;"), ["crate::a::B", "std::c::D"]);
    }

    #[test]
    fn comments_tests_and_other_names_do_not_count() {
        assert_eq!(paths("/// [`crate::diff`]\nuse mystd::io; // std::fs"), Vec::<String>::new());
        assert_eq!(paths("use crate::a;\n#[cfg(test)]\nmod tests { use crate::b; }"), ["crate::a"]);
    }

    #[test]
    fn a_use_against_the_directions_is_named_with_its_line() {
        let format = &LAYERS[0];
        assert_eq!(flaws_of(format, "use crate::tensor::{Dtype, TensorInfo};\nuse std::fmt;"), []);
        assert_eq!(
            flaws_of(
                format,
                "use crate::error::Result;\nuse crate::tensor::{Dtype, State};\nuse std::{fmt, fs::File};"
            ),
            [
                (2, "`format` must not use `crate::tensor::State`".to_owned()),
                (3, "`format` must not use `std::fs::File`".to_owned()),
            ]
        );
        assert_eq!(flaws_of(&LAYERS[1], "crate::links::f();").len(), 1);
        assert_eq!(flaws_of(&LAYERS[1], "use crate::format;\nuse crate::errors;").len(), 1);
        assert_eq!(flaws_of(&LAYERS[2], "use std::fs;"), []);
    }
}
