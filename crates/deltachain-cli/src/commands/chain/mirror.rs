//! `mirror`: copies a chain, or what is new of it, to another store, once or again and again.

use std::thread;
use std::time::{Duration, Instant};

use deltachain::{ErrorClass, Result};
use deltachain_store::{MirrorReport, Observer, Scratch, Store, mirror};

use crate::chain_args::{ChainArgs, MirrorArgs, StoreArgs};
use crate::interrupt;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable, report_on};
use crate::watcher::Watcher;

/// How often a waiting thread checks whether to go on waiting.
const PATIENCE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &MirrorArgs, output: Output) -> Result<()> {
    let copy = ChainArgs {
        url: args.destination.clone(),
        store: StoreArgs {
            settings: args.to.clone(),
        },
    };
    let (url, source, destination) = (copy.name(), args.store.open(&args.source)?, copy.create()?);
    let Some(pause) = args.poll else {
        let watcher = Watcher::new(output);
        let copied = round(args, &source, &destination, &watcher)?;
        return output.summary(
            || as_text(&url, &copied),
            || report_on(("url", &url), &copied),
        );
    };
    let watcher = Watcher::of_service(output);
    loop {
        match round(args, &source, &destination, &watcher) {
            Ok(copied) if copied.documents == 0 => {}
            Ok(copied) => {
                watcher.event(
                    || as_text(&url, &copied),
                    || report_on(("url", &url), &copied),
                )?;
            }
            // An interrupt is its normal end.
            Err(_) if interrupt::happened() => return Ok(()),
            Err(error) if error.class() == ErrorClass::Usage => return Err(error),
            Err(error) => watcher.remark(&format!("will retry: {error:#}")),
        }
        let end = Instant::now() + pause;
        while Instant::now() < end {
            if interrupt::happened() {
                return Ok(());
            }
            thread::sleep(PATIENCE.min(pause));
        }
    }
}

fn round(
    args: &MirrorArgs,
    source: &Store,
    destination: &Store,
    watcher: &Watcher,
) -> Result<MirrorReport> {
    let place = Scratch::new(args.scratch.as_deref(), watcher)?;
    mirror(source, destination, place.path(), watcher)
}

fn as_text(url: &str, copied: &MirrorReport) -> String {
    let version = copied
        .version
        .map_or("without versions".to_owned(), |version| {
            format!("at version {version}")
        });
    format!(
        "{} is {version}: {} and {} copied ({} bytes)",
        printable(url),
        counted(copied.documents, "document", "documents"),
        counted(copied.files, "file", "files"),
        grouped(copied.bytes),
    )
}
