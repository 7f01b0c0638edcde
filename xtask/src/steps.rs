//! Steps of a task: each is run and timed, and a table of all of them ends the output.
//!
//! Steps that keep one processor busy can run side by side, in lanes. What a step of a lane says, and what the programs say
//! that it starts, is kept in a file until it has ended, so that the lines of two steps are never mixed.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Read, Seek, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

thread_local! {
    /// Where this thread's output is kept until its step has ended. None: it is shown at once.
    static KEPT: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// Steps that need not wait for those of other lanes.
pub(crate) type Lane<'a> = Box<dyn FnOnce(&mut Steps) + Send + 'a>;

/// The steps that a task has gone through.
#[derive(Default)]
pub(crate) struct Steps {
    rows: Vec<(String, Outcome)>,
    /// Whether they belong to a lane.
    in_lane: bool,
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
        let kept = self.in_lane && keep();
        say(format_args!("\n==> {name}"));
        let start = Instant::now();
        let result = work();
        let time = start.elapsed();
        let passed = result.is_ok();
        if let Err(error) = result {
            say(format_args!("{name}: {error}"));
        }
        if kept {
            show_kept();
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
        say(format_args!("\n==> {name}\nskipped: {reason}"));
        self.rows.push((name.to_owned(), Outcome::Skipped(reason)));
    }

    /// Runs lanes side by side, as many at a time as there are processors, the first ones first. Their rows stand in the
    /// order of the lanes.
    pub(crate) fn side_by_side(&mut self, lanes: Vec<Lane<'_>>) {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let done: Vec<_> = lanes.iter().map(|_| Mutex::new(Self { in_lane: true, ..Self::default() })).collect();
        let next = Mutex::new(lanes.into_iter().zip(&done));
        let work = || {
            loop {
                // The lock is held for this statement only.
                let lane = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((lane, steps)) = lane else { break };
                lane(&mut steps.lock().unwrap_or_else(PoisonError::into_inner));
            }
        };
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        self.rows
            .extend(done.into_iter().flat_map(|steps| steps.into_inner().unwrap_or_else(PoisonError::into_inner).rows));
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

/// Begins to keep what this thread says. False if there is no room for a file: then it is shown at once.
fn keep() -> bool {
    KEPT.set(tempfile::tempfile().ok());
    KEPT.with_borrow(Option::is_some)
}

/// Shows what has been kept.
fn show_kept() {
    let Some(mut file) = KEPT.take() else { return };
    let mut bytes = Vec::new();
    if let Err(error) = file.rewind().and_then(|()| file.read_to_end(&mut bytes)) {
        println!("what the next step said is lost: {error}");
    }
    // As one piece. If nobody reads it any more, there is nobody left to tell.
    let _ = io::stdout().lock().write_all(&bytes);
}

/// A line of a step's output.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    KEPT.with_borrow_mut(|kept| match kept {
        Some(file) => {
            // Without a line of it, a step is still right or wrong.
            let _ = writeln!(file, "{line}");
        }
        None => println!("{line}"),
    });
}

/// Lets a program's output go where ours goes.
pub(crate) fn output_here(command: &mut Command) -> Result {
    KEPT.with_borrow(|kept| {
        if let Some(file) = kept {
            command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file.try_clone()?));
        }
        Ok(())
    })
}

/// Runs a command with its output going where ours goes. An error unless it succeeds.
pub(crate) fn execute(command: &mut Command) -> Result {
    let shown = show(command);
    say(format_args!("$ {shown}"));
    output_here(command)?;
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
    fn lanes_run_whatever_becomes_of_others_and_their_rows_keep_the_order() {
        let mut steps = Steps::default();
        let lane = |names: &'static [&'static str]| -> Lane<'static> {
            Box::new(move |steps| {
                for name in names {
                    steps.run(name, || {
                        assert!(KEPT.with_borrow(Option::is_some), "output of lanes is kept");
                        execute(Command::new("cargo").arg("--version"))?;
                        if *name == "bad" { Err("broken".into()) } else { Ok(()) }
                    });
                    assert!(KEPT.with_borrow(Option::is_none));
                }
            })
        };
        steps.side_by_side(vec![lane(&["a", "bad", "b"]), lane(&[]), lane(&["c"]), lane(&["d"])]);
        let names: Vec<_> = steps.rows.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "bad", "b", "c", "d"]);
        assert_eq!(steps.finish().unwrap_err().to_string(), "1 of 5 steps FAILED");
    }

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
