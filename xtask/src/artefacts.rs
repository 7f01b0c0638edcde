//! The files of a release, side by side in `target/artefacts`: what was built, `bill-of-materials.json` (`CycloneDX`),
//! `provenance.json` (a statement of in-toto in the layout of SLSA: from which commit, by which programs; not signed) and
//! `SHA256SUMS`. For `cargo xtask release --dry-run`; publishing is for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::Result;
use crate::steps::say;
use crate::workspace::{cargo, root, target};

const BILL: &str = "bill-of-materials.json";
const PROVENANCE: &str = "provenance.json";
const SUMS: &str = "SHA256SUMS";
/// The packages of Rust whose code is in what users get; the other published crates are among those that these need.
const ROOTS: [&str; 3] = ["deltachain-cli", "deltachain-python", "deltachain-conformance"];
/// What fixes the versions of all that is built from or by, relative to the root.
const LOCKS: [&str; 5] = [
    "Cargo.lock",
    "js/package-lock.json",
    "python/requirements-build.txt",
    "python/requirements-manylinux.txt",
    "python/requirements-release.txt",
];
/// Programs that build. `--version` makes them say their versions.
const PROGRAMS: [&str; 6] = ["rustc", "cargo", "cc", "python3", "node", "npm"];

/// The files of a release.
pub(crate) struct Artefacts {
    folder: PathBuf,
    /// Names, and how each was tried.
    files: BTreeMap<String, String>,
    /// What could not be built here, and why.
    missing: Vec<(String, String)>,
}

impl Artefacts {
    /// None yet.
    pub(crate) fn begin() -> Result<Self> {
        let folder = target()?.join("artefacts");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, files: BTreeMap::new(), missing: Vec::new() })
    }

    /// Takes a copy of a file that was built.
    pub(crate) fn add(&mut self, file: &Path, tried: &str) -> Result {
        let name = file.file_name().ok_or("an artefact has no name")?;
        fs::copy(file, self.folder.join(name)).map_err(|error| format!("{}: {error}", file.display()))?;
        self.files.insert(name.to_string_lossy().into_owned(), tried.to_owned());
        Ok(())
    }

    /// Notes what could not be built.
    pub(crate) fn miss(&mut self, what: &str, why: &str) {
        self.missing.push((what.to_owned(), why.to_owned()));
    }

    /// Writes the bill of materials of all that is released.
    pub(crate) fn write_bill(&mut self) -> Result {
        let output = cargo(&["metadata", "--locked", "--format-version", "1"])?.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let read = |name: &str| Result::Ok(fs::read_to_string(root()?.join(name))?);
        if !read("python/pyproject.toml")?.contains("\ndependencies = []\n") {
            return Err("python/pyproject.toml has dependencies, which the bill of materials does not list yet".into());
        }
        let npm: Value = serde_json::from_str(&read("js/package-lock.json")?)?;
        let bill = bill(&serde_json::from_slice(&output.stdout)?, &read("Cargo.lock")?, &npm)?;
        fs::write(self.folder.join(BILL), format!("{bill:#}\n"))?;
        self.files.insert(BILL.to_owned(), String::new());
        Ok(())
    }

    /// Writes where all of it comes from, and the checksums; and lists it.
    pub(crate) fn finish(&self) -> Result {
        let git = |words: &[&str]| -> Result<String> {
            let output = Command::new("git").args(words).current_dir(root()?).output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
            }
            Ok(String::from_utf8(output.stdout)?.trim().to_owned())
        };
        let mut used = vec![json!({ "name": "commit", "digest": { "gitCommit": git(&["rev-parse", "HEAD"])? } })];
        for name in LOCKS {
            used.push(json!({ "name": name, "digest": { "sha256": sha256(&root()?.join(name))? } }));
        }
        let first_line = |output: std::process::Output| {
            String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
        };
        let version =
            |program| Command::new(program).arg("--version").output().map_or_else(|_| "none".to_owned(), first_line);
        let programs: BTreeMap<&str, String> = PROGRAMS.iter().map(|program| (*program, version(program))).collect();
        let mut subjects = Vec::new();
        for (name, tried) in &self.files {
            let digest = sha256(&self.folder.join(name))?;
            subjects.push(json!({ "name": name, "digest": { "sha256": digest }, "annotations": { "tried": tried } }));
        }
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": subjects,
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    // A URI where there is an address. The project has none yet.
                    "buildType": "cargo xtask release --dry-run",
                    "externalParameters": { "command": "cargo xtask release --dry-run" },
                    "internalParameters": {
                        "programs": programs,
                        "uncommitted": !git(&["status", "--porcelain"])?.is_empty(),
                    },
                    "resolvedDependencies": used,
                },
                "runDetails": { "builder": { "id": "the machine of whoever ran the command; nobody has signed this" } },
            },
        });
        fs::write(self.folder.join(PROVENANCE), format!("{statement:#}\n"))?;

        let mut sums = String::new();
        for name in self.files.keys().map(String::as_str).chain([PROVENANCE]) {
            sums.extend([&sha256(&self.folder.join(name))?, "  ", name, "\n"]);
        }
        fs::write(self.folder.join(SUMS), sums)?;
        say(format_args!("{}:", self.folder.display()));
        for (name, tried) in &self.files {
            say(format_args!("{name}  {tried}"));
        }
        say(format_args!("{PROVENANCE}\n{SUMS}"));
        for (what, why) in &self.missing {
            say(format_args!("MISSING: {what}: {why}"));
        }
        Ok(())
    }
}

