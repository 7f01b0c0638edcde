//! Which file may use which: dependencies point one way (docs/architecture.md).
//!
//! The lower modules of the library have a list of what they may use, and no files or folders of a crate use each other in
//! a circle. Tests may use anything. import-linter finds circles in the Python package, oxlint in the JavaScript reader.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::Result;
use crate::sources::{Crate, Module};
use crate::workspace::{cargo, root};

/// A module of the library and the paths of its own crate that it may use.
struct Layer {
    module: &'static str,
    /// Paths below `crate`, with spaces between them; everything below them is allowed too.
    may_use: &'static str,
    /// Whether it may use what reaches outside the program.
    outside: bool,
}

const LAYERS: [Layer; 6] = [
    Layer {
        module: "format",
        may_use: "error format limits rules tensor::DescribedDtype tensor::Digest tensor::Dtype tensor::PIECE_BYTES \
                  tensor::TensorInfo varint",
        outside: false,
    },
    Layer {
        module: "codec",
        may_use: "codec error format limits rules tensor::Dtype tensor::PIECE_BYTES varint",
        outside: false,
    },
    Layer { module: "tensor", may_use: "error limits progress rules tensor varint", outside: false },
    Layer {
        module: "files",
        may_use: "codec::piece::Profile diff error files json layout limits link::LinkReader plain_name progress \
                  replay::Replay rules setters source table tensor",
        outside: true,
    },
    Layer {
        module: "memory",
        may_use: "codec::changes codec::lane error memory progress rules table tensor",
        outside: false,
    },
    Layer {
        module: "chain",
        may_use: "chain error format::Header json limits plain_name rules tensor::Digest tensor::StateDigests \
                  tensor::TensorInfo",
        outside: false,
    },
];

/// What reaches outside the program.
const OUTSIDE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::path",
    "std::process",
    "std::thread",
    "std::time",
    "tempfile",
];

/// Files or folders, without `.rs`, that may use each other.
struct Circle {
    members: &'static [&'static str],
    /// Why it does no harm.
    #[expect(dead_code, reason = "for people")]
    reason: &'static str,
}

const CIRCLES: &[Circle] = &[
    Circle {
        members: &["src/error", "src/rules"],
        reason: "an error names its rule, and the check of a rule makes the error",
    },
    Circle {
        members: &["src/codec/blocks", "src/codec/x86"],
        reason: "one kernel, in plain code and in that of a processor, which fall back on each other",
    },
];

/// Checks the sources of all crates.
pub(crate) fn check() -> Result {
    let root = root()?;
    let (mut flaws, mut circles, mut modules) = (BTreeSet::new(), Vec::new(), 0);
    for file in roots()? {
        let read = Crate::read(&file)?;
        modules += read.modules.len();
        circles.extend(Graph::of(&read, true).circles());
        circles.extend(Graph::of(&read, false).circles());
        if file == root.join("src/lib.rs") {
            flaws.extend(LAYERS.iter().flat_map(|layer| flaws_of(layer, &read)));
        }
    }
    flaws.extend(flaws_of_circles(&circles, CIRCLES, &root));
    for flaw in &flaws {
        println!("{}", flaw.replace(&format!("{}/", root.display()), ""));
    }
    if flaws.is_empty() {
        println!("{modules} modules use what they may");
        Ok(())
    } else {
        Err(format!("{} uses against the directions in docs/architecture.md", flaws.len()).into())
    }
}

/// The root files of the libraries and programs of all crates.
fn roots() -> Result<Vec<PathBuf>> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"])?.stderr(Stdio::inherit()).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let built = targets.filter(|target| ["lib", "bin", "cdylib"].iter().any(|kind| target["kind"][0] == *kind));
    Ok(built.filter_map(|target| target["src_path"].as_str().map(PathBuf::from)).collect())
}

