//! Where the project can be found. It is said once, as `repository` of `[workspace.package]` in Cargo.toml, which the
//! packages of Rust inherit; the metadata of other packages has to agree. As long as there is none nothing is published,
//! so no page may tell readers to install from a registry.

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
        let python = fs::read_to_string(root()?.join("python/pyproject.toml"))?;
        let citation = fs::read_to_string(root()?.join("CITATION.cff"))?;
        everywhere(&serde_json::from_slice(&output.stdout)?, &python, &npm, &citation)
    });
    if let Some(None) = found {
        steps.skip("address before a release", "the project has no address yet");
        steps.run("no page installs what is not published", || no_page_installs(&root()?));
    }
}

/// The address, if there is one. An error if one file has it and another has not.
fn everywhere(metadata: &Value, python: &str, npm: &Value, citation: &str) -> Result<Option<String>> {
    let packages = metadata["packages"].as_array().ok_or("cargo lists no packages")?;
    let published = |package: &&Value| package["publish"].is_null();
    let crates = packages.iter().filter(published);
    let mut said: Vec<(String, Option<&str>)> =
        crates.map(|package| (format!("Cargo.toml of {}", package["name"]), package["repository"].as_str())).collect();
    said.push(("python/pyproject.toml: Repository in [project.urls]".into(), line(python, "Repository =")));
    said.push(("js/package.json: repository.url".into(), npm["repository"]["url"].as_str()));
    said.push(("js/package.json: homepage".into(), npm["homepage"].as_str()));
    said.push(("CITATION.cff: repository-code".into(), line(citation, "repository-code:")));
    // npm writes "git+https://a.git" for "https://a".
    let plain = |address: &str| address.trim_start_matches("git+").trim_end_matches(".git").to_owned();
    let address = said.iter().find_map(|(_, address)| address.map(plain));
    let other = said.iter().filter(|(_, own)| own.map(plain) != address).map(|(place, _)| place.as_str());
    let other: Vec<_> = other.collect();
    if other.is_empty() {
        return Ok(address);
    }
    Err(format!("{} is not the address in: {}", address.unwrap_or_default(), other.join(", ")).into())
}

/// What follows the start of a line that begins so, without quotes.
fn line<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.strip_prefix(start))?;
    Some(value.trim().trim_matches(['"', '\'']))
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
        let metadata = |address: Value| {
            let ours = json!({ "name": "deltachain", "publish": null, "repository": address });
            json!({ "packages": [ours, { "name": "xtask", "publish": [], "repository": null }] })
        };
        let address = "https://a.example/d";
        let npm = json!({ "repository": { "url": "git+https://a.example/d.git" }, "homepage": address });
        let python = "[project.urls]\nRepository = \"https://a.example/d\"\n";
        let citation = "title: d\nrepository-code: \"https://a.example/d\"\n";
        let cargo = metadata(json!(address));
        assert_eq!(everywhere(&cargo, python, &npm, citation).unwrap().as_deref(), Some(address));
        let none = metadata(Value::Null);
        assert_eq!(everywhere(&none, "", &json!({}), "title: d\n").unwrap(), None);

        for (cargo, python, npm, citation, place) in [
            (&none, python, &npm, citation, "in: Cargo.toml of \"deltachain\""),
            (&cargo, "", &npm, citation, "in: python/pyproject.toml: Repository in [project.urls]"),
            (&cargo, python, &json!({}), citation, "in: js/package.json: repository.url, js/package.json: homepage"),
            (&cargo, python, &npm, "title: d\n", "in: CITATION.cff: repository-code"),
            (
                &metadata(json!("https://b.example")),
                "",
                &json!({}),
                "",
                "js/package.json: homepage, CITATION.cff: repository-code",
            ),
        ] {
            let error = everywhere(cargo, python, npm, citation).unwrap_err().to_string();
            assert!(error.ends_with(place), "{error}");
        }
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
