//! The second half of `demo`: a publisher and two followers of a chain in a directory, each in a thread of its own; one
//! follows from the beginning, the other joins late. A version has a configuration beside its tensors.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use deltachain::files::SafetensorsState;
use deltachain::{Error, Result};
use deltachain_store::{
    Base, FollowEvent, FollowOptions, Follower, FollowerOptions, PublishOptions, Published, Publisher, Store,
    StoreOptions, Switched, init,
};
use serde_json::{Value, json};

use crate::commands::chain::log::origin;
use crate::commands::chain::publish;
use crate::commands::chain::pull::as_json;
use crate::interrupt;
use crate::numbers::{grouped, time};
use crate::output::Output;
use crate::table::{Align, layout};
use crate::watcher::Watcher;

/// Every version whose number is a multiple of this gets a link from the version this many before.
const SKIP: u64 = 3;
/// The files of each version.
const WEIGHTS: &str = "model.safetensors";
const CONFIGURATION: &str = "config.json";

/// What the followers have seen.
pub(crate) struct ChainDemo {
    published: Vec<(Published, Duration)>,
    /// The switches of the follower that was there from the beginning.
    early: Vec<Switched>,
    late: Switched,
    /// Bytes that the late follower would have had to read without the skip link.
    replayed: u64,
}

impl ChainDemo {
    /// Publishes these states, whose files are there already, as models of a directory.
    pub(crate) fn run(directory: &Path, states: &[PathBuf], watcher: &Watcher) -> Result<Self> {
        let models = states.iter().enumerate().map(|(step, state)| model(directory, step, state));
        let models = models.collect::<Result<Vec<_>>>()?;
        let chain = directory.join("chain");
        let url = chain.to_string_lossy().into_owned();
        let store = Store::create(&url, StoreOptions::default())?.with_stop(interrupt::stop());
        init(&store)?;
        let follower =
            |name: &str| Follower::in_directory(store.clone(), &directory.join(name), FollowerOptions::default());
        let last = (models.len() as u64).saturating_sub(1);
        let mut early_follower = follower("early")?;
        // Without remarks: that there is no version yet is not worth knowing here, and the result tells the rest.
        let silent = Watcher::new(Output::silent());
        let has_failed = AtomicBool::new(false);
        let (published, early) = thread::scope(|scope| {
            let following = scope.spawn(|| {
                let poll = Duration::from_millis(5);
                let options = FollowOptions::default().poll(poll).poll_longest(poll).until(Some(last));
                let mut switches = Vec::new();
                let followed = early_follower.follow(&options, &silent, &mut |_, event| {
                    if has_failed.load(Ordering::Relaxed) {
                        return Ok(ControlFlow::Break(()));
                    }
                    if let FollowEvent::Switched(switched) = event {
                        check(&switched, &models[position(switched.version)?])?;
                        switches.push(*switched);
                    }
                    Ok(ControlFlow::Continue(()))
                });
                followed.map(|()| switches)
            });
            let published = publish_all(&store, &models, watcher);
            has_failed.store(published.is_err(), Ordering::Relaxed);
            let early = following.join().map_err(|_| failed("the follower's thread has failed"))?;
            Ok::<_, Error>((published?, early?))
        })?;
        let mut late_follower = follower("late")?;
        let prepared = late_follower.prepare(None, watcher)?.ok_or_else(|| failed("the chain has no version"))?;
        let late = late_follower.apply(prepared)?;
        check(&late, &models[position(late.version)?])?;
        let without_skips = |(published, _): &(Published, Duration)| {
            let steps = published.routes.iter().filter(|route| match route.from {
                None => published.version == 0,
                Some(from) => from + 1 == published.version,
            });
            steps.map(|route| route.bytes).sum::<u64>()
        };
        let replayed = published.iter().map(without_skips).sum();
        Ok(Self { published, early, late, replayed })
    }

    pub(crate) fn as_text(&self) -> String {
        let columns = [
            ("version", Align::Right),
            ("links stored (bytes)", Align::Left),
            ("published in", Align::Right),
            ("follower 1 fetched", Align::Right),
            ("built in", Align::Right),
            ("exact", Align::Left),
        ];
        let rows: Vec<Vec<String>> = self
            .published
            .iter()
            .map(|(published, took)| {
                let routes = published.routes.iter();
                let routes = routes.map(|route| format!("{} ({})", origin(route.from), grouped(route.bytes)));
                let switch = self.early.iter().find(|switched| switched.version == published.version);
                // Several versions at once are taken as one.
                let (fetched, built, exact) = switch.map_or_else(
                    || ("with the next".to_owned(), String::new(), String::new()),
                    |switched| (grouped(switched.downloaded), time(switched.times.build), "yes".to_owned()),
                );
                let routes: Vec<String> = routes.collect();
                vec![published.version.to_string(), routes.join(", "), time(*took), fetched, built, exact]
            })
            .collect();
        let title = Style::new().bold();
        let good = AnsiColor::Green.on_default();
        format!(
            "{title}A chain in a directory{title:#}, with a publisher and two followers\n\n{}\n\n{good}exact{good:#}    follower 2 joined after version {}: {} bytes through {} files; replaying all versions takes {} bytes\n{good}exact{good:#}    {CONFIGURATION} came with each version, as an asset",
            layout(&columns, &rows),
            self.late.version,
            grouped(self.late.downloaded),
            self.late.routes.len(),
            grouped(self.replayed),
        )
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "published": self.published.iter().map(|(published, _)| publish::as_json("chain", published)).collect::<Vec<_>>(),
            "early": self.early.iter().map(as_json).collect::<Vec<_>>(),
            "late": as_json(&self.late),
            "replayed_bytes": self.replayed,
        })
    }
}

/// Makes a model directory of a state's file.
fn model(directory: &Path, step: usize, state: &Path) -> Result<PathBuf> {
    let model = directory.join(format!("model{step}"));
    fs::create_dir(&model)
        .and_then(|()| fs::copy(state, model.join(WEIGHTS)))
        .and_then(|_| fs::write(model.join(CONFIGURATION), json!({ "step": step }).to_string()))
        .map_err(|error| Error::io("writing", error).in_file(&model))?;
    Ok(model)
}

fn publish_all(store: &Store, models: &[PathBuf], watcher: &Watcher) -> Result<Vec<(Published, Duration)>> {
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default().skips(vec![SKIP]))?;
    let mut published = Vec::new();
    let mut before: Option<SafetensorsState> = None;
    for model in models {
        let state = SafetensorsState::open(model)?;
        let base = before.as_ref().map_or(Base::Nothing, |base| Base::State(base.into()));
        let began = Instant::now();
        published.push((publisher.publish(&state, base, watcher)?, began.elapsed()));
        before = Some(state);
    }
    Ok(published)
}

/// Compares the follower's files with the published ones, byte for byte.
fn check(switched: &Switched, published: &Path) -> Result<()> {
    for file in [WEIGHTS, CONFIGURATION] {
        if read(&switched.directory.join(file))? != read(&published.join(file))? {
            return Err(failed("a follower's file is not the one that was published"));
        }
    }
    Ok(())
}

fn position(version: u64) -> Result<usize> {
    usize::try_from(version).map_err(|_| failed("an unknown version was followed"))
}

pub(super) fn failed(what: &str) -> Error {
    Error::io("the demo failed", std::io::Error::other(what))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::io("reading", error).in_file(path))
}
