//! `rules`: writes `conformance/rules.json`, the rules of SPEC.md for programs.

use std::fs;
use std::process::ExitCode;

use crate::args::RulesArgs;
use crate::problem::{Problem, Result};
use crate::spec::Spec;
use crate::suite::folder_of_vectors;

const FILE: &str = "rules.json";

/// Writes the file, or compares it with the expected content. The exit code says whether they are
/// equal.
pub(crate) fn run(args: &RulesArgs) -> Result<ExitCode> {
    let path = args
        .vectors
        .clone()
        .map_or_else(folder_of_vectors, Ok)?
        .join(FILE);
    let text = text(&Spec::new())?;
    if !args.check {
        fs::write(&path, text).map_err(Problem::with_file(&path))?;
        return Ok(ExitCode::SUCCESS);
    }
    let found = fs::read_to_string(&path).map_err(Problem::with_file(&path))?;
    if found == text {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Problem::failed(format!(
        "{}: these are not the rules of SPEC.md; run rules without --check",
        path.display()
    )))
}

/// Makes one line per rule: rules of readers in the order of the text, then rules of writers.
fn text(spec: &Spec) -> Result<String> {
    let rules = spec
        .rules
        .iter()
        .chain(&spec.writer_rules)
        .map(serde_json::to_string);
    let rules = rules
        .collect::<Result<Vec<_>, _>>()
        .map_err(Problem::failed)?;
    Ok(format!("[\n{}\n]\n", rules.join(",\n")))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn the_file_has_the_rules_of_the_text() {
        let folder = tempfile::tempdir().unwrap();
        let run = |check| {
            run(&RulesArgs {
                check,
                vectors: Some(PathBuf::from(folder.path())),
            })
        };
        assert!(run(true).is_err());
        run(false).unwrap();
        run(true).unwrap();
        let path = folder.path().join(FILE);
        let written = fs::read_to_string(&path).unwrap();
        fs::write(&path, written.replacen("R-INT-01", "R-INT-09", 1)).unwrap();
        assert!(run(true).is_err());

        let rules: Vec<serde_json::Value> = serde_json::from_str(&written).unwrap();
        let of = |id: &str| rules.iter().find(|rule| rule["id"] == id).unwrap();
        assert_eq!(
            (&of("R-INT-01")["class"], &of("R-PUB-01")["class"]),
            (&"NON_CANONICAL".into(), &"writer".into())
        );
        let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
        super::run(&RulesArgs {
            check: true,
            vectors: Some(committed),
        })
        .unwrap();
    }
}
