//! What a follower knows of memory: which version it holds, how far that is proven, and whether it may be changed in
//! place.

use std::time::{Duration, Instant};

use deltachain::StateSums;
use deltachain::memory::Proof;
use deltachain::tensor::Digest;
use deltachain::{Error, Result};

use crate::directory::record::Record;
use crate::fallback::Fallback;
use crate::following::switched::HeldVersion;

/// A version that memory holds.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) record: Record,
    /// Of each shard, as far as they are known; none of memory that is not changed in place.
    pub(crate) sums: Vec<StateSums>,
    pub(crate) proof: Proof,
}

/// Memory, as far as a follower knows it.
#[derive(Debug, Default)]
pub(crate) struct HeldMemory {
    /// The version that it holds; with a fault, the one that it held last. Chains must not go back behind it.
    pub(crate) last: Option<Holding>,
    /// Why the next version must be loaded as a whole.
    pub(crate) fault: Option<Fallback>,
    /// Whether links have failed while they were loaded: the next ones are proven before.
    pub(crate) links_failed: bool,
    /// When all of it was last proven.
    proven: Option<Instant>,
}

impl HeldMemory {
    /// The version that it held last.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.last.as_ref().map(|last| &last.record)
    }

    /// The version that it held last, and its commit.
    pub(crate) fn base(&self) -> Option<(u64, Digest)> {
        self.record().map(|record| (record.version, record.commit))
    }

    /// The version that it holds, if the next one may be taken in place.
    pub(crate) fn base_in_place(&self) -> Option<&Holding> {
        self.last.as_ref().filter(|_| self.fault.is_none())
    }

    /// The version that it holds.
    pub(crate) fn holding(&self) -> Option<&Holding> {
        self.last.as_ref().filter(|_| self.doubt_of_memory().is_none())
    }

    /// Why it is not known to hold a version. That lanes were not enough, or too many, says nothing about it.
    fn doubt_of_memory(&self) -> Option<Fallback> {
        self.fault.filter(|fault| !matches!(fault, Fallback::NoRoute | Fallback::Budget))
    }

    /// The same for who wants to prove it; `None` if nothing has been held yet.
    ///
    /// # Errors
    /// USAGE if the memory is known not to hold a version.
    pub(crate) fn to_prove(&self) -> Result<Option<&Holding>> {
        match self.doubt_of_memory() {
            None => Ok(self.last.as_ref()),
            Some(fault) => Err(Error::usage(format!("the memory holds no version: {fault}"))),
        }
    }

    /// The same for callers.
    pub(crate) fn public(&self) -> Option<HeldVersion<()>> {
        self.holding().map(|holding| HeldVersion::new(&holding.record, (), holding.proof))
    }

    /// Whether links are proven before they are loaded: not where they have nothing to tear.
    pub(crate) fn proves_before(&self) -> bool {
        self.links_failed || self.last.is_some() && self.fault != Some(Fallback::Torn)
    }

    /// The memory holds this version now.
    pub(crate) fn hold(&mut self, holding: Option<Holding>) {
        (self.last, self.fault, self.links_failed) = (holding, None, false);
    }

    /// The next version must be loaded as a whole. Torn memory stays torn.
    pub(crate) fn doubt(&mut self, why: Fallback) {
        if self.fault != Some(Fallback::Torn) {
            self.fault = Some(why);
        }
    }

    /// All of it has been proven to be the version held.
    pub(crate) fn proven(&mut self, proof: Proof) {
        self.proven = Some(Instant::now());
        if let Some(holding) = &mut self.last
            && holding.proof != Proof::Hashed
        {
            holding.proof = proof;
        }
    }

    /// Whether a version is held, and all of it was last proven this long ago.
    pub(crate) fn is_due(&self, every: Duration) -> bool {
        self.holding().is_some() && self.proven.is_none_or(|proven| proven.elapsed() >= every)
    }
}
