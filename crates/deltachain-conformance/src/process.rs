//! The testee as a process: started on demand, sent one line at a time, with a timeout for each
//! answer.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::problem::{Problem, Result};

/// Number of lines of standard error that are shown with a failure.
const TAIL_LINES: usize = 12;
/// Timeout for the end of a process, and for its last output.
const GRACE: Duration = Duration::from_secs(2);

/// A running testee.
#[derive(Debug)]
pub(crate) struct Process {
    program: String,
    arguments: Vec<String>,
    timeout: Duration,
    running: Option<Running>,
}

/// Result of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Line(String),
    /// The process ended, cannot be reached, or did not answer in time; the text says which.
    Lost(String),
}

#[derive(Debug)]
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Lines of standard output, until the process closes it.
    lines: Receiver<String>,
    tail: Tail,
    /// Closed when standard error is closed.
    tail_end: Receiver<()>,
}

/// The last lines of standard error, shared with the thread that reads them.
type Tail = Arc<Mutex<VecDeque<String>>>;

impl Process {
    /// Splits `command` as a shell does: at spaces, with quotes.
    pub(crate) fn new(command: &str, timeout: Duration) -> Result<Self> {
        let mut words = shlex::split(command).unwrap_or_default().into_iter();
        let program = words
            .next()
            .ok_or_else(|| Problem::usage(format!("not a command line: {command}")))?;
        Ok(Self {
            program,
            arguments: words.collect(),
            timeout,
            running: None,
        })
    }

    /// True if the process must be started before the next request.
    pub(crate) fn is_down(&self) -> bool {
        self.running.is_none()
    }

    pub(crate) fn start(&mut self) -> Result {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Problem::failed(format!("starting {}: {error}", self.program)))?;
        let (sender, lines) = channel();
        let stdout = child.stdout.take();
        thread::spawn(move || each_line(stdout, |line| sender.send(line).is_ok()));
        let tail = Tail::default();
        let (end, tail_end) = channel::<()>();
        let (stderr, shared) = (child.stderr.take(), Arc::clone(&tail));
        thread::spawn(move || {
            each_line(stderr, |line| {
                let mut tail = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(line);
                true
            });
            drop(end);
        });
        self.running = Some(Running {
            stdin: child.stdin.take(),
            child,
            lines,
            tail,
            tail_end,
        });
        Ok(())
    }

    /// Sends a request and waits for its answer. A process that does not answer is stopped.
    pub(crate) fn ask(&mut self, request: &Value) -> Reply {
        let Some(running) = &mut self.running else {
            return Reply::Lost("it does not run".to_owned());
        };
        if let Ok(line) = running.lines.try_recv() {
            return self.lose(format!("said without being asked: {}", shortened(&line)));
        }
        let sent = running
            .stdin
            .as_mut()
            .map(|stdin| writeln!(stdin, "{request}").and_then(|()| stdin.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return self.lose("ended".to_owned());
        }
        match running.lines.recv_timeout(self.timeout) {
            Ok(line) => Reply::Line(line),
            Err(RecvTimeoutError::Timeout) => {
                self.lose(format!("no answer within {} s", self.timeout.as_secs_f64()))
            }
            Err(RecvTimeoutError::Disconnected) => self.lose("ended".to_owned()),
        }
    }

    /// Stops a process that is no longer usable; returns the reason and how it ended.
    pub(crate) fn lose(&mut self, why: String) -> Reply {
        let Some(mut running) = self.running.take() else {
            return Reply::Lost(why);
        };
        let mut message = why;
        // A testee that has closed its output is about to exit, and its exit code is useful.
        let ended = running.ended(if message == "ended" {
            GRACE
        } else {
            Duration::ZERO
        });
        if let Some(status) = ended {
            message = format!("{message}: {status}");
        }
        let last_words = running.last_words();
        if !last_words.is_empty() {
            message = format!("{message}\n{}", last_words.join("\n"));
        }
        Reply::Lost(message)
    }

    /// Returns the output on standard error since the last call.
    pub(crate) fn take_tail(&mut self) -> Vec<String> {
        self.running
            .as_mut()
            .map(Running::drain_tail)
            .unwrap_or_default()
    }

    /// Stops the process as the protocol says: closes its input and waits for its end.
    pub(crate) fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.stdin = None;
            running.ended(GRACE);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Running {
    /// Waits until the output of the process ends, and kills the process if it still runs. Returns
    /// its status, unless it was killed.
    fn ended(&mut self, grace: Duration) -> Option<String> {
        while self.lines.recv_timeout(grace).is_ok() {}
        let mut status = self.child.try_wait().ok().flatten();
        if status.is_none() && !grace.is_zero() {
            // When a process ends, its outputs are closed a moment before its status is available.
            let _ = self.tail_end.recv_timeout(grace);
            status = self.child.try_wait().ok().flatten();
        }
        if status.is_none() {
            // This does not change the exit code of a process that is already ending.
            let _ = self.child.kill();
            status = self
                .child
                .wait()
                .ok()
                .filter(|status| status.code().is_some());
        }
        status.map(|status| status.to_string())
    }

    fn last_words(&mut self) -> Vec<String> {
        // A child process of the testee may keep standard error open.
        let _ = self.tail_end.recv_timeout(GRACE);
        self.drain_tail()
    }

    fn drain_tail(&mut self) -> Vec<String> {
        self.tail
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .collect()
    }
}

/// Calls `each` for every line until it returns false or the stream ends.
fn each_line(stream: Option<impl Read>, mut each: impl FnMut(String) -> bool) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while reader
        .read_until(b'\n', &mut line)
        .is_ok_and(|length| length > 0)
    {
        let text = String::from_utf8_lossy(&line)
            .trim_end_matches(['\r', '\n'])
            .to_owned();
        if !each(text) {
            return;
        }
        line.clear();
    }
}

/// Shortens a line of any length, for people.
pub(crate) fn shortened(line: &str) -> String {
    const MOST: usize = 400;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
