//! Syncs files to disk in the background while they are being written.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// Number of bytes written to a file before they are synced to the disk.
const STEP_BYTES: u64 = 32 << 20;

/// A thread that syncs files to disk. It ends when the `WriteBack` is dropped, or at the first
/// failure.
#[derive(Debug)]
pub(super) struct WriteBack {
    /// Bytes written to each file.
    written: Vec<AtomicU64>,
    /// Numbers of the files to sync.
    sender: Sender<usize>,
    thread: JoinHandle<io::Result<()>>,
}

impl WriteBack {
    pub(super) fn start(files: &[&File]) -> io::Result<Self> {
        let written = files.iter().map(|_| AtomicU64::new(0)).collect();
        let files = files
            .iter()
            .map(|file| file.try_clone())
            .collect::<io::Result<Vec<File>>>()?;
        let (sender, receiver) = channel();
        let thread = thread::Builder::new()
            .name("write back".to_owned())
            .spawn(move || send(&files, receiver))?;
        Ok(Self {
            written,
            sender,
            thread,
        })
    }

    /// Records that bytes have been written to a file.
    pub(super) fn note(&self, file: usize, bytes: u64) {
        let before = self
            .written
            .get(file)
            .map_or(0, |written| written.fetch_add(bytes, Ordering::Relaxed));
        if before / STEP_BYTES < before.saturating_add(bytes) / STEP_BYTES {
            // If the thread has ended, finish() reports why.
            let _ = self.sender.send(file);
        }
    }

    /// Waits for the thread. The system reports a failed write only once, so the failure is kept
    /// here.
    pub(super) fn finish(self) -> io::Result<()> {
        drop(self.sender);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that writes back has failed")))
    }
}

fn send(files: &[File], numbers: Receiver<usize>) -> io::Result<()> {
    numbers
        .into_iter()
        .try_for_each(|number| files.get(number).map_or(Ok(()), File::sync_data))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_fails_in_the_background_is_told_at_the_end() {
        let good = tempfile::tempfile().unwrap();
        let write_back = WriteBack::start(&[&good]).unwrap();
        write_back.note(0, 3 * STEP_BYTES);
        write_back.finish().unwrap();

        // A pipe is not a file on a disk, so it cannot be sent to one.
        let (_reader, pipe) = io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let write_back = WriteBack::start(&[&good, &pipe]).unwrap();
        write_back.note(0, STEP_BYTES);
        write_back.note(1, STEP_BYTES - 1);
        write_back.finish().unwrap();
        let write_back = WriteBack::start(&[&good, &pipe]).unwrap();
        write_back.note(1, STEP_BYTES);
        write_back.note(0, STEP_BYTES);
        assert!(write_back.finish().is_err());
    }
}
