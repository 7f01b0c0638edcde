//! `cargo xtask coverage`: which lines of `src/format` and `src/codec` the tests reach, by rustc's instrumentation. The
//! tests are those of the library, the replay of the fuzzers' seeds, and the conformance suite.
//!
//! LLVM's tools come from the toolchain; rustup adds them when they are missing.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::steps::execute;
use crate::workspace::{cargo, root, target};

/// Least share of the lines of each module that the tests must reach, in percent.
const LEAST: usize = 95;
const MODULES: [&str; 2] = ["src/codec/", "src/format/"];
/// The tests that are run.
const TESTS: &[&str] =
    &["--package", "deltachain", "--package", "deltachain-fuzz", "--lib", "--test", "suite", "--test", "replay"];

pub(crate) fn run() -> Result {
    let tools = llvm_tools()?;
    let folder = target()?.join("coverage");
    let profiles = folder.join("profiles");
    if profiles.exists() {
        fs::remove_dir_all(&profiles)?;
    }
    let instrumented = |arguments: &[&str]| -> Result<Command> {
        let mut command = cargo(arguments)?;
        command.env("CARGO_TARGET_DIR", &folder).env("RUSTFLAGS", "-Cinstrument-coverage");
        command.envs([("CARGO_PROFILE_TEST_OPT_LEVEL", "1"), ("CARGO_PROFILE_TEST_DEBUG", "0")]);
        command.env("LLVM_PROFILE_FILE", profiles.join("%p-%m.profraw"));
        Ok(command)
    };
    execute(&mut instrumented(&[&["test"], TESTS].concat())?)?;
    execute(&mut instrumented(&["build", "--package", "deltachain-conformance"])?)?;
    let runner = folder.join("debug").join(format!("deltachain-conformance{}", env::consts::EXE_SUFFIX));
    let mut suite = Command::new(&runner);
    suite.args(["run", "--testee", &format!("'{}' testee", runner.display())]).current_dir(root()?);
    execute(suite.env("LLVM_PROFILE_FILE", profiles.join("%p-%m.profraw")))?;

    let merged = folder.join("merged.profdata");
    let mut merge = Command::new(tools.join("llvm-profdata"));
    merge.args(["merge", "--sparse", "--output"]).arg(&merged);
    for entry in fs::read_dir(&profiles)? {
        merge.arg(entry?.path());
    }
    execute(&mut merge)?;
    let mut export = Command::new(tools.join("llvm-cov"));
    export.args(["export", "--format=lcov", "--instr-profile"]).arg(&merged).arg(runner);
    for program in test_programs(instrumented(&[&["test", "--no-run"], TESTS].concat())?)? {
        export.arg("--object").arg(program);
    }
    let output = export.current_dir(root()?).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    judge(&lines_reached(&String::from_utf8(output.stdout)?, &root()?))
}

/// The folder of llvm-cov and llvm-profdata, which must belong to the compiler.
fn llvm_tools() -> Result<PathBuf> {
    let ask = |arguments: &[&str]| -> Result<String> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
        let output = Command::new(rustc).args(arguments).current_dir(root()?).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let version = ask(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc does not name its host")?;
    let folder = Path::new(&ask(&["--print", "sysroot"])?).join("lib/rustlib").join(host).join("bin");
    if !folder.join(format!("llvm-cov{}", env::consts::EXE_SUFFIX)).exists() {
        execute(Command::new("rustup").args(["component", "add", "llvm-tools"]).current_dir(root()?))?;
    }
    Ok(folder)
}

/// The programs that `cargo test --no-run` names: `Executable ... (PATH)`.
fn test_programs(mut build: Command) -> Result<Vec<PathBuf>> {
    let output = build.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let named = text.lines().filter(|line| line.trim_start().starts_with("Executable"));
    let paths = named.filter_map(|line| line.rsplit_once('(')?.1.strip_suffix(')'));
    paths.map(|path| Ok(root()?.join(path))).collect()
}

/// For each line of each file below `root` how often it was run, from an lcov report. Dependencies have folders of the same
/// names.
fn lines_reached(report: &str, root: &Path) -> BTreeMap<String, BTreeMap<usize, u64>> {
    let mut files: BTreeMap<String, BTreeMap<usize, u64>> = BTreeMap::new();
    let mut file = None;
    for line in report.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let own = Path::new(path).strip_prefix(root).ok().and_then(Path::to_str);
            file = own.filter(|own| MODULES.iter().any(|module| own.starts_with(module))).map(str::to_owned);
        } else if let (Some(file), Some((number, count))) = (&file, data(line)) {
            let reached = files.entry(file.clone()).or_default().entry(number).or_default();
            *reached = (*reached).max(count);
        }
    }
    files
}

/// `DA:LINE,COUNT`
fn data(line: &str) -> Option<(usize, u64)> {
    let (number, count) = line.strip_prefix("DA:")?.split_once(',')?;
    Some((number.parse().ok()?, count.parse().ok()?))
}

/// Prints the share of each file and module, and the lines that were not reached. An error if they are too many.
fn judge(files: &BTreeMap<String, BTreeMap<usize, u64>>) -> Result {
    let mut sums = MODULES.map(|module| (module, 0, 0));
    for (file, lines) in files {
        // Tests do not count: neither modules at the end of a file, nor files that are such modules.
        let path = root()?.join(file);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let parent = fs::read_to_string(path.with_file_name("mod.rs"))?;
        if parent.contains(&format!("#[cfg(test)]\nmod {stem};")) {
            continue;
        }
        let end = fs::read_to_string(&path)?.split("#[cfg(test)]\nmod ").next().map_or(0, |text| text.lines().count());
        let own: Vec<(usize, bool)> =
            lines.iter().filter(|&(&line, _)| line <= end).map(|(&line, &count)| (line, count > 0)).collect();
        let missed: Vec<String> = own.iter().filter(|(_, hit)| !hit).map(|(line, _)| line.to_string()).collect();
        println!("{file:28} {:>4} of {:>4} lines  {}", own.len() - missed.len(), own.len(), missed.join(" "));
        for (_, all, hit) in sums.iter_mut().filter(|(module, ..)| file.starts_with(module)) {
            (*all, *hit) = (*all + own.len(), *hit + own.len() - missed.len());
        }
    }
    let mut poor = Vec::new();
    for (module, all, hit) in sums {
        println!("{module:28} {hit:>4} of {all:>4} lines");
        if hit * 100 < all * LEAST || all == 0 {
            poor.push(module);
        }
    }
    if poor.is_empty() { Ok(()) } else { Err(format!("below {LEAST} %: {}", poor.join(", ")).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let report = "SF:/somewhere/src/codec/bits.rs\nFN:7,pack\nDA:7,3\nDA:8,0\nend_of_record\n\
            SF:/somewhere/src/diff.rs\nDA:1,1\nend_of_record\nSF:/else/src/codec/bits.rs\nDA:9,1\nend_of_record\n\
            SF:/somewhere/src/codec/bits.rs\nDA:8,2\nend_of_record\n";
        let files = lines_reached(report, Path::new("/somewhere"));
        assert_eq!(files, BTreeMap::from([("src/codec/bits.rs".to_owned(), BTreeMap::from([(7, 3), (8, 2)]))]));
    }
}
