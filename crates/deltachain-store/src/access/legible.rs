//! Whether the bytes that came can be the expected document.

use deltachain::chain::{ChainDocument, Commit, ObjectName, RoutesDocument};
use deltachain::tensor::Digest;
use deltachain::{ErrorClass, Limits};

/// Whether these bytes have the form of a document of this name, or are the note of this name. Files have any form.
pub(crate) fn is_legible(name: ObjectName, bytes: &[u8]) -> bool {
    let limits = Limits::default();
    let parsed = match name {
        ObjectName::Chain => ChainDocument::parse(bytes, &limits).map(drop),
        ObjectName::Commit(_) => Commit::parse(bytes, &limits).map(drop),
        ObjectName::Routes { .. } => RoutesDocument::parse(bytes, &limits).map(drop),
        ObjectName::Signature { note, .. } => return Digest::of_bytes(bytes) == note,
        ObjectName::File(_) | ObjectName::Asset(_) => Ok(()),
    };
    !matches!(parsed, Err(error) if matches!(error.class(), ErrorClass::Malformed | ErrorClass::NonCanonical))
}
