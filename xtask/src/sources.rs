//! The modules of a crate and the paths that each of them uses outside its tests, as the compiler would find them: read with
//! `syn` from the root file on, along the `mod` items.
//!
//! Imports count, and paths anywhere in the code, also relative ones, those in macros and those in strings of attributes.
//! What would hide a use from this (`use` of everything in a module of the crate, `include!`, `#[path]`) is an error.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemExternCrate, ItemMod, ItemUse, Macro, Meta, Stmt, UseTree, Visibility};

use crate::Result;

/// The modules of a crate that are not tests; the first is the root.
pub(crate) struct Crate {
    pub(crate) modules: Vec<Module>,
}

pub(crate) struct Module {
    /// The names that lead to it from the root.
    pub(crate) path: Vec<String>,
    pub(crate) file: PathBuf,
    pub(crate) uses: Vec<Use>,
    /// What its imports call by which name.
    names: BTreeMap<String, Vec<String>>,
    children: BTreeMap<String, usize>,
}

/// A path in a module, as it is written.
pub(crate) struct Use {
    pub(crate) line: usize,
    pub(crate) path: Vec<String>,
    /// Whether it is imported for others: `pub use`.
    pub(crate) is_reexport: bool,
}

impl Crate {
    /// Reads the crate whose root is this file.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let folder = root.parent().ok_or("the file has no folder")?;
        let mut made = Self { modules: Vec::new() };
        made.add_file(Vec::new(), root.to_owned(), folder)?;
        Ok(made)
    }

    /// Adds the module that a file holds, and those below it. `folder`: where files of modules below it are.
    fn add_file(&mut self, path: Vec<String>, file: PathBuf, folder: &Path) -> Result<usize> {
        let text = fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| format!("cannot parse {}: {error}", file.display()))?;
        self.add_module(path, file, folder, &parsed.items)
    }

    fn add_module(&mut self, path: Vec<String>, file: PathBuf, folder: &Path, items: &[Item]) -> Result<usize> {
        let mut found = Found::default();
        items.iter().for_each(|item| found.visit_item(item));
        if let Some((line, hidden)) = found.hidden.first() {
            return Err(format!("{}:{line}: {hidden} hides what is used", file.display()).into());
        }
        let number = self.modules.len();
        let module = Module { path, file, uses: found.uses, names: found.names, children: BTreeMap::new() };
        self.modules.push(module);
        for child in found.modules {
            let name = child.ident.to_string();
            let (path, file) = (&self.modules[number].path, &self.modules[number].file);
            let path = path.iter().cloned().chain([name.clone()]).collect();
            let below = folder.join(&name);
            let added = match child.content {
                Some((_, items)) => self.add_module(path, file.clone(), &below, &items)?,
                None => {
                    let files = [folder.join(format!("{name}.rs")), below.join("mod.rs")];
                    let file = files.into_iter().find(|file| file.is_file());
                    self.add_file(path, file.ok_or_else(|| format!("no file of module {name}"))?, &below)?
                }
            };
            self.modules[number].children.insert(name, added);
        }
        self.refuse_globs(number)?;
        Ok(number)
    }

    /// An error if a module imports everything of a module of its own crate.
    fn refuse_globs(&self, module: usize) -> Result {
        let Module { file, uses, .. } = &self.modules[module];
        for Use { line, path, .. } in uses {
            if path.last().is_some_and(|last| last == "*") && self.full_path(module, path)[0] == "crate" {
                return Err(format!("{}:{line}: `{}` hides what is used", file.display(), path.join("::")).into());
            }
        }
        Ok(())
    }

    /// A path of a module from `crate` or the name of another crate on.
    pub(crate) fn full_path(&self, module: usize, path: &[String]) -> Vec<String> {
        let mut path = path.to_vec();
        // Imports may name other imports; the bound ends circles.
        for _ in 0..16 {
            let Module { path: own, names, children, .. } = &self.modules[module];
            match path[0].as_str() {
                "crate" => break,
                "self" => drop(path.splice(..1, below_root(own))),
                "super" => {
                    let levels = path.iter().take_while(|name| *name == "super").count();
                    drop(path.splice(..levels, below_root(&own[..own.len().saturating_sub(levels)])));
                }
                name if children.contains_key(name) => drop(path.splice(..0, below_root(own))),
                name => match names.get(name) {
                    Some(target) if target[0] != name => drop(path.splice(..1, target.iter().cloned())),
                    _ => break,
                },
            }
        }
        path
    }

    /// The module that has what a path of `module` names, through all `pub use`. Nothing if another crate has it.
    pub(crate) fn definer(&self, module: usize, path: &[String]) -> Option<usize> {
        let (mut at, mut path) = (module, path.to_vec());
        for _ in 0..16 {
            path = self.full_path(at, &path);
            if path[0] != "crate" {
                return None;
            }
            at = 0;
            let mut rest = path[1..].iter();
            let mut imported = None;
            for name in rest.by_ref() {
                match self.modules[at].children.get(name) {
                    Some(&child) => at = child,
                    None => {
                        imported = self.modules[at].names.get(name);
                        break;
                    }
                }
            }
            match imported {
                Some(target) => path = target.iter().chain(rest).cloned().collect(),
                None => break,
            }
        }
        Some(at)
    }
}

