//! Keeps a follower at the newest version of a chain.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deltachain::chain::ObjectName;
use deltachain::{Error, ErrorClass, Result};

use crate::access::store::Store;
use crate::directory::names::is_unfinished;
use crate::following::directory::Directory;
use crate::following::follower::{Follower, Place};
use crate::following::reach::PreparedVersion;
use crate::following::switched::{Lag, SwitchReport};
use crate::observer::{InPhase, Observer, Phase};

/// Interval at which a waiting thread checks whether to go on waiting.
const PATIENCE: Duration = Duration::from_millis(50);

/// After this many polls that only ask for the next commit, the chain is listed again: it may have
/// new routes, or have lost versions.
const SHORT_POLLS: u32 = 19;

deltachain::setters! {
    /// Options for following a chain.
    #[derive(Debug, Clone)]
    pub struct FollowOptions {
        /// The shortest pause between two polls. While there is nothing new, pauses grow. Each is
        /// shortened at random by up to half, so that many followers do not poll at once.
        pub poll: Duration = Duration::from_secs(2),
        /// The longest pause.
        pub poll_longest: Duration = Duration::from_secs(30),
        /// Only versions whose number is a multiple of this number are followed; all if `None`.
        pub every: Option<NonZeroU64> = None,
        /// End when this version, or a later one, has been reached.
        pub until: Option<u64> = None,
    }
}

/// An event while a chain is followed.
#[derive(Debug)]
#[non_exhaustive]
pub enum FollowEvent {
    /// The follower has switched to another version.
    Switched(Box<SwitchReport>),
    /// A poll found that the held version is the newest.
    Newest,
    /// A poll, or the switch to a version, failed. The next poll follows after a pause.
    Failed(Error),
    /// Nothing to do. Sent often between two polls, so that the caller can do work of its own.
    Pause,
}

/// The function that is called with the follower at each event. [`ControlFlow::Break`] ends
/// following; so does an error, which is returned.
pub type OnEvent<'a> = dyn FnMut(&Follower<Directory>, FollowEvent) -> Result<ControlFlow<()>> + 'a;

impl Follower<Directory> {
    /// Keeps the directory at the newest version. Several new versions are applied at once, by the
    /// cheapest path.
    ///
    /// If something is unreachable, damaged or missing, the follower reports it to the observer and
    /// retries after a pause, because it may be repaired. The held version stays meanwhile.
    ///
    /// # Errors
    /// USAGE, and R-CHN-17 (`CHAIN`) if the version does not have a selected shard, because a retry
    /// does not help; the error of `on_event`; the error of the observer. After a failure the
    /// observer is called again, and must return its error again.
    pub fn follow(
        &mut self,
        options: &FollowOptions,
        observer: &dyn Observer,
        on_event: &mut OnEvent<'_>,
    ) -> Result<()> {
        let mut polling = Poller::new(options);
        loop {
            let polled = polling.poll(self, observer);
            let switched =
                polled.and_then(|prepared| prepared.map(|made| self.apply(made)).transpose());
            observer.advance(Phase::Wait, 0)?;
            let mut behind = false;
            let event = match switched {
                Ok(Some(mut switched)) => {
                    let mut lag = lag(self.store(), switched.version);
                    // Unsigned versions do not count as lag.
                    let skipped = self.unsigned().map_or(0, |unsigned| unsigned.version);
                    lag.versions -= skipped.saturating_sub(switched.version).min(lag.versions);
                    switched.lag = Some(lag);
                    behind = lag.versions > 0
                        && options.until.is_none_or(|until| switched.version < until);
                    FollowEvent::Switched(Box::new(switched))
                }
                Ok(None) => FollowEvent::Newest,
                Err(error) => FollowEvent::Failed(polling.failed(self, error)?),
            };
            if on_event(self, event)?.is_break() {
                return Ok(());
            }
            if behind {
                continue;
            }
            let held = self.held().map(|held| held.version);
            let is_reached = options.until.is_some_and(|until| held >= Some(until));
            if is_reached
                || polling
                    .wait(observer, || on_event(self, FollowEvent::Pause))?
                    .is_break()
            {
                return Ok(());
            }
        }
    }
}

/// Polls a chain again and again, with pauses that grow while there is nothing new.
/// [`Follower::follow`] does all of it for a directory; this is for callers who switch themselves.
#[derive(Debug)]
pub struct Poller {
    options: FollowOptions,
    /// The next pause.
    pause: Duration,
    /// Number of polls that only ask for the next commit.
    short_polls: u32,
    /// Why the last poll failed.
    remark: Option<Remark>,
    /// The cause that was last reported to the observer. It is not reported again before a poll
    /// succeeds.
    told: Option<String>,
}

