//! A publisher's memory of a chain's head. It saves requests and work; nothing depends on it.

use std::collections::BTreeMap;

use deltachain::StateTable;
use deltachain::chain::{Asset, Parent};
use deltachain::tensor::{Digest, TensorInfo};

use crate::access::attempt::Attempt;
use crate::publishing::part::ShardPart;
use crate::publishing::policy::PathBytes;
use crate::publishing::published::PublishReport;

/// The memory of a publisher, in three parts: the head as it was seen in the store, the own version
/// that became the head, and the parts that are prepared to follow it. Each part is about a commit
/// of its own, so each is asked with the commit that it has to fit.
#[derive(Debug, Default)]
pub(crate) struct KnownHead {
    seen: SeenHead,
    own: Option<OwnVersion>,
    prepared: Option<PreparedParts>,
}

/// The head as the publisher has read it from the store, or has put it there.
#[derive(Debug, Default)]
struct SeenHead {
    /// The highest version that the publisher has followed or published, with the digest of its
    /// commit.
    followed: Option<(u64, Digest)>,
    /// The report of the newest version, as a skipped step returns it. `None` if the chain has no
    /// version, or another process has committed it.
    report: Option<PublishReport>,
    /// The head that was just read, for the next call.
    fresh: Option<Parent>,
    /// The commit that was last known to be signed as the publisher's trust wants it.
    signed: Option<Digest>,
    /// The commit that the publisher made itself, or that had no note when the store was asked: a
    /// publisher without a key may follow it.
    without_note: Option<Digest>,
    /// True if it is not certain that the head can be built: the next version gets a snapshot.
    is_cut_off: bool,
}

/// The parts that the publisher published last.
#[derive(Debug)]
struct OwnVersion {
    commit: Digest,
    parts: OwnParts,
}

/// The tables and assets of the parts of a version that this publisher has made.
#[derive(Debug, Default)]
pub(crate) struct OwnParts {
    /// The table of each shard, by its number.
    pub(crate) shards: BTreeMap<usize, StateTable>,
    /// The assets that the shards bring.
    pub(crate) assets: Vec<Asset>,
}

impl OwnParts {
    pub(crate) fn of(parts: &[ShardPart]) -> Self {
        Self {
            shards: parts
                .iter()
                .map(|part| (part.shard, part.table.clone()))
                .collect(),
            assets: parts
                .iter()
                .flat_map(|part| &part.assets)
                .cloned()
                .collect(),
        }
    }

    /// The tensors of each shard.
    pub(crate) fn tensors(&self) -> Vec<Vec<TensorInfo>> {
        self.shards
            .values()
            .map(|table| table.tensors.clone())
            .collect()
    }
}

/// Shards whose links have been stored.
#[derive(Debug)]
pub(crate) struct PreparedParts {
    /// The document that their version follows.
    pub(crate) parent: Parent,
    /// The cost of the path to that document's version, if it is known.
    pub(crate) path: Option<PathBytes>,
    pub(crate) attempt: Attempt,
    /// The session's number, which is in each of the parts.
    pub(crate) session: u64,
    pub(crate) own: OwnParts,
}

/// The seen head.
impl KnownHead {
    /// The highest version that was followed or published, with the digest of its commit. `None`
    /// before the first one.
    pub(crate) fn followed(&self) -> Option<(u64, Digest)> {
        self.seen.followed
    }

    /// The report of the newest version, for a step that is skipped. `None` if the version is not
    /// known, or it is not certain that it can be built: then the step is published again.
    pub(crate) fn report(&self) -> Option<&PublishReport> {
        if self.seen.is_cut_off {
            return None;
        }
        self.newest()
    }

    /// The report of the newest version, even if it is not certain that the version can be built.
    pub(crate) fn newest(&self) -> Option<&PublishReport> {
        self.seen.report.as_ref()
    }

    /// Notes the head that was read, and that it may be followed.
    pub(crate) fn follow(&mut self, parent: &Parent) {
        let commit = parent.digest();
        let head = parent.head();
        self.seen.followed = head.map(|head| (head.version, commit));
        self.seen.report = head.map(|head| PublishReport::head(head, commit));
    }