fn sha256(file: &Path) -> Result<String> {
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}

/// What is in the packages of Rust and npm, with licences, sums and who needs whom, but not what only tests need. It is
/// that of all systems and features together.
fn bill(metadata: &Value, lock: &str, npm: &Value) -> Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let url = |id: &str| format!("pkg:cargo/{}@{}", text(&packages[id]["name"]), text(&packages[id]["version"]));

    let is_root = |(id, package): (&String, &Value)| {
        (package["source"].is_null() && ROOTS.contains(&text(&package["name"]).as_str())).then(|| id.clone())
    };
    let mut left: Vec<String> = packages.iter().filter_map(is_root).collect();
    if left.len() != ROOTS.len() {
        return Err(format!("not all of {ROOTS:?} are packages of the workspace").into());
    }
    let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    while let Some(id) = left.pop() {
        if needs.contains_key(&id) {
            continue;
        }
        let node = nodes.get(&id).ok_or_else(|| format!("cargo does not say what {id} needs"))?;
        let needed =
            list(&node["deps"]).into_iter().filter(|dep| list(&dep["dep_kinds"]).iter().any(|k| k["kind"] != "dev"));
        let needed: BTreeSet<String> = needed.map(|dep| text(&dep["pkg"])).collect();
        left.extend(needed.iter().cloned());
        needs.insert(id, needed);
    }
    let sums: BTreeMap<(String, String), String> = lock.split("[[package]]").filter_map(sum_of).collect();

    let mut components = Vec::new();
    for id in needs.keys() {
        let package = &packages[id];
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let mut component = component(&url(id), &name, &version, &text(&package["license"]));
        if let Some(sum) = sums.get(&(name, version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        components.push(component);
    }
    let mut dependencies: Vec<Value> = needs
        .iter()
        .map(|(id, needed)| json!({ "ref": url(id), "dependsOn": needed.iter().map(|id| url(id)).collect::<Vec<_>>() }))
        .collect();

    // npm: packages by their places, "node_modules/a/node_modules/b". What is not for tests is needed by ours.
    let mut needed = Vec::new();
    let reader = &npm["packages"][""];
    for (place, package) in npm["packages"].as_object().into_iter().flatten() {
        if place.is_empty() || package["dev"] == true {
            continue;
        }
        let name = place.rsplit("node_modules/").next().unwrap_or_default();
        let version = text(&package["version"]);
        let url = npm_url(name, &version);
        components.push(component(&url, name, &version, &text(&package["license"])));
        needed.push(url);
    }
    let (name, version) = (text(&reader["name"]), text(&reader["version"]));
    components.push(component(&npm_url(&name, &version), &name, &version, &text(&reader["license"])));
    dependencies.push(json!({ "ref": npm_url(&name, &version), "dependsOn": needed }));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "deltachain", "version": version } },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn npm_url(name: &str, version: &str) -> String {
    format!("pkg:npm/{}@{version}", name.replace('@', "%40"))
}

fn component(url: &str, name: &str, version: &str, license: &str) -> Value {
    // Older packages of Rust write "MIT/Apache-2.0".
    let license = license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
    let mut value = json!({ "type": "library", "bom-ref": url, "name": name, "version": version, "purl": url });
    if !license.is_empty() {
        value["licenses"] = json!([{ "expression": license }]);
    }
    value
}

