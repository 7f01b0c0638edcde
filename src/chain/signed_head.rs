//! The planner's part for readers with trust (SPEC section 23.3): which versions count as signed,
//! and which of them is the head.

use std::collections::BTreeMap;

use crate::chain::signatures::Signatures;
use crate::chain::{
    Listing, ObjectName, Planner, SignatureCheck, Trust, UnsignedVersion, VerifierKey,
};
use crate::error::{Error, Result};
use crate::rules::{self, ensure};
use crate::tensor::Digest;

/// Maximum number of versions whose notes are read together when the highest versions are not
/// signed.
const MAX_STRIDE: usize = 64;

impl Planner {
    /// Accepts only versions that these keys have signed (SPEC section 23.3); the head is the
    /// highest of them. `seen` comes from the [plan](SignatureCheck) of an earlier planner: the
    /// newest signed head that has been seen, by version and digest of its commit.
    #[must_use]
    pub fn trust(mut self, trust: Trust, seen: Option<(u64, Digest)>) -> Self {
        let held = self.held.map(|held| held.version);
        let recorded = seen;
        let seen = seen.filter(|(version, _)| held < Some(*version));
        let of_head = self.wanted.is_none();
        if let Some((seen, _)) = seen.filter(|_| of_head) {
            self.list_from = held.unwrap_or(seen);
        }
        let (commits, notes) = (BTreeMap::new(), BTreeMap::new());
        let (by, below, highest, stride, listed) =
            (None, u64::MAX, None, 1, Listing::of_head(None));
        self.signatures = Some(Signatures {
            trust,
            recorded,
            seen,
            of_head,
            by,
            below,
            highest,
            stride,
            listed,
            commits,
            notes,
        });
        self
    }

    /// The newest signed head that has been seen, if it counts: if the held version is lower, or
    /// nothing is held.
    pub(super) fn seen(&self) -> Option<(u64, Digest)> {
        self.signatures.as_ref()?.seen
    }

    /// Drops the signed head that has been seen, which does not count any more.
    pub(super) fn leave_seen(&mut self) {
        self.signatures
            .iter_mut()
            .for_each(|signatures| signatures.seen = None);
    }

    /// The highest versions that may be signed. If the notes have been listed, these are versions
    /// with notes.
    fn may_be_head(&self, signatures: &Signatures) -> Vec<u64> {
        if !signatures.listed.is_head_alone {
            return signatures
                .listed
                .versions_with_notes(signatures.below)
                .take(signatures.stride)
                .collect();
        }
        let below = self.head().map_or(0, |head| head + 1).min(signatures.below);
        (self.list_from..below)
            .rev()
            .take(signatures.stride)
            .collect()
    }

    /// Asks for the commits of the highest versions that may be signed.
    pub(super) fn ask_for_signed_head(&mut self) {
        let Some(signatures) = &self.signatures else {
            return;
        };
        let names = self
            .may_be_head(signatures)
            .into_iter()
            .map(ObjectName::Commit);
        self.asked
            .extend(names.filter(|name| !self.supplied.contains_key(name)));
        self.signatures
            .iter_mut()
            .for_each(|signatures| signatures.stride = (4 * signatures.stride).min(MAX_STRIDE));
    }

    /// Starts the search for the head over, because the list has changed.
    pub(super) fn look_for_signed_head_again(&mut self) {
        let Some(signatures) = &mut self.signatures else {
            return;
        };
        (signatures.below, signatures.highest) = (u64::MAX, None);
        (signatures.stride, signatures.listed) = (1, Listing::of_head(None));
        signatures.commits.clear();
        signatures.notes.clear();
        self.supplied
            .retain(|name, _| !matches!(name, ObjectName::Commit(_)));
    }

