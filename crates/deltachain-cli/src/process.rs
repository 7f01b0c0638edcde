//! Limits and child processes of this process.

/// Raises the limit for open files as far as the system allows. Systems start programs with a limit
/// that suits `select`, 1,024 on Linux and 256 on macOS, but a model may have hundreds of shards.
/// If the limit cannot be raised, it stays.
#[cfg(unix)]
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // macOS calls the hard limit infinite, and refuses more than OPEN_MAX.
    for current in [limit.maximum, Some(10_240)] {
        let raised = Rlimit { current, ..limit };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            return;
        }
    }
}

#[cfg(not(unix))]
pub(crate) fn raise_open_files() {}

/// Reaps processes whose parent has ended. The system makes them children of process 1, which is
/// this program if it is the only one in a container; they would remain as zombies otherwise. Takes
/// the exit status of any child, so it must not be called while a command runs that this program
/// has started itself.
#[cfg(unix)]
pub(crate) fn reap_orphans() {
    use rustix::process::{WaitOptions, getpid, wait};
    if !getpid().is_init() {
        return;
    }
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

#[cfg(not(unix))]
pub(crate) fn reap_orphans() {}
