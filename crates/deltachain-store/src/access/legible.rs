//! Checks whether bytes can be the expected document.

use deltachain::chain::{ChainDocument, Commit, Note, ObjectName, RoutesDocument};
use deltachain::tensor::Digest;
use deltachain::{ErrorClass, Limits};

/// True if these bytes have the form of a document of this name, or of a note of any chain. Files
/// have any form.
pub(crate) fn is_legible(name: ObjectName, bytes: &[u8]) -> bool {
    let limits = Limits::default();
    let parsed = match name {
        ObjectName::Chain => ChainDocument::parse(bytes, &limits).map(drop),
        ObjectName::Commit(_) => Commit::parse(bytes, &limits).map(drop),
        ObjectName::Routes { .. } => RoutesDocument::parse(bytes, &limits).map(drop),
        ObjectName::Signature { .. } => {
            let chain = str::from_utf8(bytes)
                .ok()
                .and_then(|text| Digest::from_hex(text.lines().nth(1)?));
            return chain.is_some_and(|chain| Note::read(name, chain, bytes).is_some());
        }
        ObjectName::File(_) | ObjectName::Asset(_) => Ok(()),
    };
    // A document beyond a limit would be beyond it again if it were read a second time.
    let is_damage =
        |class: ErrorClass| matches!(class, ErrorClass::Malformed | ErrorClass::NonCanonical);
    !parsed.is_err_and(|error| is_damage(error.class()))
}
