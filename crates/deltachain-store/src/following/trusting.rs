//! Following a chain whose versions have to be signed: the trusted keys of a follower, and the
//! signed heads that it has seen (SPEC section 23.3).

use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use deltachain::chain::{Plan, Planner, SignatureCheck, Trust, UnsignedVersion};
use deltachain::tensor::Digest;
use deltachain::{Error, Result};

use crate::directory::trust_record::{SeenHead, SignedCommit, TrustRecord};
use crate::observer::Observer;

/// The trust of a follower.
#[derive(Debug)]
pub(crate) struct FollowerTrust {
    trust: Trust,
    record: Mutex<TrustRecord>,
    /// The newest version that is not signed, as it was found last.
    unsigned: Mutex<Option<UnsignedVersion>>,
    /// Directory of the record; `None` keeps it in the process only.
    directory: Option<PathBuf>,
}

impl FollowerTrust {
    /// Creates the trust of a follower, with the record from before, if there is one. Without a
    /// directory, the record is lost when the process ends.
    pub(crate) fn new(
        trust: Trust,
        before: Option<TrustRecord>,
        directory: Option<PathBuf>,
    ) -> Self {
        let record = Mutex::new(TrustRecord::new(&trust, before));
        Self {
            trust,
            record,
            unsigned: Mutex::default(),
            directory,
        }
    }

    /// Creates the trust of a directory that this process manages; `None` without trusted keys.
    /// `forget` removes the directory's record first.
    ///
    /// # Errors
    /// USAGE if the directory has a record of trust and no keys are given; IO, also if the record
    /// is damaged.
    pub(crate) fn in_directory(
        directory: &Path,
        trust: Option<Trust>,
        forget: bool,
    ) -> Result<Option<Self>> {
        if forget {
            TrustRecord::remove(directory)?;
        }
        let before = TrustRecord::read(directory)?;
        let Some(trust) = trust else {
            return match before {
                None => Ok(None),
                Some(_) => Err(Error::usage(
                    "so far, this directory accepted only versions signed by trusted keys, and no \
                     keys are given now",
                )
                .with_advice(
                    "give the keys: --trust, in Python trust=; --trust none, or \
                    forget_trust=True, forgets the trust of this directory",
                )
                .in_file(directory)),
            };
        };
        let trusting = Self::new(trust, before, Some(directory.to_owned()));
        trusting.write().map(|()| Some(trusting))
    }

    /// Makes the planner accept only signed versions. The newest signed head that was seen counts,
    /// unless another chain is adopted.
    pub(crate) fn planner(&self, planner: Planner, counts_seen: bool) -> Planner {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = if counts_seen { record.seen() } else { None };
        planner.trust(self.trust.clone(), seen)
    }

    /// Records the signatures that a plan has found, before the plan is followed, and reports an
    /// unsigned version to the observer. The signers of the `held` commit stay recorded, in case
    /// the plan fails.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn record(
        &self,
        plan: &Plan,
        held: Option<Digest>,
        observer: &dyn Observer,
    ) -> Result<()> {
        let Some(SignatureCheck {
            by,
            seen,
            unsigned_head,
        }) = &plan.signed
        else {
            return Ok(());
        };
        self.tell(*unsigned_head, observer);
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let mut signed = record.signed.clone();
        signed.retain(|old| old.commit != plan.commit && Some(old.commit) == held);
        signed.push(SignedCommit {
            commit: plan.commit,
            by: by.clone(),
        });
        let seen = seen.map(|(version, commit)| SeenHead { version, commit });
        let unsigned = unsigned_head.map(|unsigned| unsigned.to_string());
        let now = TrustRecord {
            seen,
            signed,
            unsigned,
            ..record.clone()
        };
        if now != *record {
            self.directory
                .iter()
                .try_for_each(|directory| now.write(directory))?;
            *record = now;
        }
        Ok(())
    }

    /// Reports a version that is not signed to the observer, once.
    pub(crate) fn tell(&self, unsigned: Option<UnsignedVersion>, observer: &dyn Observer) {
        let before = mem::replace(
            &mut *self.unsigned.lock().unwrap_or_else(PoisonError::into_inner),
            unsigned,
        );
        if let Some(unsigned) = unsigned
            && before != Some(unsigned)
        {
            observer.remark(&unsigned.to_string());
        }
    }

    /// Returns the newest version that is not signed, as it was found last.
    pub(crate) fn unsigned(&self) -> Option<UnsignedVersion> {
        *self.unsigned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the record to its directory, which may have been recreated.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn write(&self) -> Result<()> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        self.directory
            .iter()
            .try_for_each(|directory| record.write(directory))
    }
}
