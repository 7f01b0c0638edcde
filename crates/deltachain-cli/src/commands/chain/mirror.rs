//! `mirror`: copies a chain, or what is new in it, to another store, once or repeatedly.

use std::time::Duration;

use deltachain::{Error, ErrorClass, Result};
use deltachain_store::{
    Mirror, MirrorOptions, MirrorReport, Observer, PromotedVersion, Scratch, Store,
};

use crate::chain_args::{MirrorArgs, StoreArgs};
use crate::commands::chain::fsck::explained;
use crate::failure;
use crate::interrupt;
use crate::numbers::{counted, grouped};
use crate::operation::http::{HttpServer, Port};
use crate::operation::mirroring::MirrorStatus;
use crate::operation::service;
use crate::output::{Output, printable, report_on};
use crate::watcher::Watcher;

/// Maximum pause after failures, unless --poll is longer.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

pub(crate) fn run(args: &MirrorArgs, output: Output) -> Result<u8> {
    let options = MirrorOptions::default()
        .trust(args.trust.trust()?)
        .up_to(up_to(args)?)
        .verify(args.verify)
        .restore(args.restore);
    let source = args.store.open(&args.source)?;
    let to = StoreArgs {
        settings: args.to.clone(),
    };
    // The directory of the copy is created once the chain has been found.
    let destination = Store::open_awaited(&args.destination, to.options()?)?;
    let mut mirror = Mirror::new(source, &destination, options);
    let url = destination.to_string();
    if let Some(pause) = args.poll {
        return serve(args, &mut mirror, &url, pause, output).map(|()| failure::SUCCESS);
    }
    let watcher = Watcher::new(output);
    let report = round(args, &mut mirror, &watcher)?;
    let problems = as_text(&url, &report);
    if report.problems.is_empty() {
        output.summary(|| problems, || report_on(("url", &url), &report))?;
    } else {
        output.result(|| problems, || report_on(("url", &url), &report))?;
    }
    Ok(failure::code(report.problems.is_empty()))
}

/// Parses the version and the commit of --up-to.
fn up_to(args: &MirrorArgs) -> Result<Option<PromotedVersion>> {
    let Some([version, commit]) = args.up_to.as_deref() else {
        return Ok(None);
    };
    let invalid = |text: String| Error::usage(format!("--up-to: {text}"));
    let version = version
        .parse()
        .map_err(|_| invalid(format!("{version:?} is not a version's number")))?;
    let commit = commit.parse().map_err(|_| {
        let text = "COMMIT must have 64 hexadecimal digits, as `deltachain show` gives them";
        invalid(text.to_owned())
    })?;
    Ok(Some(PromotedVersion { version, commit }))
}

/// Copies in rounds until interrupted.
fn serve(
    args: &MirrorArgs,
    mirror: &mut Mirror,
    url: &str,
    poll: Duration,
    output: Output,
) -> Result<()> {
    let watcher = Watcher::of_service(output);
    service::stays_alive().map_err(|error| Error::io("starting threads", error))?;
    let status = MirrorStatus::default();
    let _http = listen(args, &status, &watcher)?;
    let mut pause = poll;
    loop {
        let was_failing = status.is_failing();
        match round(args, mirror, &watcher) {
            Ok(report) => {
                pause = poll;
                tell(&status, &watcher, url, &report)?;
                if was_failing {
                    watcher.remark("copies again");
                }
                service::has_copied();
                service::says(&as_line(url, &report));
            }
            // An interrupt is the normal end of copying.
            Err(_) if interrupt::happened() => break,
            Err(error) if error.class() == ErrorClass::Usage => {
                status.failed(&error);
                service::ends();
                return Err(error);
            }
            Err(error) => {
                let text = format!("will retry: {error:#}");
                if status.failed(&error) {
                    watcher.remark(&text);
                }
                service::says(&text);
                pause = pause.saturating_mul(2).min(LONGEST_PAUSE.max(poll));
            }
        }
        if interrupt::wait(pause).is_err() {
            break;
        }
    }
    service::ends();
    Ok(())
}

/// Serves the pages of --listen.
fn listen(
    args: &MirrorArgs,
    status: &MirrorStatus,
    watcher: &Watcher,
) -> Result<Option<HttpServer>> {
    let Some(address) = args.listen else {
        return Ok(None);
    };
    let port = Port::open(address)?;
    let pages = status.pages();
    for page in &pages {
        watcher.remark(&format!("serving http://{}{}", port.address, page.path));
    }
    port.serve(pages).map(Some)
}

/// Reports what a round has copied, and the problems that it has found.
fn tell(status: &MirrorStatus, watcher: &Watcher, url: &str, report: &MirrorReport) -> Result<()> {
    for problem in status.copied(report) {
        watcher.remark(&problem);
    }
    if report.documents == 0 && report.files == 0 {
        return Ok(());
    }
    watcher.event(|| as_line(url, report), || report_on(("url", url), report))
}

fn round(args: &MirrorArgs, mirror: &mut Mirror, watcher: &Watcher) -> Result<MirrorReport> {
    let place = Scratch::new(args.scratch.as_deref(), watcher)?;
    mirror.round(place.path(), watcher)
}

fn as_text(url: &str, report: &MirrorReport) -> String {
    let mut lines: Vec<String> = report
        .problems
        .iter()
        .map(|problem| printable(&problem.to_string()))
        .collect();
    lines.extend(explained(&report.problems));
    let mut line = as_line(url, report);
    if !report.problems.is_empty() {
        line.push_str("; ");
        line.push_str(&counted(report.problems.len(), "problem", "problems"));
    }
    lines.push(line);
    lines.join("\n")
}

fn as_line(url: &str, report: &MirrorReport) -> String {
    let version = report
        .version
        .map_or("without versions".to_owned(), |version| {
            format!("at version {version}")
        });
    format!(
        "{} is {version}: {} and {} copied ({} bytes)",
        printable(url),
        counted(report.documents, "document", "documents"),
        counted(report.files, "file", "files"),
        grouped(report.bytes),
    )
}