/// `crate`, followed by these.
fn below_root(path: &[String]) -> Vec<String> {
    ["crate".to_owned()].into_iter().chain(path.iter().cloned()).collect()
}

/// The content of a module, without its submodules.
#[derive(Default)]
struct Found {
    uses: Vec<Use>,
    names: BTreeMap<String, Vec<String>>,
    modules: Vec<ItemMod>,
    /// What hides uses, with lines.
    hidden: Vec<(usize, &'static str)>,
}

impl Found {
    fn add(&mut self, line: usize, path: Vec<String>, is_reexport: bool) {
        self.uses.push(Use { line, path, is_reexport });
    }

    /// Takes the paths of `a::b::{c, d as e}`.
    fn add_tree(&mut self, tree: &UseTree, mut prefix: Vec<String>, is_reexport: bool) {
        let (line, mut bind) = match tree {
            UseTree::Path(below) => {
                prefix.push(below.ident.to_string());
                return self.add_tree(&below.tree, prefix, is_reexport);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_tree(tree, prefix.clone(), is_reexport));
            }
            UseTree::Name(name) => {
                prefix.push(name.ident.to_string());
                (name.ident.span().start().line, name.ident.to_string())
            }
            UseTree::Rename(renamed) => {
                prefix.push(renamed.ident.to_string());
                (renamed.ident.span().start().line, renamed.rename.to_string())
            }
            UseTree::Glob(glob) => {
                prefix.push("*".to_owned());
                (glob.star_token.spans[0].start().line, "*".to_owned())
            }
        };
        // `a::{self}` is `a`.
        if prefix.len() > 1 && prefix.last().is_some_and(|last| last == "self") {
            prefix.pop();
            if bind == "self" {
                bind.clone_from(&prefix[prefix.len() - 1]);
            }
        }
        if bind != "*" {
            self.names.insert(bind, prefix.clone());
        }
        self.add(line, prefix, is_reexport);
    }

    /// Takes the paths among tokens without a meaning yet: the arguments of a macro or an attribute.
    fn add_tokens(&mut self, tokens: TokenStream, prefix: &[String]) {
        let (mut path, mut line, mut colons) = (prefix.to_vec(), 0, 2);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_of_path(&mut path, prefix, line);
                    }
                    line = name.span().start().line;
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    let inside = if colons == 2 { path.clone() } else { prefix.to_vec() };
                    self.add_tokens(group.stream(), &inside);
                }
                TokenTree::Literal(text) => self.add_text(&text.to_string(), text.span().start().line),
                TokenTree::Punct(_) => {}
            }
            self.end_of_path(&mut path, prefix, line);
            colons = 2;
        }
        self.end_of_path(&mut path, prefix, line);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>, prefix: &[String], line: usize) {
        if path.len() > prefix.len() {
            self.add(line, path.clone(), false);
        }
        *path = prefix.to_vec();
    }

    /// Takes a path in a string, such as serde's `with = "crate::a"`.
    fn add_text(&mut self, text: &str, line: usize) {
        let path = text.trim_matches('"').split("::").map(str::to_owned).collect::<Vec<_>>();
        let is_name = |name: &String| syn::parse_str::<syn::Ident>(name).is_ok() || is_root(name);
        if path.len() > 1 && path.iter().all(is_name) {
            self.add(line, path, false);
        }
    }
}

fn is_root(name: &str) -> bool {
    ["crate", "self", "super"].contains(&name)
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            // Never left out, even if they are for tests.
            _ => [].as_slice(),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(item) if is_for_tests(&item.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if !matches!(statement, Stmt::Local(local) if is_for_tests(&local.attrs)) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        module.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        self.modules.push(module.clone());
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_tree(&item.tree, Vec::new(), !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_item_extern_crate(&mut self, item: &'ast ItemExternCrate) {
        self.hidden.push((item.ident.span().start().line, "`extern crate`"));
    }

    /// `pub(in a::b)` uses nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(first) = path.segments.first() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(first.ident.span().start().line, names, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        if call.path.is_ident("include") {
            self.hidden.push((call.path.segments[0].ident.span().start().line, "`include!`"));
        }
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone(), &[]);
    }

    /// What `syn` does not know.
    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        self.add_tokens(tokens.clone(), &[]);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::NameValue(meta) if meta.path.is_ident("path") => {
                self.hidden.push((attribute.pound_token.span.start().line, "`#[path]`"));
            }
            Meta::List(list) => self.add_tokens(list.tokens.clone(), &[]),
            // Documentation, and words such as `#[non_exhaustive]`.
            _ => {}
        }
    }
}

