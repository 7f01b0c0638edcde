//! Time limit of an attempt to add something to a chain: R-PUB-08.

use std::time::{Duration, Instant, SystemTime};

use deltachain::Result;
use deltachain::chain::{ObjectName, RoutesDocument, check_duration};

use crate::access::store::Store;

/// An attempt, from before its first file is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Monotonic clock, which stops while the machine sleeps (Linux). The longer time of the two
    /// clocks counts.
    began: Instant,
    /// Wall clock, which goes on while the machine sleeps, but may be set, even back.
    at: SystemTime,
    /// Time that had passed before `began`, by the store's clock.
    before: Duration,
    /// Time before which no file of the attempt was stored, by the store's clock. `None` if the
    /// store has told no time.
    pub(crate) earliest: Option<SystemTime>,
}

impl Attempt {
    /// Begins an attempt now. Call it right after a request to the store: `earliest` is the `Date`
    /// of the last answer.
    #[expect(
        clippy::disallowed_methods,
        reason = "R-PUB-08: a clock that goes on while the machine sleeps"
    )]
    pub(crate) fn begin(store: &Store) -> Self {
        let (began, at) = (Instant::now(), SystemTime::now());
        Self {
            began,
            at,
            before: Duration::ZERO,
            earliest: store.date(),
        }
    }

    /// An attempt of other processes, which stored no file before this, by the store's clock.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn since(store: &Store, earliest: SystemTime) -> Result<Self> {
        let attempt = Self::begin(store);
        let now = attempt.earliest.map_or_else(|| store.now(), Ok)?;
        Ok(Self {
            before: now.duration_since(earliest).unwrap_or_default(),
            earliest: Some(earliest),
            ..attempt
        })
    }

    /// Checks that there is time left. Call it directly before the document is stored that names
    /// the files.
    ///
    /// # Errors
    /// R-PUB-08 (`CHAIN`).
    pub(crate) fn check(&self) -> Result<()> {
        let here = self
            .began
            .elapsed()
            .max(self.at.elapsed().unwrap_or_default());
        check_duration(self.before.saturating_add(here).as_secs())
    }
}

/// Stores the document that names the files of these attempts, unless its name is taken, as long as
/// there is time. `false` if it has not been stored, as far as is known.
///
/// # Errors
/// R-PUB-08 (`CHAIN`) if there was no time before the first try; IO.
pub(crate) fn put_last(
    store: &Store,
    attempts: &[Attempt],
    name: ObjectName,
    content: &[u8],
) -> Result<bool> {
    attempts.iter().try_for_each(Attempt::check)?;
    // A machine may sleep between two tries.
    store.put_if_absent_while(name, content, &|| {
        attempts.iter().all(|attempt| attempt.check().is_ok())
    })
}

/// Same as [`put_last`], for routes of a version. Returns true if they are in force.
///
/// # Errors
/// R-PUB-08 (`CHAIN`) if there was no time before the first try; IO.
pub(crate) fn put_routes(
    store: &Store,
    attempts: &[Attempt],
    document: &RoutesDocument,
) -> Result<bool> {
    let (name, bytes) = (document.name(), document.to_bytes()?);
    Ok(put_last(store, attempts, name, &bytes)? || store.get(name)?.as_ref() == Some(&bytes))
}

/// True if the document was stored in time after these files, by the store's clock alone: a machine
/// may sleep in the last request, or be paused so that none of its clocks goes on. Usually the
/// dates of answers tell. If not, the store is asked for the times of the document and the files.
///
/// # Errors
/// IO.
pub(crate) fn was_in_time(
    store: &Store,
    attempts: &[Attempt],
    document: ObjectName,
    files: impl IntoIterator<Item = ObjectName>,
) -> Result<bool> {
    let is_short = |first: SystemTime, last: SystemTime| {
        check_duration(last.duration_since(first).unwrap_or_default().as_secs()).is_ok()
    };
    // `None` is the least: one unknown time makes all of them unknown.
    let earliest = attempts
        .iter()
        .map(|attempt| attempt.earliest)
        .min()
        .flatten();
    if let (Some(first), Some(last)) = (earliest, store.date())
        && is_short(first, last)
    {
        return Ok(true);
    }
    // In a directory, a file is written before it gets its name, so its timestamp is too early.
    let last = match store.directory() {
        Some(_) => Some(store.now()?),
        None => store.find(document)?.map(|found| found.stored),
    };
    let Some(last) = last else { return Ok(false) };
    let mut files = files.into_iter().peekable();
    // Retention stores routes that name no new file.
    if files.peek().is_none() {
        return Ok(earliest.is_some_and(|first| is_short(first, last)));
    }
    for file in files {
        // It may have been removed already.
        if store
            .find(file)?
            .is_none_or(|found| !is_short(found.stored, last))
        {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::access::options::StoreOptions;

    fn begun() -> Attempt {
        Attempt::begin(
            &Store::from_objects(Arc::new(InMemory::new()), "", StoreOptions::default()).unwrap(),
        )
    }

    #[test]
    fn an_attempt_of_many_hours_ends() {
        let rule = |hours| {
            let attempt = begun();
            let at = attempt.at - Duration::from_hours(hours);
            Attempt { at, ..attempt }
                .check()
                .err()
                .and_then(|error| error.rule())
        };
        assert_eq!(
            (rule(0), rule(19), rule(20), rule(300)),
            (None, None, Some("R-PUB-08"), Some("R-PUB-08"))
        );
    }

    #[test]
    fn hours_before_count_with_those_since() {
        let rule = |before| {
            let attempt = Attempt {
                before: Duration::from_hours(before),
                ..begun()
            };
            let at = attempt.at - Duration::from_hours(10);
            Attempt { at, ..attempt }
                .check()
                .err()
                .and_then(|error| error.rule())
        };
        assert_eq!((rule(0), rule(9), rule(10)), (None, None, Some("R-PUB-08")));
    }
}
