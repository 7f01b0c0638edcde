//! The command of `follow --exec`. It runs for each version until it succeeds, and is killed if it
//! takes too long or the program is interrupted.

use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use deltachain::Result;
use deltachain::tensor::Digest;
use deltachain_store::{CommandStatus, HeldVersion, Ran, Records};

/// Maximum pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Time for a command to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Interval at which a running command is checked.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// The command of the user, and its options.
#[derive(Debug, Clone)]
pub(crate) struct CommandOptions {
    /// Command line for the shell.
    pub(crate) command: String,
    pub(crate) timeout: Option<Duration>,
    /// The pause after the first failure, which doubles after each further one.
    pub(crate) pause: Duration,
    /// True if the command's output goes to standard error, because standard output is for JSON.
    pub(crate) to_stderr: bool,
}

/// Runs the command for the held version until it succeeds, also after a restart.
#[derive(Debug)]
pub(crate) struct Commander {
    wanted: CommandOptions,
    digest: String,
    records: Records,
    ran: Option<Ran>,
    /// The failed attempts for the held version.
    tries: Option<Tries>,
}

/// Failed attempts for a version.
#[derive(Debug)]
struct Tries {
    version: u64,
    commit: Digest,
    failures: u64,
    last_failure: String,
    pause: Duration,
    next: Instant,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandResult {
    Succeeded,
    Failed(String),
    TimedOut(String),
    /// The program has been interrupted, and the command has been ended.
    Interrupted,
}

impl Commander {
    /// Reads the record of earlier runs. An unreadable record counts as none, so the command runs
    /// again.
    pub(crate) fn new(wanted: CommandOptions, records: &Records) -> Self {
        let ran = records.ran().ok().flatten();
        let digest = Digest::of_bytes(wanted.command.as_bytes()).to_string();
        Self {
            wanted,
            digest,
            records: records.clone(),
            ran,
            tries: None,
        }
    }

    /// True if the command has succeeded for this version.
    pub(crate) fn has_succeeded(&self, held: &HeldVersion) -> bool {
        self.ran
            .as_ref()
            .is_some_and(|ran| ran.is(held.version, held.commit, &self.digest))
    }

    /// True if the command must run now.
    pub(crate) fn is_due(&self, held: &HeldVersion) -> bool {
        !self.has_succeeded(held)
            && self
                .tries_for(held)
                .is_none_or(|tries| tries.next <= Instant::now())
    }

    fn tries_for(&self, held: &HeldVersion) -> Option<&Tries> {
        self.tries
            .as_ref()
            .filter(|tries| (tries.version, tries.commit) == (held.version, held.commit))
    }

    /// Returns the status for the records.
    pub(crate) fn status(&self, held: Option<&HeldVersion>, running: bool) -> CommandStatus {
        let tries = held.and_then(|held| self.tries_for(held));
        CommandStatus {
            digest: self.digest.clone(),
            running,
            failures: tries.map_or(0, |tries| tries.failures),
            last_failure: tries.map(|tries| tries.last_failure.clone()),
        }
    }

    /// Runs the command once. `is_stopped` is called often; when it returns true, the command is
    /// ended.
    pub(crate) fn run(
        &mut self,
        held: &HeldVersion,
        is_stopped: &dyn Fn() -> bool,
    ) -> CommandResult {
        let outcome = self.attempt(held, is_stopped);
        match &outcome {
            CommandResult::Succeeded => {
                self.ran = Some(Ran::now(held.version, held.commit, &self.digest));
                self.tries = None;
            }
            CommandResult::Failed(text) | CommandResult::TimedOut(text) => {
                let (failures, pause) =
                    self.tries_for(held)
                        .map_or((0, self.wanted.pause), |tries| {
                            (
                                tries.failures,
                                tries.pause.saturating_mul(2).min(LONGEST_PAUSE),
                            )
                        });
                self.tries = Some(Tries {
                    version: held.version,
                    commit: held.commit,
                    failures: failures.saturating_add(1),
                    last_failure: text.clone(),
                    pause,
                    next: Instant::now() + pause,
                });
            }
            CommandResult::Interrupted => {}
        }
        outcome
    }

    /// Records the version for which the command has succeeded, so that it does not run again after
    /// a restart.
    pub(crate) fn record(&self) -> Result<()> {
        self.ran
            .iter()
            .try_for_each(|ran| self.records.write_ran(ran))
    }

    /// The pause before the next attempt, if the last one failed.
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.tries.as_ref().map(|tries| tries.pause)
    }

    fn attempt(&self, held: &HeldVersion, is_stopped: &dyn Fn() -> bool) -> CommandResult {
        let before = self
            .ran
            .as_ref()
            .map_or_else(String::new, |ran| ran.version.to_string());
        let mut shell = shell(&self.wanted.command);
        shell
            .env("DELTACHAIN_VERSION", held.version.to_string())
            .env("DELTACHAIN_VERSION_BEFORE", before)
            .env("DELTACHAIN_STATE", held.state.to_string())
            .env("DELTACHAIN_DIRECTORY", &held.directory)
            // systemd's variables for this process are not for the command.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            // The command has a process group of its own, which may not read from a terminal.
            .stdin(Stdio::null());
        if self.wanted.to_stderr {
            shell.stdout(io::stderr());
        }
        match run(&mut shell, self.wanted.timeout, is_stopped) {
            Ok(CommandResult::TimedOut(text)) => {
                CommandResult::TimedOut(format!("timeout: {text}"))
            }
            outcome => outcome.unwrap_or_else(|error| {
                CommandResult::Failed(format!("it could not be run: {error}"))
            }),
        }
    }
}

/// Runs a command with all processes that it starts, on Unix in a process group of its own. Ends
/// them after the timeout, or when `is_stopped` returns true, which is called often.
pub(crate) fn run(
    command: &mut Command,
    timeout: Option<Duration>,
    is_stopped: &dyn Fn() -> bool,
) -> io::Result<CommandResult> {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let (mut running, began) = (command.spawn()?, Instant::now());
    loop {
        match running.try_wait()? {
            Some(status) if status.success() => return Ok(CommandResult::Succeeded),
            Some(status) => return Ok(CommandResult::Failed(format!("it ended with {status}"))),
            None => {}
        }
        if is_stopped() {
            end(&mut running);
            return Ok(CommandResult::Interrupted);
        }
        if let Some(timeout) = timeout.filter(|timeout| began.elapsed() >= *timeout) {
            end(&mut running);
            let text = format!(
                "it did not end within {} s and was killed",
                timeout.as_secs_f64()
            );
            return Ok(CommandResult::TimedOut(text));
        }
        thread::sleep(PATIENCE);
    }
}

pub(crate) fn shell(command: &str) -> Command {
    let (program, option) = if cfg!(windows) {
        ("cmd", "/C")
    } else {
        ("/bin/sh", "-c")
    };
    let mut shell = Command::new(program);
    shell.args([option, command]);
    shell
}

/// Asks all processes of the group to end, and kills them after a while.
#[cfg(unix)]
fn end(child: &mut Child) {
    use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
    let group = Pid::from_child(child);
    // An error means that the process group is empty.
    let mut left = kill_process_group(group, Signal::TERM).is_ok();
    let began = Instant::now();
    while left && began.elapsed() < GRACE {
        // Reaps the shell, which stays in the group until then.
        let _ = child.try_wait();
        left = test_kill_process_group(group).is_ok();
        thread::sleep(PATIENCE);
    }
    if left {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(not(unix))]
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
