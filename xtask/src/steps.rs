//! Steps of a task: each is run and timed, and a table of all of them ends the output.

use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Result;

/// The steps that a task has gone through.
#[derive(Default)]
pub(crate) struct Steps {
    rows: Vec<(String, Outcome)>,
}

enum Outcome {
    Passed(Duration),
    Failed(Duration),
    /// With the reason.
    Skipped(&'static str),
}

impl Steps {
    /// Runs a step and notes how it ended. Returns whether it passed; a failure does not keep other steps from running.
    pub(crate) fn run(&mut self, name: &str, work: impl FnOnce() -> Result) -> bool {
        println!("\n==> {name}");
        let start = Instant::now();
        let result = work();
        let time = start.elapsed();
        let passed = result.is_ok();
        if let Err(error) = result {
            println!("{name}: {error}");
        }
        self.rows.push((name.to_owned(), if passed { Outcome::Passed(time) } else { Outcome::Failed(time) }));
        passed
    }

    /// The same for a step that makes something.
    pub(crate) fn get<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Option<T> {
        let mut made = None;
        self.run(name, || {
            made = Some(work()?);
            Ok(())
        });
        made
    }

    /// Notes a step that could not be run.
    pub(crate) fn skip(&mut self, name: &str, reason: &'static str) {
        println!("\n==> {name}\nskipped: {reason}");
        self.rows.push((name.to_owned(), Outcome::Skipped(reason)));
    }

    /// Prints the table. An error if a step failed.
    pub(crate) fn finish(self) -> Result {
        print!("\n{}", self.table());
        let failed = self.rows.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).count();
        if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} steps FAILED", self.rows.len()).into()) }
    }

    fn table(&self) -> String {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut table = String::new();
        for (name, outcome) in &self.rows {
            // Writing to a string does not fail.
            let _ = match outcome {
                Outcome::Passed(time) => writeln!(table, "{name:width$}  {:>7.1} s  ok", time.as_secs_f64()),
                Outcome::Failed(time) => writeln!(table, "{name:width$}  {:>7.1} s  FAILED", time.as_secs_f64()),
                Outcome::Skipped(reason) => writeln!(table, "{name:width$}        - s  skipped: {reason}"),
            };
        }
        table
    }
}

/// Runs a command with its output going where ours goes. An error unless it succeeds.
pub(crate) fn execute(command: &mut Command) -> Result {
    let shown = show(command);
    println!("$ {shown}");
    let status = command.status().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed with {status}").into()) }
}

/// A command as one would type it, without the folders of its program.
pub(crate) fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_failures_from_skipped_steps() {
        let mut steps = Steps::default();
        assert!(steps.run("good", || Ok(())));
        assert!(!steps.run("bad", || Err("broken".into())));
        steps.skip("rest", "bad failed");
        let table = steps.table();
        let ends: Vec<&str> = table.lines().map(|line| line.split("  ").last().unwrap()).collect();
        assert_eq!(ends, ["ok", "FAILED", "skipped: bad failed"]);
        assert_eq!(steps.finish().unwrap_err().to_string(), "1 of 3 steps FAILED");
    }
}
