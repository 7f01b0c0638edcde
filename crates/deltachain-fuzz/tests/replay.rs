//! Runs every seed, and every input that ever made a target fail, through the target's function, as
//! a fuzzer would; and compares verdicts on a saved corpus with those of the Python reader. It is
//! one test, because memory is counted for the whole program.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use deltachain::{Limits, LinkReader};
use deltachain_fuzz::seeds::{check_counts, collect, files_below};
use deltachain_fuzz::{Played, TARGETS, Target, play};

#[test]
fn seeds_regressions_and_verdicts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    every_target_has_a_program(&root);
    let targets: BTreeMap<&str, &Target> =
        TARGETS.iter().map(|target| (target.name, target)).collect();

    let seeds = collect(&root).unwrap();
    check_counts(&seeds).unwrap();
    for seed in &seeds {
        println!("seed of {}: {}", seed.target, seed.origin);
        (targets[seed.target].run)(&seed.bytes);
    }

    let played: Vec<Played> = seeds
        .iter()
        .filter(|seed| seed.target == "store")
        .map(|seed| play(&seed.bytes))
        .collect();
    stores_are_used_and_fail(&played);

    let mut regressions = 0;
    let findings = fs::read_to_string(root.join("fuzz/FINDINGS.md")).unwrap();
    for path in files_below(&root.join("fuzz/regressions")).unwrap() {
        println!("regression {}", path.display());
        let folder = path
            .parent()
            .and_then(Path::file_name)
            .unwrap()
            .to_str()
            .unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            findings.contains(&format!("`{folder}/{name}`")),
            "{name} has no line in FINDINGS.md"
        );
        (targets[folder].run)(&fs::read(&path).unwrap());
        regressions += 1;
    }

    let verdicts = fs::read_to_string(root.join("fuzz/verdicts.txt")).unwrap();
    let mut counts = [0, 0];
    for line in verdicts.lines().filter(|line| !line.starts_with('#')) {
        let (expected, hex) = line.rsplit_once(' ').unwrap();
        let verdict = verdict(&bytes_of(hex));
        assert_eq!(verdict, expected, "{hex}");
        counts[usize::from(verdict == "VALID")] += 1;
    }
    println!(
        "{} seeds, {regressions} regressions, {counts:?} verdicts (refused, valid)",
        seeds.len()
    );
    assert!(counts[0] >= 200 && counts[1] >= 20, "{counts:?}");
}

/// Checks that the seeds of the target `store` are useful: versions are published and followed, and
/// every fault occurs.
fn stores_are_used_and_fail(played: &[Played]) {
    let sum = |of: &dyn Fn(&Played) -> usize| played.iter().map(of).sum::<usize>();
    let versions = sum(&|played| played.versions);
    let switches = sum(&|played| played.switches);
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    for (fault, count) in played.iter().flat_map(|played| &played.faults) {
        *faults.entry(fault).or_default() += count;
    }
    println!("{versions} versions, {switches} switches, {faults:?}");
    assert!(
        versions >= 50 && switches >= 50 && faults.len() == 6,
        "{versions} {switches} {faults:?}"
    );
}

/// Checks that the programs in `fuzz/fuzz_targets/` and the table of this crate name the same
/// targets.
fn every_target_has_a_program(root: &Path) {
    let programs = files_below(&root.join("fuzz/fuzz_targets")).unwrap();
    let stem = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let programs: Vec<String> = programs.iter().map(|path| stem(path)).collect();
    assert!(
        programs
            .iter()
            .map(String::as_str)
            .eq(TARGETS.iter().map(|target| target.name)),
        "{programs:?}"
    );
}

/// Checks a link and returns `VALID`, or the error's class and rule.
fn verdict(file: &[u8]) -> String {
    match LinkReader::open(file, &Limits::unlimited()).and_then(|link| link.verify(&())) {
        Ok(()) => "VALID".to_owned(),
        Err(error) => format!("{} {}", error.class(), error.rule().unwrap_or_default()),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16).unwrap()).unwrap();
    hex.as_bytes()
        .chunks_exact(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}
