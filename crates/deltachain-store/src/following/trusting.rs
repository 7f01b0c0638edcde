//! Following a chain whose versions have to be signed: whom a follower trusts, and what it has seen
//! (SPEC section 23.3).

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
    /// The newest version that exists and is not signed, as it was found last.
    unsigned: Mutex<Option<UnsignedVersion>>,
    /// Directory of the record; `None` keeps it in the process only.
    directory: Option<PathBuf>,
}

impl FollowerTrust {
    /// In memory, or in a directory where this was recorded before. In memory, what is seen is
    /// forgotten when the process ends.
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

    /// In a directory that this process keeps. `forget` takes back whatever was recorded there.
    ///
    /// # Errors
    /// USAGE if trust was wanted there before and is not now; IO, also if the record is damaged.
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

    /// The planner takes only signed versions. The newest signed head that was seen counts, unless
    /// another chain is to be taken.
    pub(crate) fn planner(&self, planner: Planner, counts_seen: bool) -> Planner {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = if counts_seen { record.seen() } else { None };
        planner.trust(self.trust.clone(), seen)
    }

    /// Records what a plan has found out, before it is followed, and tells the observer. If it
    /// fails, the commit that is `held` stays.
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

    /// Tells the observer of a version that exists and is not signed, once.
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

    /// The newest version that exists and is not signed, as it was found last.
    pub(crate) fn unsigned(&self) -> Option<UnsignedVersion> {
        *self.unsigned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the record, also into a directory that has been made again.
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
