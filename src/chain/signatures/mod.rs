//! Signed commits (spec/signatures.md): keys, the trust of readers, and notes, which vouch for
//! commits.
//!
//! ```
//! use std::sync::Arc;
//!
//! use deltachain::chain::{Note, ObjectName, Signer, SigningKey, Trust, TrustedKey};
//! use deltachain::tensor::Digest;
//!
//! # fn main() -> deltachain::Result<()> {
//! // The seed of a key comes from the system's random numbers.
//! let key = SigningKey::from_seed("trainer", [7; 32])?;
//! let (chain, commit) = (Digest::of_bytes(b"chain.json"), Digest::of_bytes(b"a commit"));
//! let (name, note) = Note::make(chain, 3, commit, &[Arc::new(key.clone())])?;
//! assert!(matches!(name, ObjectName::Signature { version: 3, .. }));
//!
//! // Readers are given the public key, as text.
//! let trust = Trust::new([key.public().to_string().parse::<TrustedKey>()?], 1)?;
//! let read = Note::read(name, chain, &note).expect("a note on this commit");
//! assert_eq!(read.counts_for(&trust), [key.public()]);
//! # Ok(())
//! # }
//! ```

mod found;
mod keys;
mod note;
mod trust;

pub(super) use found::Signatures;
pub use keys::{Signer, SigningKey, VerifierKey};
pub use note::Note;
pub use trust::{Trust, TrustedKey};