    /// Keeps a head that was just read for the next [`take_fresh`](Self::take_fresh).
    pub(crate) fn keep_fresh(&mut self, parent: Parent) {
        self.seen.fresh = Some(parent);
    }

    /// The head that was kept, which is valid for one call.
    pub(crate) fn take_fresh(&mut self) -> Option<Parent> {
        self.seen.fresh.take()
    }

    /// True if the commit is known to be signed as the publisher's trust wants it.
    pub(crate) fn is_signed(&self, commit: Digest) -> bool {
        self.seen.signed == Some(commit)
    }

    /// Notes the commit that is signed as the publisher's trust wants it, in place of the one
    /// before.
    pub(crate) fn set_signed(&mut self, commit: Digest) {
        self.seen.signed = Some(commit);
    }

    /// True if a publisher without a key may follow the commit.
    pub(crate) fn is_without_note(&self, commit: Digest) -> bool {
        self.seen.without_note == Some(commit)
    }

    /// Notes the commit that a publisher without a key may follow, in place of the one before.
    pub(crate) fn set_without_note(&mut self, commit: Digest) {
        self.seen.without_note = Some(commit);
    }

    /// True if it is not certain that the head can be built.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.seen.is_cut_off
    }

    /// Notes whether it is certain that the head can be built.
    pub(crate) fn set_cut_off(&mut self, is_cut_off: bool) {
        self.seen.is_cut_off = is_cut_off;
    }

    /// Notes the newest version, which this publisher has published or found published.
    pub(crate) fn set_report(&mut self, published: &PublishReport) {
        self.seen.report = Some(PublishReport {
            shards: Vec::new(),
            changed: 0,
            elements: 0,
            unchanged_state: true,
            is_new: false,
            skipped: None,
            ..published.clone()
        });
    }
}

/// The own version.
impl KnownHead {
    /// The parts of the version that this publisher published last, if the given document is its
    /// commit.
    pub(crate) fn own(&self, parent: &Parent) -> Option<&OwnParts> {
        let own = self.own.as_ref()?;
        (own.commit == parent.digest()).then_some(&own.parts)
    }

    /// Notes the parts of the version with this commit.
    pub(crate) fn set_own(&mut self, commit: Digest, parts: OwnParts) {
        self.own = Some(OwnVersion { commit, parts });
    }
}

/// The prepared parts.
impl KnownHead {
    /// Notes parts that have been stored. They replace those that were not committed.
    pub(crate) fn prepare(&mut self, parts: PreparedParts) {
        self.prepared = Some(parts);
    }

    /// Gives up the parts that have been stored and not committed.
    pub(crate) fn discard_prepared(&mut self) {
        self.prepared = None;
    }

    /// The prepared parts, if they were made for this version after the document with this digest.
    pub(crate) fn prepared(&self, version: u64, follows: Digest) -> Option<&PreparedParts> {
        let prepared = self.prepared.as_ref()?;
        let fits = prepared.parent.check_follows(version, follows).is_ok();
        fits.then_some(prepared)
    }

    /// Notes that the prepared parts have become a version by a commit that the publisher made. If
    /// the version `is_doubtful`, its files may have been pruned before the commit, so the next
    /// version gets a snapshot.
    pub(crate) fn publish(
        &mut self,
        published: &PublishReport,
        is_signed: bool,
        is_doubtful: bool,
    ) {
        self.commit(published.version, published.commit);
        self.seen.signed = is_signed.then_some(published.commit);
        self.seen.without_note = Some(published.commit);
        self.seen.is_cut_off = is_doubtful;
        if is_doubtful {
            self.own = None;
        }
    }

    /// Notes that the prepared parts, if there are any, have become the version with this commit.
    /// The version's report is not known.
    pub(crate) fn commit(&mut self, version: u64, commit: Digest) {
        self.seen.followed = Some((version, commit));
        self.seen.report = None;
        let prepared = self.prepared.take();
        let parts = prepared.map_or_else(OwnParts::default, |prepared| prepared.own);
        self.set_own(commit, parts);
    }
}
