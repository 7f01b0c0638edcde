//! Signing commits, and following none but signed ones (SPEC section 23.4).

use std::collections::BTreeSet;
use std::sync::Arc;

use deltachain::chain::{Listing, Note, ObjectName, Signer, Trust, head_not_signed, note_taken};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::documents::id_of;
use crate::access::store::Store;
use crate::publishing::options::PublishOptions;

/// By which keys the head has to be signed that a publisher follows: those that it was given, or
/// its own, of which one is enough. `None` if it does not sign and was given none.
///
/// # Errors
/// USAGE if a key is given twice, or it does not trust one of its own; R-SIG-05 (`CHAIN`) if too
/// few keys are trusted for the chain.
pub(crate) fn trust_of(options: &PublishOptions, chain: Digest) -> Result<Option<Trust>> {
    let own = options.sign.iter().map(|signer| signer.public());
    let Some(trust) = &options.trust else {
        let keys: Vec<_> = own.cloned().collect();
        return if keys.is_empty() {
            Ok(None)
        } else {
            Trust::new(keys, 1).map(Some)
        };
    };
    trust.check_chain(chain)?;
    if let Some(key) = own
        .into_iter()
        .find(|key| trust.keys_of(chain).all(|trusted| trusted != *key))
    {
        return Err(Error::usage(format!(
            "the publisher signs with the key {key}, which is not among the keys that it trusts \
             for this chain"
        )));
    }
    Ok(Some(trust.clone()))
}

/// R-SIG-03: whether the head, a version with this commit, may be followed.
pub(crate) fn check_head(
    store: &Store,
    chain: Digest,
    (version, commit): (u64, Digest),
    trust: &Trust,
) -> Result<()> {
    let own = trust.own_notes(chain, version, commit);
    let is_signed = |listed: Listing| {
        let notes = store
            .get_all(&listed.notes(version, commit, &own))?
            .into_iter();
        let notes: Vec<Note> = notes
            .filter_map(|(name, content)| Note::read(name, chain, &content?))
            .collect();
        Ok::<_, Error>(trust.signers(&notes).len() >= trust.quorum())
    };
    let is_signed = is_signed(Listing::of_head(None))? || is_signed(store.listed_notes(version)?)?;
    if is_signed {
        Ok(())
    } else {
        Err(head_not_signed(version, commit))
    }
}

/// True if a commit has a well-formed note, by any key. Other content under the name of a note does
/// not count.
///
/// # Errors
/// IO.
pub(crate) fn has_note(store: &Store, chain: Digest, version: u64, commit: Digest) -> Result<bool> {
    let listed = store.listed_notes(version)?;
    let notes = listed.notes(version, commit, &BTreeSet::new());
    let found = store.get_all(&notes)?;
    let is_note = |(name, content): (ObjectName, Option<Vec<u8>>)| {
        content.is_some_and(|content| Note::read(name, chain, &content).is_some())
    };
    Ok(found.into_iter().any(is_note))
}

/// Stores a note on a commit, which need not be there yet, by its digest and as the own note of
/// each signer (R-SIG-02). A note that is there already is as good, if it counts. Gives the name of
/// the note, and the names of own notes that something else has.
pub(crate) fn store_note(
    store: &Store,
    chain: Digest,
    (version, commit): (u64, Digest),
    signers: &[Arc<dyn Signer>],
) -> Result<(ObjectName, Vec<ObjectName>)> {
    let (name, note) = Note::make(chain, version, commit, signers)?;
    if !store.put_if_absent(name, &note)? && store.get(name)?.as_ref() != Some(&note) {
        return Err(note_taken(name));
    }
    let mut taken = Vec::new();
    for key in signers.iter().map(|signer| signer.public()) {
        let own = key.own_note(version, commit);
        if !store.put_if_absent(own, &note)? {
            let there = store
                .get(own)?
                .and_then(|content| Note::read(own, chain, &content));
            if Trust::new([key.clone()], 1)?
                .signers(there.as_slice())
                .is_empty()
            {
                taken.push(own);
            }
        }
    }
    Ok((name, taken))
}

/// Signs a version that has been published, whose commit must have this digest: for a quorum, or
/// where a chain begins to be signed. It vouches for the version and all below it (R-SIG-04), so
/// look at it before. Gives the name of the note, and those of own notes that something else has:
/// readers without lists, and those behind 64 other notes, do not find the note then.
///
/// # Errors
/// USAGE if the version has another commit, if there is no signer or one twice, or if the store can
/// only be read; R-CHN-01 to R-CHN-04 and the rules of documents; R-SIG-02 (`CHAIN`) if something
/// else is under the name of the note; IO; those of the signers.
pub fn sign(
    store: &Store,
    version: u64,
    commit: Digest,
    signers: &[Arc<dyn Signer>],
) -> Result<(ObjectName, Vec<ObjectName>)> {
    let found = id_of(store, version, &Limits::default())?;
    if found.commit != commit {
        let message = format!(
            "version {version} has the commit {}, not {commit}; nothing has been signed",
            found.commit
        );
        return Err(Error::usage(message));
    }
    store_note(store, found.chain, (version, commit), signers)
}
