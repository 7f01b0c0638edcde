//! The second half of `demo`: a publisher and two followers of a chain in a directory. One follower
//! starts at the beginning, the other joins late. Each version has a configuration file beside its
//! tensors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use deltachain::files::SafetensorsState;
use deltachain::{Error, Result};
use deltachain_store::{
    Base, Directory, Follower, FollowerOptions, PublishOptions, PublishReport, Publisher, Store,
    StoreOptions, SwitchReport, init,
};
use serde_json::{Value, json};

use crate::commands::chain::log::origin;
use crate::commands::chain::pull::as_json as switch_as_json;
use crate::interrupt;
use crate::numbers::{grouped, time};
use crate::output::{Output, report_on};
use crate::table::layout;
use crate::watcher::Watcher;

/// The files of each version.
const FILES: [&str; 2] = ["model.safetensors", "config.json"];

const LEGEND: &str = "\
links stored: \"from 2\" is applied to version 2. Version 3 has a second link, \"from 0\": a shorter
path for followers that are far behind. published in: until the version is committed. downloaded:
with config.json. built in: until the follower's files are verified and on disk.";

/// Publishes these checkpoints, whose files exist already, and follows the chain. Returns the
/// report as text and as JSON.
pub(crate) fn run(directory: &Path, steps: &[PathBuf], output: Output) -> Result<(String, Value)> {
    let watcher = Watcher::new(output);
    let url = directory.join("chain").to_string_lossy().into_owned();
    let store = Store::create(&url, StoreOptions::default())?.with_stop(interrupt::stop());
    init(&store)?;
    // Version 3 gets a link from version 0, too.
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default().skips(vec![3]))?;
    let mut early_follower = open_follower(&store, &directory.join("early"))?;
    let mut versions = Vec::new();
    let mut before: Option<SafetensorsState> = None;
    for (step, weights) in steps.iter().enumerate() {
        let path = directory.join(format!("model{step}"));
        write_model(&path, step, weights)?;
        let model = SafetensorsState::open(&path)?;
        let base = before
            .as_ref()
            .map_or(Base::Nothing, |base| Base::State(base.into()));
        let began = Instant::now();
        let published = publisher.publish(&model, base, &watcher)?;
        let took = began.elapsed();
        let switched = follow(&mut early_follower, &path, &watcher)?;
        versions.push(DemoVersion {
            published,
            took,
            switched,
        });
        before = Some(model);
    }
    let last = directory.join(format!("model{}", steps.len() - 1));
    let late = follow(
        &mut open_follower(&store, &directory.join("late"))?,
        &last,
        &watcher,
    )?;
    Ok((as_text(&versions, &late), as_json(&versions, &late)))
}

fn open_follower(store: &Store, directory: &Path) -> Result<Follower<Directory>> {
    Follower::in_directory(store.clone(), directory, FollowerOptions::default())
}

/// Writes the files of a version.
fn write_model(path: &Path, step: usize, weights: &Path) -> Result<()> {
    let model = fs::create_dir(path).and_then(|()| fs::copy(weights, path.join(FILES[0])));
    model.map_err(|error| Error::io("writing", error).in_file(path))?;
    write(
        &path.join(FILES[1]),
        json!({ "step": step }).to_string().as_bytes(),
    )
}

/// A version that was published and followed.
struct DemoVersion {
    published: PublishReport,
    /// Duration of publishing.
    took: Duration,
    /// The report of the follower that started at the beginning.
    switched: SwitchReport,
}

impl DemoVersion {
    /// Returns the line for the table.
    fn row(&self) -> Vec<String> {
        let version = &self.published;
        let routes = version
            .routes
            .iter()
            .map(|route| format!("{} ({})", origin(route.from), grouped(route.bytes)));
        vec![
            version.version.to_string(),
            routes.collect::<Vec<_>>().join(", "),
            time(self.took),
            grouped(self.switched.downloaded),
            time(self.switched.times.build),
            "yes".to_owned(),
        ]
    }

    /// Returns the bytes of the link from the version before.
    fn step_bytes(&self) -> u64 {
        let version = &self.published;
        let steps = version
            .routes
            .iter()
            .filter(|route| route.from == version.version.checked_sub(1));
        steps.map(|route| route.bytes).sum()
    }
}

/// Returns the bytes of the links with which a follower replays all versions.
fn replayed_bytes(versions: &[DemoVersion]) -> u64 {
    versions.iter().map(DemoVersion::step_bytes).sum()
}

fn as_text(versions: &[DemoVersion], late: &SwitchReport) -> String {
    let rows: Vec<_> = versions.iter().map(DemoVersion::row).collect();
    let replayed = replayed_bytes(versions);
    let title = Style::new().bold();
    let good = AnsiColor::Green.on_default();
    format!(
        "{title}A chain in a directory{title:#}, with a publisher and two followers\n\n{}\n\n\
         {LEGEND}\n\n\
         {good}exact{good:#}    follower 2 joined after version {}: {} bytes through {} files; \
         replaying all versions takes {} bytes\n\
         {good}exact{good:#}    config.json came with each version, as an asset",
        layout(
            ">version|links stored (bytes)|>published in|>follower 1 downloaded|>built in|exact",
            &rows
        ),
        late.version,
        grouped(late.downloaded),
        late.routes.len(),
        grouped(replayed),
    )
}

fn as_json(versions: &[DemoVersion], late: &SwitchReport) -> Value {
    let published: Vec<_> = versions
        .iter()
        .map(|version| report_on(("url", "chain"), &version.published))
        .collect();
    let early: Vec<_> = versions
        .iter()
        .map(|version| switch_as_json(&version.switched))
        .collect();
    let replayed = replayed_bytes(versions);
    json!({ "published": published, "early": early, "late": switch_as_json(late), "replayed_bytes": replayed })
}

/// Updates a follower to the newest version, and compares its files with the published ones, byte
/// for byte.
fn follow(
    follower: &mut Follower<Directory>,
    published: &Path,
    watcher: &Watcher,
) -> Result<SwitchReport> {
    let prepared = follower
        .prepare(None, watcher)?
        .ok_or_else(|| failed("the chain has no version"))?;
    let switched = follower.apply(prepared)?;
    for file in FILES {
        let is_same = read(&switched.directory.join(file))? == read(&published.join(file))?;
        check(
            is_same,
            "a follower's file is not the one that was published",
        )?;
    }
    Ok(switched)
}

pub(super) fn check(is_right: bool, what: &str) -> Result<()> {
    if is_right { Ok(()) } else { Err(failed(what)) }
}

pub(super) fn failed(what: &str) -> Error {
    Error::io("the demo failed", std::io::Error::other(what))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::io("reading", error).in_file(path))
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|error| Error::io("writing", error).in_file(path))
}
