//! Staying at the newest version of a chain.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use deltachain::chain::ObjectName;
use deltachain::memory::StateMemory;
use deltachain::rules::{CHN_03, CHN_17};
use deltachain::{Error, ErrorClass, Result};

use crate::access::store::Store;
use crate::following::memory::{MemorySubscriber, PreparedPatches};
use crate::following::subscriber::{Prepared, Subscriber};
use crate::following::switched::{Lag, Switched};
use crate::observer::{InPhase, Observer, Phase};

/// How often a waiting thread checks whether to go on waiting.
const PATIENCE: Duration = Duration::from_millis(50);

/// After this many looks that only ask for the next commit, the chain is listed again: it may have new routes, or have
/// lost versions.
const SHORT_LOOKS: u32 = 19;

/// How a chain is followed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FollowOptions {
    /// The shortest pause between two looks at the chain. While there is nothing new, pauses grow. Up to half of each is
    /// taken off at random, so that many followers do not come at once.
    pub poll: Duration,
    /// The longest pause.
    pub poll_longest: Duration,
    /// End when this version, or a later one, has been reached.
    pub until: Option<u64>,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self { poll: Duration::from_secs(2), poll_longest: Duration::from_secs(30), until: None }
    }
}

impl FollowOptions {
    deltachain::setters! {
        poll: Duration,
        poll_longest: Duration,
        until: Option<u64>,
    }
}

/// What [`follow`] keeps at the newest version: a [`Subscriber`] or a [`MemorySubscriber`].
pub trait Follower {
    /// A version that has been prepared.
    type Prepared;
    /// Where a version is, as [`Switched`] says it.
    type Place;

    /// The chain's store.
    fn store(&self) -> &Store;

    /// The version held.
    fn held_version(&self) -> Option<u64>;

    /// Whether the held version is still in its place; a quick look, without reading the files.
    fn is_there(&self) -> bool;

    /// Prepares the head.
    ///
    /// # Errors
    /// Those of the subscriber's own function.
    fn prepare_head(&mut self, observer: &dyn Observer) -> Result<Option<Self::Prepared>>;

    /// Switches to the prepared version.
    ///
    /// # Errors
    /// Those of the subscriber's own function.
    fn switch(&mut self, prepared: Self::Prepared) -> Result<Switched<Self::Place>>;
}

impl Follower for Subscriber {
    type Prepared = Prepared;
    type Place = PathBuf;

    fn store(&self) -> &Store {
        self.store()
    }

    fn held_version(&self) -> Option<u64> {
        self.held().map(|held| held.version)
    }

    fn is_there(&self) -> bool {
        self.held().is_none_or(|held| held.directory.is_dir())
    }

    fn prepare_head(&mut self, observer: &dyn Observer) -> Result<Option<Prepared>> {
        self.prepare(None, observer)
    }

    fn switch(&mut self, prepared: Prepared) -> Result<Switched> {
        self.apply(prepared)
    }
}

impl<M: StateMemory> Follower for MemorySubscriber<M> {
    type Prepared = PreparedPatches<M>;
    type Place = ();

    fn store(&self) -> &Store {
        self.store()
    }

    fn held_version(&self) -> Option<u64> {
        self.held().map(|held| held.version)
    }

    fn is_there(&self) -> bool {
        true
    }

    fn prepare_head(&mut self, observer: &dyn Observer) -> Result<Option<PreparedPatches<M>>> {
        self.prepare(None, observer)
    }

    fn switch(&mut self, mut prepared: PreparedPatches<M>) -> Result<Switched<()>> {
        self.apply(&mut prepared)
    }
}

/// Is called after each switch, with the subscriber and the switch.
pub type OnSwitch<'a, F> = dyn FnMut(&F, &Switched<<F as Follower>::Place>) -> Result<()> + 'a;

/// What happens while a chain is followed.
#[derive(Debug)]
#[non_exhaustive]
pub enum FollowEvent<P = PathBuf> {
    /// The subscriber is at another version than before.
    Switched(Box<Switched<P>>),
    /// A look at the chain: the version held is the newest.
    Newest,
    /// A look, or the way to a version, failed. The next look is after a pause.
    Failed(Error),
    /// Nothing to do. Comes often between two looks, so that the caller can do work of its own.
    Pause,
}

/// What is called at each event, with the subscriber. [`ControlFlow::Break`] ends the following, an error does too and is
/// returned.
pub type OnEvent<'a, F> = dyn FnMut(&F, FollowEvent<<F as Follower>::Place>) -> Result<ControlFlow<()>> + 'a;

