//! `follow`: keeps a directory at the newest version of a chain.

use std::process::Command;
use std::time::Duration;

use deltachain::Result;
use deltachain_store::{FollowOptions, Observer, Switched, follow};

use crate::chain_args::FollowArgs;
use crate::commands::chain::pull::{as_json, describe, open};
use crate::interrupt;
use crate::output::Output;
use crate::watcher::Watcher;

pub(crate) fn run(args: &FollowArgs, output: Output) -> Result<()> {
    let watcher = Watcher::new(output);
    let mut subscriber = open(args.chain.open()?, &args.directory)?;
    let options = FollowOptions::default()
        .poll(Duration::from_secs_f64(args.poll))
        .poll_longest(Duration::from_secs_f64(args.poll_longest.max(args.poll)))
        .until(args.until);
    let result = follow(&mut subscriber, &options, &watcher, &mut |_, switched| {
        watcher.suspend(|| {
            output.summary(
                || describe_with_lag(switched),
                || {
                    let mut event = as_json(switched);
                    event["event"] = "switched".into();
                    event
                },
            )
        })?;
        if let Some(command) = &args.exec {
            execute(command, switched, &watcher);
        }
        Ok(())
    });
    // Whoever follows until interrupted has what was wanted.
    if interrupt::happened() { Ok(()) } else { result }
}

fn describe_with_lag(switched: &Switched) -> String {
    let lag = switched.lag.unwrap_or_default();
    let behind = match (lag.versions, lag.seconds) {
        (0, Some(seconds)) => format!("the newest, {seconds:.1} s after its commit"),
        (0, None) => "the newest".to_owned(),
        (versions, _) => format!("{versions} behind the newest"),
    };
    format!("{}\n  lag    {behind}", describe(switched))
}

/// Runs the user's command. The switch has happened, whatever becomes of it.
fn execute(command: &str, switched: &Switched, watcher: &Watcher) {
    let mut shell = if cfg!(windows) {
        let mut shell = Command::new("cmd");
        shell.arg("/C");
        shell
    } else {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c");
        shell
    };
    let status = shell
        .arg(command)
        .env("DELTACHAIN_VERSION", switched.version.to_string())
        .env("DELTACHAIN_STATE", switched.state.to_string())
        .env("DELTACHAIN_DIRECTORY", &switched.directory)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => watcher.remark(&format!("the command of --exec ended with {status}")),
        Err(error) => watcher.remark(&format!("the command of --exec could not be run: {error}")),
    }
}