    /// Finds the head, the highest version that is signed. Returns `None` if no version is signed,
    /// or if an object must be fetched first.
    pub(super) fn find_signed_head(&mut self) -> Option<u64> {
        loop {
            let version = *self.may_be_head(self.signatures.as_ref()?).first()?;
            if !self.supplied.contains_key(&ObjectName::Commit(version)) {
                self.ask_for_signed_head();
                return None;
            }
            let by = self.signers(version)?;
            let signatures = self.signatures.as_mut()?;
            if by.len() >= signatures.trust.quorum() {
                signatures.by = Some(by);
                signatures.recorded = signatures
                    .commits
                    .get(&version)
                    .map(|commit| (version, *commit));
                // The commits that were read above this version are treated as if they were not
                // there.
                self.supplied.retain(
                    |name, _| !matches!(name, ObjectName::Commit(above) if *above > version),
                );
                return Some(version);
            }
            signatures.highest.get_or_insert((version, by.len()));
            signatures.pass_over(version);
            self.supplied.remove(&ObjectName::Commit(version));
        }
    }

    /// The trusted keys that the notes on the commit of a version count for. `None` if notes must
    /// be fetched first: own notes, and all others only if own notes are not enough.
    fn signers(&mut self, version: u64) -> Option<Vec<VerifierKey>> {
        let (signatures, chain) = (self.signatures.as_ref()?, self.chain?);
        let Some(&commit) = signatures.commits.get(&version) else {
            return Some(Vec::new());
        };
        self.asked.extend(signatures.missing(chain));
        if !self.asked.is_empty() {
            return None;
        }
        let by = signatures.signers(chain, version, commit);
        let can_list = self
            .listed
            .as_ref()
            .is_some_and(|(_, listed)| !listed.is_head_alone);
        self.must_list_notes =
            by.len() < signatures.trust.quorum() && signatures.listed.is_head_alone && can_list;
        (!self.must_list_notes).then_some(by)
    }

    /// Checks R-SIG-01 for the wanted version.
    pub(super) fn check_signed(&mut self, wanted: u64) -> Result<()> {
        if self
            .signatures
            .as_ref()
            .is_none_or(|signatures| signatures.by.is_some())
        {
            return Ok(());
        }
        let Some(by) = self.signers(wanted) else {
            return Ok(());
        };
        let Some(signatures) = &mut self.signatures else {
            return Ok(());
        };
        let unsigned = UnsignedVersion {
            version: wanted,
            signed_by: by.len(),
            quorum: signatures.trust.quorum(),
        };
        signatures.by = Some(by);
        ensure(
            unsigned.signed_by >= unsigned.quorum,
            &rules::SIG_01,
            || unsigned.to_string(),
        )
        .map_err(|error| {
            error
                .in_file(ObjectName::Commit(wanted).to_string())
                .because_of(unsigned)
        })
    }

    /// The failure to report if there is no head.
    pub(super) fn no_head(&self) -> Error {
        match self.unsigned_from(0) {
            Some(unsigned) => {
                Error::broken(&rules::SIG_01, unsigned.to_string()).because_of(unsigned)
            }
            None if self.signatures.is_some() => {
                Error::broken(&rules::SIG_01, "the chain has no version")
            }
            None => Error::broken(&rules::CHN_03, "the chain has no version"),
        }
    }

    /// The highest version, if it is at least `lowest`, with the number of trusted keys that signed
    /// it. Call it only if these are fewer than the quorum. `None` without trust.
    pub(super) fn unsigned_from(&self, lowest: u64) -> Option<UnsignedVersion> {
        let Signatures { trust, highest, .. } = self.signatures.as_ref()?;
        let version = self.head().filter(|head| *head >= lowest)?;
        let signed_by = highest
            .filter(|(of, _)| *of == version)
            .map_or(0, |(_, signed_by)| signed_by);
        Some(UnsignedVersion {
            version,
            signed_by,
            quorum: trust.quorum(),
        })
    }

    /// The part of the plan that is about signatures.
    pub(super) fn signed(&self, version: u64) -> Option<SignatureCheck> {
        let Signatures {
            by,
            recorded,
            of_head,
            ..
        } = self.signatures.as_ref()?;
        let unsigned_head = if *of_head {
            self.unsigned_from(version + 1)
        } else {
            None
        };
        Some(SignatureCheck {
            by: by.clone().unwrap_or_default(),
            seen: *recorded,
            unsigned_head,
        })
    }
}
