//! Tests the program that makes pairs for tasks.

use std::fs;
use std::process::Command;

#[test]
fn files_have_the_size_and_the_changes_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["base", "target"].map(|name| folder.path().join(name));
    let pair = |density: &str| {
        let status = Command::new(env!("CARGO_BIN_EXE_pair"))
            .args(&paths)
            .args(["1", density])
            .status()
            .unwrap();
        assert!(status.success());
        let [base, target] = paths.each_ref().map(|path| fs::read(path).unwrap());
        assert_eq!(base.len(), target.len());
        let [old, new] =
            [&base, &target].map(|file| file[file.len() - (1 << 20)..].as_chunks::<2>().0);
        old.iter().zip(new).filter(|(old, new)| old != new).count()
    };
    assert!((4_000..7_000).contains(&pair("0.01")));
    assert_eq!(pair("100"), 1 << 19);
}
