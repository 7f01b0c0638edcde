//! The threads that wait for stores, which all stores of a process share.

use std::io;
use std::process;
use std::sync::{Arc, Mutex, TryLockError, Weak, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// Number of threads that wait for answers.
const WORKERS: usize = 2;

/// Maximum number of threads that read and write files, or ask for credentials.
const MOST_FILES: usize = 32;

/// Time without work after which such a thread ends.
const IDLE: Duration = Duration::from_secs(1);

/// Number of tries to take the lock, and the pause after each. Another thread holds it while it
/// makes the runtime, which takes a millisecond.
const TRIES: usize = 200;
const STEP: Duration = Duration::from_millis(1);

/// A runtime, and the process that made it. A forked child does not have its threads.
struct ProcessRuntime {
    process: u32,
    runtime: Weak<Runtime>,
}

static SHARED: Mutex<Option<ProcessRuntime>> = Mutex::new(None);

/// The runtime of this process. It ends with the last store that has it.
///
/// # Errors
/// If no threads can be started.
pub(crate) fn shared_runtime() -> io::Result<Arc<Runtime>> {
    for _ in 0..TRIES {
        let mut shared = match SHARED.try_lock() {
            Ok(shared) => shared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                thread::sleep(STEP);
                continue;
            }
        };
        let own = process::id();
        if let Some(shared) = &*shared
            && shared.process == own
            && let Some(runtime) = shared.runtime.upgrade()
        {
            return Ok(runtime);
        }
        let runtime = Arc::new(start_threads()?);
        *shared = Some(ProcessRuntime {
            process: own,
            runtime: Arc::downgrade(&runtime),
        });
        return Ok(runtime);
    }
    // The process was forked while another thread of the parent held the lock, which is never
    // released in this process.
    start_threads().map(Arc::new)
}

/// If the threads could not be started, the runtime would panic, so this is tried before.
fn start_threads() -> io::Result<Runtime> {
    let tried = (0..WORKERS).map(|_| {
        let (end, ends) = mpsc::channel::<()>();
        Ok((end, thread::Builder::new().spawn(move || ends.recv())?))
    });
    for (end, thread) in tried.collect::<io::Result<Vec<_>>>()? {
        drop(end);
        let _ = thread.join();
    }
    Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(MOST_FILES)
        .thread_keep_alive(IDLE)
        .thread_name("store")
        .enable_all()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_share_a_runtime_that_ends_with_the_last_of_them() {
        let first = shared_runtime().unwrap();
        let second = shared_runtime().unwrap();
        assert!(Arc::ptr_eq(&first, &second));
    }
}