/// What the modules of this layer use although they must not.
fn flaws_of(layer: &Layer, read: &Crate) -> Vec<String> {
    let mut flaws = Vec::new();
    let mut modules = 0;
    for (number, Module { path, file, uses, .. }) in read.modules.iter().enumerate() {
        if path.first().is_none_or(|first| first != layer.module) {
            continue;
        }
        modules += 1;
        for found in uses {
            let full = read.full_path(number, &found.path).join("::");
            let is_below = |start: &str| full == start || full.starts_with(&format!("{start}::"));
            let allowed = if is_below("crate") {
                layer.may_use.split_whitespace().any(|may| is_below(&format!("crate::{may}")))
            } else {
                layer.outside || !OUTSIDE.iter().any(|outside| is_below(outside))
            };
            if !allowed {
                flaws.push(format!("{}:{}: `{}` must not use `{full}`", file.display(), found.line, layer.module));
            }
        }
    }
    if modules == 0 {
        flaws.push(format!("there is no module `{}`", layer.module));
    }
    flaws
}

/// Files or folders of a crate, each with the ones that it uses and the place of a use.
struct Graph(BTreeMap<PathBuf, BTreeMap<PathBuf, String>>);

/// Files or folders that all use each other in the end, and in words how.
struct FoundCircle {
    members: BTreeSet<PathBuf>,
    shown: String,
}

impl Graph {
    /// The crate's files, or the files and folders directly in the folder of its root; without `.rs`, so that files and
    /// folders look alike. A path that a file passes on by `pub use` counts for the users of that path, not for the
    /// file.
    fn of(read: &Crate, by_file: bool) -> Self {
        let folder = read.modules[0].file.parent().unwrap_or(Path::new(""));
        let member = |module: &Module| match module.path.first() {
            Some(top) if !by_file => folder.join(top),
            _ => module.file.with_extension(""),
        };
        let mut members: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for (number, module) in read.modules.iter().enumerate() {
            let uses = members.entry(member(module)).or_default();
            for found in module.uses.iter().filter(|found| !found.is_reexport) {
                let used = read.definer(number, &found.path).map(|definer| member(&read.modules[definer]));
                if let Some(used) = used.filter(|used| *used != member(module)) {
                    uses.entry(used).or_insert_with(|| format!("{}:{}", module.file.display(), found.line));
                }
            }
        }
        Self(members)
    }

    fn circles(&self) -> Vec<FoundCircle> {
        let reached: BTreeMap<_, _> = self.0.keys().map(|member| (member, self.reached(member))).collect();
        let around = |member| reached[member].iter().copied().filter(|other| reached[other].contains(member)).collect();
        let circles: BTreeSet<BTreeSet<&PathBuf>> = self.0.keys().map(around).collect();
        let found = circles.into_iter().filter(|members| !members.is_empty()).map(|members| {
            let all_uses =
                members.iter().flat_map(|&member| &self.0[member]).filter(|(used, _)| members.contains(used));
            let uses = all_uses.map(|(used, place)| format!("\n    {place} uses {}", used.display()));
            let shown = format!("a circle:{}", uses.collect::<String>());
            FoundCircle { members: members.into_iter().cloned().collect(), shown }
        });
        found.collect()
    }

    /// What this member uses in the end.
    fn reached<'a>(&'a self, member: &'a PathBuf) -> BTreeSet<&'a PathBuf> {
        let mut reached = BTreeSet::new();
        let mut waiting = vec![member];
        while let Some(at) = waiting.pop() {
            waiting.extend(self.0[at].keys().filter(|next| reached.insert(*next)));
        }
        reached
    }
}