/// Whether something is only there in tests: `#[cfg(test)]`, or `test` among others that have to hold.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    fn holds_only_in_tests(meta: &Meta) -> bool {
        match meta {
            Meta::Path(path) => path.is_ident("test"),
            Meta::List(list) if list.path.is_ident("all") => list
                .parse_args_with(syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated)
                .is_ok_and(|all| all.iter().any(holds_only_in_tests)),
            _ => false,
        }
    }
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|meta| holds_only_in_tests(&meta))
        }
        _ => false,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A crate of these files; the first one is its root.
    pub(crate) fn crate_of(files: &[(&str, &str)]) -> Result<Crate> {
        let folder = tempfile::tempdir()?;
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap())?;
            fs::write(file, text)?;
        }
        Crate::read(&folder.path().join(files[0].0))
    }

    /// The paths of the module `a`, from their roots on.
    fn paths(text: &str) -> Vec<String> {
        let read = crate_of(&[("lib.rs", "mod a;"), ("a.rs", text), ("a/b.rs", ""), ("a/b/mod.rs", "")]).unwrap();
        read.modules[1].uses.iter().map(|found| read.full_path(1, &found.path).join("::")).collect()
    }

    #[test]
    fn paths_are_found_wherever_they_are() {
        assert_eq!(
            paths("use crate::e::{E, R as S, f::{self, G}};"),
            ["crate::e::E", "crate::e::R", "crate::e::f", "crate::e::f::G"]
        );
        assert!(paths("fn f(x: &std::io::Error) { x.do_with::<Vec<crate::b::C>>() }").contains(&"crate::b::C".into()));
        assert!(paths("fn f() { use crate::b; b::c() }").contains(&"crate::b::c".into()));
        assert!(paths("impl super::b::T for U where Self: ::std::fs::V {}").contains(&"std::fs::V".into()));
    }

    #[test]
    fn nothing_hides_a_path() {
        // After tests, inside them in name only, and behind what looks like a comment.
        assert_eq!(paths("#[cfg(test)]\nmod tests { use crate::b; }\nuse crate::c;"), ["crate::c"]);
        assert_eq!(paths("#[cfg(any(test, unix))]\nuse crate::c;"), ["crate::c"]);
        assert_eq!(paths("#[cfg(not(test))]\nuse crate::c;"), ["crate::c"]);
        assert!(paths("const A: (&str, u8) = (\"//\", crate::b::C);").contains(&"crate::b::C".into()));
        // Relative, renamed, or in an inner module.
        assert_eq!(paths("use super::super::super::b;\nuse self::c;"), ["crate::b", "crate::a::c"]);
        assert!(paths("use crate as root; fn f() { root::b::c() }").contains(&"crate::b::c".into()));
        assert!(paths("use std as s; fn f() { s::fs::c() }").contains(&"std::fs::c".into()));
        // In macros and attributes.
        assert!(paths("fn f() { g!(1, { use crate::b::{c, d::e}; }) }").contains(&"crate::b::d::e".into()));
        assert!(paths("macro_rules! m { ($x:ty) => { $crate::b::c($x) } }").contains(&"crate::b::c".into()));
        assert_eq!(paths("#[serde(with = \"crate::b\")]\nstruct A;"), ["with", "crate::b"]);
        // Comments and tests use nothing.
        assert_eq!(paths("//! [`crate::b`]\n/// [`crate::c`]\nstruct A; // crate::d"), Vec::<String>::new());
        assert_eq!(
            paths("#[cfg(all(test, unix))]\nuse crate::b;\nimpl A { #[cfg(test)] fn f(_: crate::b::C) {} }"),
            ["A"]
        );
    }

    #[test]
    fn what_would_hide_a_path_is_refused() {
        for text in ["use crate::b::*;", "use super::*;", "include!(\"b.rs\");", "extern crate std as c;"] {
            assert!(crate_of(&[("lib.rs", "mod a;"), ("a.rs", text)]).is_err(), "{text}");
        }
        assert!(crate_of(&[("lib.rs", "#[path = \"b.rs\"] mod a;"), ("b.rs", "")]).is_err());
        assert!(crate_of(&[("lib.rs", "mod a;")]).is_err());
        crate_of(&[("lib.rs", "use rayon::prelude::*;\n#[cfg(test)] mod a;")]).unwrap();
    }

    #[test]
    fn a_path_leads_to_the_module_that_has_the_item() {
        let read = crate_of(&[
            ("lib.rs", "mod a; mod b; pub use b::c::{D as E, f};"),
            ("a.rs", ""),
            ("b.rs", "pub mod c; pub use self::c::D; pub mod inner { pub use super::D; pub struct G; }"),
            ("b/c.rs", ""),
        ])
        .unwrap();
        let definer = |path: &str| {
            let path: Vec<String> = path.split("::").map(str::to_owned).collect();
            read.definer(1, &path).map(|module| read.modules[module].path.join("::"))
        };
        for path in ["crate::E", "super::f", "crate::b::D::new", "crate::b::c::x", "crate::b::inner::D"] {
            assert_eq!(definer(path).as_deref(), Some("b::c"), "{path}");
        }
        assert_eq!(definer("crate::b::inner::G").as_deref(), Some("b::inner"));
        assert_eq!(definer("crate::H").as_deref(), Some(""));
        assert_eq!(definer("std::fs"), None);
    }
}