/// Name, version and checksum of a package in Cargo.lock.
fn sum_of(block: &str) -> Option<((String, String), String)> {
    let value = |key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        Some(line?.trim_end_matches('"').to_owned())
    };
    Some(((value("name")?, value("version")?), value("checksum")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_what_is_released_and_not_what_tests_need() {
        let ours =
            |name: &str| json!({ "id": name, "name": name, "version": "0.1.0", "license": "MIT", "source": null });
        let other = |name: &str| json!({ "id": name, "name": name, "version": "2.0.0", "license": "Unlicense/MIT", "source": "registry" });
        let dep = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let mut metadata = json!({
            "packages": [other("hash"), other("cc"), other("proptest"), ours("xtask")],
            "resolve": { "nodes": [
                { "id": "deltachain-cli", "deps": [dep("hash", Value::Null), dep("proptest", json!("dev"))] },
                { "id": "deltachain-python", "deps": [dep("deltachain-cli", Value::Null)] },
                { "id": "deltachain-conformance", "deps": [] },
                { "id": "hash", "deps": [dep("cc", json!("build")), dep("hash", json!("dev"))] },
                { "id": "cc", "deps": [] }, { "id": "proptest", "deps": [] }, { "id": "xtask", "deps": [] },
            ] },
        });
        let lock = "version = 4\n\n[[package]]\nname = \"hash\"\nversion = \"2.0.0\"\nchecksum = \"ab\"\n";
        let npm = json!({ "packages": {
            "": { "name": "@deltachain/reader", "version": "0.1.0", "license": "MIT" },
            "node_modules/@noble/hashes": { "version": "2.4.0", "license": "MIT" },
            "node_modules/a/node_modules/typescript": { "version": "5.0.0", "dev": true },
        } });
        assert!(bill(&metadata, lock, &npm).unwrap_err().to_string().starts_with("not all of"));
        metadata["packages"].as_array_mut().unwrap().extend(ROOTS.map(ours));

        let bill = bill(&metadata, lock, &npm).unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: Vec<_> = components.iter().map(|component| component["purl"].as_str().unwrap()).collect();
        let wanted = [
            "pkg:cargo/cc@2.0.0",
            "pkg:cargo/deltachain-cli@0.1.0",
            "pkg:cargo/deltachain-conformance@0.1.0",
            "pkg:cargo/deltachain-python@0.1.0",
            "pkg:cargo/hash@2.0.0",
            "pkg:npm/%40noble/hashes@2.4.0",
            "pkg:npm/%40deltachain/reader@0.1.0",
        ];
        assert_eq!(names, wanted);
        assert_eq!(components[4]["hashes"], json!([{ "alg": "SHA-256", "content": "ab" }]));
        assert_eq!(components[4]["licenses"], json!([{ "expression": "Unlicense OR MIT" }]));
        assert_eq!(bill["dependencies"][1], json!({ "ref": wanted[1], "dependsOn": [wanted[4]] }));
        // Every reference is that of a component.
        for dependency in bill["dependencies"].as_array().unwrap() {
            for reference in dependency["dependsOn"].as_array().unwrap() {
                assert!(wanted.contains(&reference.as_str().unwrap()), "{reference}");
            }
        }
    }

    #[test]
    fn sums_are_those_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let from = tempfile::tempdir().unwrap();
        let mut artefacts = Artefacts { folder: folder.path().to_owned(), files: BTreeMap::new(), missing: Vec::new() };
        fs::write(from.path().join("a.whl"), "abc").unwrap();
        artefacts.add(&from.path().join("a.whl"), "UNVERIFIED: no machine").unwrap();
        assert!(artefacts.add(&from.path().join("missing"), "").is_err());
        artefacts.write_bill().unwrap();
        artefacts.finish().unwrap();

        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sums = read(SUMS);
        assert_eq!(sums.lines().next(), Some(format!("{abc}  a.whl").as_str()));
        assert_eq!(sums.lines().map(|line| &line[66..]).collect::<Vec<_>>(), ["a.whl", BILL, PROVENANCE]);
        let statement: Value = serde_json::from_str(&read(PROVENANCE)).unwrap();
        assert_eq!(statement["subject"][0]["digest"]["sha256"], abc);
        assert_eq!(statement["subject"][0]["annotations"]["tried"], "UNVERIFIED: no machine");
        let commit = &statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"];
        assert_eq!(commit.as_str().map(str::len), Some(40));
        // The real bill: what everybody gets is there, what only tests need is not.
        let bill = read(BILL);
        assert!(bill.contains("pkg:cargo/blake3@") && bill.contains("pkg:npm/%40noble/hashes@"));
        assert!(!bill.contains("pkg:cargo/proptest@") && !bill.contains("pkg:npm/typescript@"));
    }
}