/// The circles that are not allowed, and the allowed ones that do not exist.
fn flaws_of_circles(found: &[FoundCircle], allowed: &[Circle], root: &Path) -> Vec<String> {
    let allowed: Vec<BTreeSet<PathBuf>> =
        allowed.iter().map(|circle| circle.members.iter().map(|file| root.join(file)).collect()).collect();
    let too_many = found.iter().filter(|circle| !allowed.contains(&circle.members)).map(|circle| circle.shown.clone());
    let is_found = |members: &&BTreeSet<PathBuf>| found.iter().any(|circle| circle.members == **members);
    let in_vain =
        allowed.iter().filter(|members| !is_found(members)).map(|members| format!("no circle any more: {members:?}"));
    too_many.chain(in_vain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::tests::crate_of;

    const LAYER: Layer = Layer { module: "a", may_use: "a b::C", outside: false };

    fn flaws(text: &str) -> Vec<String> {
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "mod x;"), ("a/x.rs", text), ("b.rs", "")];
        let flaws = flaws_of(&LAYER, &crate_of(&files).unwrap());
        flaws.iter().map(|flaw| flaw.split("x.rs:").last().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_use_against_the_directions_is_named_with_its_line() {
        assert_eq!(flaws("use crate::b::C;\nuse crate::a::y;\nuse std::fmt;"), Vec::<String>::new());
        assert_eq!(
            flaws("use crate::b::{\nC,\nD};\nuse std::{fmt, fs::File};"),
            ["3: `a` must not use `crate::b::D`", "4: `a` must not use `std::fs::File`"]
        );
        assert_eq!(flaws("use crate::b::Cd;").len(), 1);
        assert_eq!(flaws("use super::super::b;").len(), 1);
        let other = Layer { module: "c", ..LAYER };
        assert_eq!(flaws_of(&other, &crate_of(&[("lib.rs", "")]).unwrap()), ["there is no module `c`"]);
    }

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let circles = Graph::of(&crate_of(files).unwrap(), true).circles();
        let names = |circle: &FoundCircle| {
            let names = circle.members.iter().map(|file| file.file_stem().unwrap().to_string_lossy());
            names.collect::<Vec<_>>().join(" ")
        };
        circles.iter().map(names).collect()
    }

    #[test]
    fn circles_are_found_through_what_is_passed_on() {
        let root = ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;");
        let (a, c) = (("a.rs", "use crate::b::B;"), ("c.rs", "use crate::A;"));
        assert_eq!(circles(&[root, a, ("b.rs", "use crate::c::C;"), c, ("d.rs", "use crate::A;")]), ["a b c"]);
        assert_eq!(circles(&[root, a, ("b.rs", "#[cfg(test)] mod t { use crate::c::C; }"), c, ("d.rs", "")]), [""; 0]);
        // Folders have circles that files do not have.
        let files =
            [("lib.rs", "mod a; mod b;"), ("a.rs", "mod c; mod d;"), ("a/c.rs", "use crate::b;"), ("a/d.rs", "")];
        let files: Vec<_> = files.into_iter().chain([("b.rs", "use crate::a::d;")]).collect();
        assert_eq!(circles(&files), [""; 0]);
        assert_eq!(Graph::of(&crate_of(&files).unwrap(), false).circles().len(), 1);
        // A module that only passes on items of its submodule is in no circle with it; a module that uses them is.
        assert_eq!(circles(&[("lib.rs", "mod a; pub use a::A; pub struct B;"), ("a.rs", "use crate::B;")]), [""; 0]);
        assert_eq!(circles(&[("lib.rs", "mod a; use a::A; pub struct B;"), ("a.rs", "use crate::B;")]), ["a lib"]);
    }

    #[test]
    fn an_allowed_circle_must_be_there_as_it_is() {
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")];
        let found = Graph::of(&crate_of(&files).unwrap(), true).circles();
        let root = found[0].members.first().unwrap().parent().unwrap().to_owned();
        let allowing = |members: &'static [&'static str]| {
            let circle = Circle { members, reason: "" };
            flaws_of_circles(&found, &[circle], &root).len()
        };
        assert_eq!(allowing(&["a", "b"]), 0);
        assert_eq!(allowing(&["a", "b", "c"]), 2);
        let shown = found[0].shown.replace(&format!("{}/", root.display()), "");
        assert_eq!(shown, "a circle:\n    a.rs:1 uses b\n    b.rs:1 uses a");
    }
}
