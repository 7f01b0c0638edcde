//! Where the project can be found. It is said once, as `repository` of `[workspace.package]` in Cargo.toml, which the
//! packages of Rust inherit and the wheel takes from them; files that cannot inherit it have to agree. Without it nothing is
//! published, so no page may tell readers to install from a registry.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Result;
use crate::steps::Steps;
use crate::workspace::{cargo, root};

/// Pages that users read first, relative to the root; and all of `docs`.
const PAGES: [&str; 4] = ["README.md", "python/README.md", "js/README.md", "crates/deltachain-cli/README.md"];
/// What installs from a registry.
const INSTALLS: [&str; 6] = [
    "pip install deltachain",
    "npm install @deltachain/reader",
    "npm i @deltachain/reader",
    "cargo install deltachain",
    "cargo install --locked deltachain",
    "cargo add deltachain",
];

/// That metadata and pages agree with the address, or with there being none.
pub(crate) fn add_steps(steps: &mut Steps) {
    let found = steps.get("address in all metadata", || {
        let output = cargo(&["metadata", "--locked", "--no-deps", "--format-version", "1"])?.output()?;
        let npm = serde_json::from_slice(&fs::read(root()?.join("js/package.json"))?)?;
        let citation = root()?.join("CITATION.cff");
        let citation = if citation.exists() { Some(fs::read_to_string(citation)?) } else { None };
        everywhere(&serde_json::from_slice(&output.stdout)?, &npm, citation.as_deref())
    });
    if let Some(None) = found {
        steps.skip("address before a release", "the project has no address yet");
        steps.run("no page installs what is not published", || no_page_installs(&root()?));
    }
}

/// The address, if there is one. An error if one file has it and another has not.
fn everywhere(metadata: &Value, npm: &Value, citation: Option<&str>) -> Result<Option<String>> {
    let packages = metadata["packages"].as_array().ok_or("cargo lists no packages")?;
    // The wheel's is not published as a crate.
    let published = |package: &&Value| package["publish"].is_null() || package["name"] == "deltachain-python";
    let mut said: Vec<(String, Option<&str>)> = packages
        .iter()
        .filter(published)
        .map(|package| (format!("Cargo.toml of {}", package["name"]), package["repository"].as_str()))
        .collect();
    // npm's page shows both, and takes "git+https://" for "https://".
    said.push(("js/package.json: repository.url".into(), npm["repository"]["url"].as_str()));
    said.push(("js/package.json: homepage".into(), npm["homepage"].as_str()));
    if let Some(citation) = citation {
        let value = citation.lines().find_map(|line| line.strip_prefix("repository-code:"));
        said.push(("CITATION.cff: repository-code".into(), value.map(|value| value.trim().trim_matches(['"', '\'']))));
    }
    let plain = |address: &str| address.trim_start_matches("git+").trim_end_matches(".git").to_owned();
    let address = said.iter().find_map(|(_, address)| address.map(plain));
    let other = said.iter().filter(|(_, own)| own.map(plain) != address).map(|(place, _)| place.as_str());
    let other: Vec<_> = other.collect();
    if other.is_empty() {
        return Ok(address);
    }
    Err(format!("{} is not the address in: {}", address.unwrap_or_default(), other.join(", ")).into())
}

/// That no page tells users to install from a registry.
fn no_page_installs(root: &Path) -> Result {
    let mut pages: Vec<_> = PAGES.iter().map(|page| root.join(page)).collect();
    for entry in fs::read_dir(root.join("docs"))? {
        pages.extend(Some(entry?.path()).filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
        for (number, line) in text.lines().enumerate() {
            if INSTALLS.iter().any(|command| line.contains(command)) {
                found.push(format!("{}:{}: {line}", page.display(), number + 1));
            }
        }
    }
    if found.is_empty() { Ok(()) } else { Err(format!("nothing is published yet:\n{}", found.join("\n")).into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_is_everywhere_or_nowhere() {
        let metadata = |other: Value| {
            let package = |name: &str, address: &Value| json!({ "name": name, "repository": address });
            let ours = package("deltachain", &json!("https://a.example/d"));
            let tool = json!({ "name": "xtask", "repository": null, "publish": [] });
            json!({ "packages": [ours, package("deltachain-python", &other), tool] })
        };
        let npm = json!({ "repository": { "url": "git+https://a.example/d.git" }, "homepage": "https://a.example/d" });
        let address = json!("https://a.example/d");
        let citation = "title: d\nrepository-code: \"https://a.example/d\"\n";
        let found = everywhere(&metadata(address.clone()), &npm, Some(citation)).unwrap();
        assert_eq!(found.as_deref(), Some("https://a.example/d"));

        let none = json!({ "packages": [{ "name": "deltachain", "repository": null }] });
        assert_eq!(everywhere(&none, &json!({}), Some("title: d\n")).unwrap(), None);

        let error = |metadata: &Value, npm: &Value, citation: &str| {
            everywhere(metadata, npm, Some(citation)).unwrap_err().to_string()
        };
        assert!(error(&metadata(Value::Null), &npm, citation).ends_with("in: Cargo.toml of \"deltachain-python\""));
        assert!(error(&metadata(address.clone()), &npm, "title: d\n").ends_with("in: CITATION.cff: repository-code"));
        assert!(error(&metadata(address), &json!({}), citation).contains("homepage"));
        assert!(error(&none, &npm, citation).contains("Cargo.toml of \"deltachain\""));
    }

    #[test]
    fn pages_have_no_command_that_fails_today() {
        let root = root().unwrap();
        if fs::read_to_string(root.join("Cargo.toml")).unwrap().contains("\nrepository = ") {
            return;
        }
        no_page_installs(&root).unwrap();
    }

    #[test]
    fn a_command_that_fails_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for page in PAGES.iter().copied().chain(["docs/a.md"]) {
            let path = folder.path().join(page);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "```sh\npip install ./python\n```\n").unwrap();
        }
        no_page_installs(folder.path()).unwrap();
        fs::write(folder.path().join("docs/a.md"), "```sh\nuv pip install deltachain\n```\n").unwrap();
        assert!(no_page_installs(folder.path()).unwrap_err().to_string().contains("a.md:2: uv pip install deltachain"));
    }
}