/// Why a poll failed.
#[derive(Debug)]
struct Remark {
    text: String,
    /// The text without the path of a temporary file, which differs at each attempt.
    cause: String,
}

impl Remark {
    fn retrying(error: &Error) -> Self {
        let text = format!("will retry: {error:#}");
        let file = error.file().unwrap_or_default();
        let is_temporary = Path::new(file).iter().any(is_unfinished);
        let cause = if is_temporary {
            text.replace(file, "")
        } else {
            text.clone()
        };
        Self { text, cause }
    }
}

impl Poller {
    /// Creates a poller. Its first poll is a full one, which lists the chain.
    pub fn new(options: &FollowOptions) -> Self {
        Self {
            options: options.clone(),
            pause: options.poll,
            short_polls: 0,
            remark: None,
            told: None,
        }
    }

    /// Polls once: prepares the head. `None` if it is held already.
    ///
    /// # Errors
    /// Same errors as [`Follower::prepare`]; [`failed`](Self::failed) decides whether to retry.
    pub fn poll<P: Place>(
        &mut self,
        follower: &mut Follower<P>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<P>>> {
        if self.short_polls > 0
            && let Some(held) = follower.held()
            && follower.place.is_there()
            // If the store cannot be asked, a full poll follows, which reports the error.
            && matches!(follower.store().has_commit_after(held.version), Ok(false))
        {
            self.short_polls -= 1;
            return Ok(None);
        }
        let prepared = match self.options.every {
            None => follower.prepare(None, observer),
            Some(every) => {
                let held = follower.held().map(|held| held.version);
                let head = follower.store().head(held)?;
                let newest = head
                    .map(|head| head - head % every)
                    .filter(|newest| held.is_none_or(|held| *newest > held));
                newest.map_or(Ok(None), |newest| follower.prepare(Some(newest), observer))
            }
        };
        self.short_polls = if prepared.is_ok() { SHORT_POLLS } else { 0 };
        let prepared = prepared?;
        if prepared.is_some() {
            self.pause = self.options.poll;
        }
        (self.remark, self.told) = (None, None);
        Ok(prepared)
    }

    /// Handles a failure. Returns the error if a retry may help; the observer learns of it at the
    /// next pause.
    ///
    /// # Errors
    /// The error itself: USAGE, or R-CHN-17.
    pub fn failed<P: Place>(&mut self, follower: &Follower<P>, error: Error) -> Result<Error> {
        if error.class() == ErrorClass::Usage || error.breaks(&["R-CHN-17"]) {
            return Err(error);
        }
        // A chain without versions is not a failure.
        let is_empty = error.breaks(&["R-CHN-03", "R-SIG-01"])
            && error.unsigned().is_none()
            && follower.held().is_none();
        self.remark = Some(if is_empty {
            let text = "the chain has no version yet".to_owned();
            Remark {
                cause: text.clone(),
                text,
            }
        } else {
            Remark::retrying(&error)
        });
        Ok(error)
    }

    /// Waits until the next poll. `meanwhile` is called often, and ends the waiting by
    /// [`ControlFlow::Break`].
    ///
    /// # Errors
    /// The errors of the observer and of `meanwhile`.
    pub fn wait(
        &mut self,
        observer: &dyn Observer,
        mut meanwhile: impl FnMut() -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let cause = self.remark.as_ref().map(|remark| &remark.cause);
        if self.told.as_ref() != cause {
            if let Some(remark) = &self.remark {
                observer.remark(&remark.text);
            }
            self.told = cause.cloned();
        }
        let pause = self.pause.mul_f64(rand::random_range(0.5..1.0));
        self.pause = self.pause.saturating_mul(2).min(self.options.poll_longest);
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
}

/// Measures the lag of a version. Nothing depends on it, so errors are ignored.
pub fn lag(store: &Store, version: u64) -> Lag {
    let head = store
        .listing(version)
        .ok()
        .and_then(|listing| listing.head());
    let stored = stored(store, version).ok().flatten();
    Lag {
        versions: head.map_or(0, |head| head.saturating_sub(version)),
        // Clocks differ and jump: a negative time becomes 0.
        seconds: stored.map(|time| time.elapsed().unwrap_or_default().as_secs_f64()),
    }
}

/// Returns the time at which the commit of a version was stored, by the store's clock. `None` if
/// the commit does not exist or the store has no times.
///
/// # Errors
/// IO.
pub fn stored(store: &Store, version: u64) -> Result<Option<SystemTime>> {
    let commit = store.find(ObjectName::Commit(version))?;
    // A web server that does not know the time reports 1970.
    Ok(commit
        .map(|commit| commit.stored)
        .filter(|time| *time > UNIX_EPOCH))
}
