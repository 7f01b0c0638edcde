//! Signs commits, and checks that the head is signed (SPEC section 23.4).

use std::collections::BTreeSet;
use std::sync::Arc;

use deltachain::chain::{Listing, Note, ObjectName, Signer, Trust, head_not_signed, note_taken};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::documents::id_of;
use crate::access::store::Store;
use crate::publishing::options::PublishOptions;

/// Returns the keys that must have signed the head which a publisher follows: its trusted keys, or
/// else the keys with which it signs, of which one is enough. `None` if it has neither.
///
/// # Errors
/// USAGE if a key is given twice, or a key that signs is not trusted; R-SIG-05 (`CHAIN`) if too few
/// keys are trusted for the chain.
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

/// Checks R-SIG-03: the head, a version with this commit, must be signed by the trusted keys.
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

/// Stores a note on a commit, which need not exist yet, under the note's digest and as the own note
/// of each signer (R-SIG-02). An own note that exists already is enough, if it counts. Returns the
/// name of the note, and the names of own notes under which something else is stored.
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

/// Signs a version that has been published, whose commit must have this digest: to reach a quorum,
/// or to begin the signing of a chain. The signature vouches for the version and all versions below
/// it (R-SIG-04), so inspect the version before. Returns the name of the note, and the names of own
/// notes under which something else is stored: readers that cannot list, or that list 64 other
/// notes first, do not find the note then.
///
/// # Errors
/// USAGE if the version has another commit, if there is no signer or one twice, or if the store can
/// only be read; R-CHN-01 to R-CHN-04 and the rules of documents; R-SIG-02 (`CHAIN`) if something
/// else is stored under the name of the note; IO; errors of the signers.
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