/// Brings a subscriber to the newest version again and again; `on_switch` is called after each switch. Several new
/// versions are taken at once, by the cheapest way.
///
/// If something cannot be reached, is damaged or is missing, the observer is told, and it is tried again after a pause:
/// somebody may repair it. Meanwhile the subscriber keeps the version that it has.
///
/// # Errors
/// USAGE, and R-CHN-17 (`CHAIN`) if the version does not have a wanted shard, because trying again does not help; the error
/// of `on_switch`; the error of the observer. The observer is asked again after a failure, and must give its error again.
pub fn follow<F: Follower>(
    subscriber: &mut F,
    options: &FollowOptions,
    observer: &dyn Observer,
    on_switch: &mut OnSwitch<'_, F>,
) -> Result<()> {
    follow_events(subscriber, options, observer, &mut |subscriber, event| {
        if let FollowEvent::Switched(switched) = event {
            on_switch(subscriber, &switched)?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// As [`follow`], for callers who want to know of looks that found nothing or failed, or have work to do between looks.
///
/// # Errors
/// As [`follow`].
pub fn follow_events<F: Follower>(
    subscriber: &mut F,
    options: &FollowOptions,
    observer: &dyn Observer,
    on_event: &mut OnEvent<'_, F>,
) -> Result<()> {
    let mut pause = options.poll;
    let mut last_remark = None;
    let mut short_looks = 0;
    loop {
        let prepared = match subscriber.held_version().filter(|_| short_looks > 0 && subscriber.is_there()) {
            Some(held) if is_at_the_end(subscriber.store(), held) => {
                short_looks -= 1;
                Ok(None)
            }
            _ => {
                let prepared = subscriber.prepare_head(observer);
                short_looks = if prepared.is_ok() { SHORT_LOOKS } else { 0 };
                prepared
            }
        };
        let switched = prepared.and_then(|prepared| prepared.map(|prepared| subscriber.switch(prepared)).transpose());
        observer.advance(Phase::Wait, 0)?;
        let (event, remark, behind) = match switched {
            Ok(Some(mut switched)) => {
                let lag = lag(subscriber.store(), switched.version);
                switched.lag = Some(lag);
                pause = options.poll;
                let behind = lag.versions > 0 && options.until.is_none_or(|until| switched.version < until);
                (FollowEvent::Switched(Box::new(switched)), None, behind)
            }
            Ok(None) => (FollowEvent::Newest, None, false),
            Err(error) if error.class() == ErrorClass::Usage || error.is(&CHN_17) => return Err(error),
            Err(error) => {
                // A chain without versions is not a failure, but one that has lost them is.
                let text = if error.is(&CHN_03) && subscriber.held_version().is_none() {
                    "the chain has no version yet".to_owned()
                } else {
                    format!("will retry: {error:#}")
                };
                (FollowEvent::Failed(error), Some(text), false)
            }
        };
        if on_event(subscriber, event)?.is_break() {
            return Ok(());
        }
        // Once is enough, until a look goes well.
        if last_remark != remark {
            remark.iter().for_each(|text| observer.remark(text));
            last_remark = remark;
        }
        if behind {
            continue;
        }
        if options.until.is_some_and(|until| subscriber.held_version() >= Some(until)) {
            return Ok(());
        }
        let ended =
            wait(pause.mul_f64(rand::random_range(0.5..1.0)), observer, || on_event(subscriber, FollowEvent::Pause))?;
        if ended.is_break() {
            return Ok(());
        }
        pause = pause.saturating_mul(2).min(options.poll_longest);
    }
}

/// Whether no version follows. What cannot be found out, a long look will tell.
fn is_at_the_end(store: &Store, version: u64) -> bool {
    matches!(store.has_commit_after(version), Ok(false))
}

/// How far a version is behind. Nothing depends on it, so that what cannot be found out is left open.
pub fn lag(store: &Store, version: u64) -> Lag {
    let head = store.listing(version).ok().and_then(|listing| listing.head());
    // A web server that does not know says 1970.
    let stored = store.find(ObjectName::Commit(version)).ok().flatten().map(|commit| commit.stored);
    let stored = stored.filter(|time| *time > UNIX_EPOCH);
    Lag {
        versions: head.map_or(0, |head| head.saturating_sub(version)),
        // Clocks differ and jump: what would be negative is 0.
        seconds: stored.map(|time| time.elapsed().unwrap_or_default().as_secs_f64()),
    }
}

fn wait(
    pause: Duration,
    observer: &dyn Observer,
    mut meanwhile: impl FnMut() -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let began = Instant::now();
    let _waiting = InPhase::begin(observer, Phase::Wait, 0);
    loop {
        observer.advance(Phase::Wait, 0)?;
        if meanwhile()?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let left = pause.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(ControlFlow::Continue(()));
        }
        thread::sleep(left.min(PATIENCE));
    }
}
