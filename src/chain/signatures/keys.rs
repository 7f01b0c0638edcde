//! Keys (SPEC section 23.2), written as other tools for signed notes write them.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding as _};
use ed25519_dalek::{Signature, Signer as _, VerifyingKey};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::chain::ObjectName;
use crate::error::{Error, Result, SECRET_KEY};
use crate::json::text_in_json;
use crate::tensor::Digest;

/// The type of a key in C2SP's signed notes: Ed25519.
const ED25519: u8 = 1;

/// A public key with its name. Displayed and parsed as a verifier key of C2SP: `NAME+ID+KEY`.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifierKey {
    name: String,
    /// The digest that the names of the key's own notes end with. Its first bytes are the key ID.
    pub(super) hash: Digest,
    key: VerifyingKey,
}

impl VerifierKey {
    /// Creates a key from a name and the 32 bytes of an Ed25519 public key (RFC 8032).
    ///
    /// # Errors
    /// USAGE if the name is invalid (SPEC section 23.2), or the bytes are not a public key.
    pub(crate) fn new(name: &str, key: [u8; 32]) -> Result<Self> {
        if !is_name(name) {
            return Err(Error::usage(format!(
                "{name:?} is not a name of a key: no spaces, no +, not empty"
            )));
        }
        let hash = Sha256::new()
            .chain_update(name)
            .chain_update(b"\n")
            .chain_update(typed(&key))
            .finalize();
        let hash = Digest(hash.into());
        let key = VerifyingKey::from_bytes(&key)
            .ok()
            .filter(|key| !key.is_weak());
        let key = key.ok_or_else(|| {
            Error::usage(format!("the key {name:?} is not an Ed25519 public key"))
        })?;
        Ok(Self {
            name: name.to_owned(),
            hash,
            key,
        })
    }

    /// The name, for people: two keys may have the same.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key ID: 8 lowercase hexadecimal digits. It tells keys apart, but proves nothing.
    pub fn id(&self) -> String {
        hex(self.raw_id())
    }

    /// The 32 bytes of the public key.
    pub fn bytes(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    /// Whether a signature line is by this key, according to its name and key ID.
    pub(super) fn is_named(&self, name: &str, id: [u8; 4]) -> bool {
        (self.name.as_str(), self.raw_id()) == (name, id)
    }

    pub(super) fn raw_id(&self) -> [u8; 4] {
        std::array::from_fn(|place| self.hash.0[place])
    }

    /// The name of this key's own note on the commit of a version: `signatures/VERSION-COMMIT-KEY`.
    pub fn own_note(&self, version: u64, commit: Digest) -> ObjectName {
        ObjectName::Signature {
            version,
            commit,
            note: self.hash,
        }
    }

    /// Whether this is a signature of the text by this key. The check is strict: no other party can
    /// make a second key that accepts the same signature.
    pub(super) fn verifies(&self, text: &str, signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .and_then(|valid| self.key.verify_strict(text.as_bytes(), &valid))
            .is_ok()
    }
}

/// Parses `NAME+ID+KEY`. The error is USAGE if the text has another form, or if the ID does not fit
/// the key.
impl FromStr for VerifierKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The message does not repeat the text, which may be a secret key.
        let refused = || Error::usage("this is not an Ed25519 public key: NAME+ID+KEY");
        let (name, id, key) = parts(text).ok_or_else(refused)?;
        let read = Self::new(name, *key)?;
        if read.id() != id {
            return Err(Error::usage(format!(
                "the public key is damaged: its ID should be {}",
                read.id()
            )));
        }
        Ok(read)
    }
}

text_in_json!(VerifierKey);

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}+{}+{}",
            self.name,
            self.id(),
            Base64::encode_string(&typed(&self.bytes()))
        )
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A signer: a [`SigningKey`], or a client of a service that keeps the key.
pub trait Signer: fmt::Debug + Send + Sync {
    /// The public key that verifies its signatures.
    fn public(&self) -> &VerifierKey;

    /// The Ed25519 signature of this text (RFC 8032).
    ///
    /// # Errors
    /// If the signer cannot sign.
    fn sign(&self, text: &[u8]) -> Result<[u8; 64]>;
}

/// A secret key with its name. It is erased from memory when it is dropped, and never shown by
/// `Debug`.
#[derive(Clone)]
pub struct SigningKey {
    public: VerifierKey,
    secret: ed25519_dalek::SigningKey,
}

impl SigningKey {
    /// Creates a key from a name and the 32 random bytes of the secret (RFC 8032).
    ///
    /// # Errors
    /// USAGE if the name is invalid (SPEC section 23.2).
    pub fn from_seed(name: &str, seed: [u8; 32]) -> Result<Self> {
        let secret = ed25519_dalek::SigningKey::from_bytes(&Zeroizing::new(seed));
        Ok(Self {
            public: VerifierKey::new(name, secret.verifying_key().to_bytes())?,
            secret,
        })
    }

    /// Parses the text that [`to_text`](Self::to_text) returns.
    ///
    /// # Errors
    /// USAGE if the text is not a secret key, or if the ID does not fit the key. The message never
    /// contains the text.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = || Error::usage("this is not an Ed25519 secret key: PRIVATE+KEY+NAME+ID+KEY");
        let (name, id, seed) = text
            .strip_prefix(SECRET_KEY)
            .and_then(parts)
            .ok_or_else(refused)?;
        let read = Self::from_seed(name, *seed)?;
        if read.public.id() != id {
            return Err(Error::usage(format!(
                "the secret key is damaged: its ID should be {}",
                read.public.id()
            )));
        }
        Ok(read)
    }

    /// The key as a text that other tools for signed notes read too: `PRIVATE+KEY+NAME+ID+KEY`. The
    /// text is secret: the caller must protect it.
    pub fn to_text(&self) -> String {
        let typed = Zeroizing::new(typed(self.secret.as_bytes()));
        format!(
            "{SECRET_KEY}{}+{}+{}",
            self.public.name,
            self.public.id(),
            Base64::encode_string(&*typed)
        )
    }
}

impl Signer for SigningKey {
    fn public(&self) -> &VerifierKey {
        &self.public
    }

    fn sign(&self, text: &[u8]) -> Result<[u8; 64]> {
        Ok(self.secret.sign(text).to_bytes())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

/// Whether a key may have this name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name
            .chars()
            .any(|c| c == '+' || c < '\u{21}' || c.is_whitespace())
}

/// The digits of a key ID.
pub(super) fn hex(id: [u8; 4]) -> String {
    let [a, b, c, d] = id;
    format!("{a:02x}{b:02x}{c:02x}{d:02x}")
}

fn typed(key: &[u8; 32]) -> [u8; 33] {
    std::array::from_fn(|place| place.checked_sub(1).map_or(ED25519, |place| key[place]))
}

/// Splits the text of a key, public or secret, into its name, ID and 32 bytes.
fn parts(text: &str) -> Option<(&str, &str, Zeroizing<[u8; 32]>)> {
    let mut parts = text.splitn(3, '+');
    let name = parts.next()?;
    let id = parts.next()?;
    let key = parts.next()?;
    let typed = Zeroizing::new(Base64::decode_vec(key).ok()?);
    Some((
        name,
        id,
        Zeroizing::new(typed.strip_prefix(&[ED25519])?.try_into().ok()?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_one_form() {
        // Bits that mean nothing, padding that is missing or too much, other alphabets, white
        // space.
        for text in [
            "Zh==", "Zg=", "Zg", "Zg===", "Zg==\n", " Zg==", "Z===", "Z-==", "Zé=", "=", "====",
            "Zg==Zg==", "Zm9=", "Zm-_", "Zm9v====", "Zm9vZ", "Zm9vZ===",
        ] {
            assert!(Base64::decode_vec(text).is_err(), "{text}");
        }
        assert_eq!(Base64::decode_vec("Zm9vYmFy").unwrap(), b"foobar");
    }
    use crate::error::ErrorClass;

    /// The keys of the documentation of Go's `golang.org/x/mod/sumdb/note`.
    const GO_PUBLIC: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    const GO_SECRET: &str =
        "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz";

    #[test]
    fn keys_of_another_tool_are_read_and_written() {
        let key = SigningKey::parse(GO_SECRET).unwrap();
        assert_eq!(key.public().to_string(), GO_PUBLIC);
        assert_eq!(key.to_text(), GO_SECRET);
        let public: VerifierKey = GO_PUBLIC.parse().unwrap();
        assert_eq!(
            (&public, public.name(), public.id().as_str()),
            (key.public(), "PeterNeumann", "c74f20a3")
        );
        assert_eq!(
            VerifierKey::new("PeterNeumann", public.bytes()).unwrap(),
            public
        );
        assert_eq!(
            SigningKey::from_seed("PeterNeumann", *key.secret.as_bytes())
                .unwrap()
                .to_text(),
            GO_SECRET
        );
    }

    #[test]
    fn other_texts_are_no_keys() {
        let key = GO_PUBLIC.rsplit('+').next().unwrap();
        let changed = [
            String::new(),
            "PeterNeumann".to_owned(),
            format!("PeterNeumann+{key}"),
            format!("+c74f20a3+{key}"),
            format!("PeterNeuman+c74f20a3+{key}"),
            format!("Peter Neumann+c74f20a3+{key}"),
            format!("PeterNeumann+C74F20A3+{key}"),
            format!("PeterNeumann+c74f20a4+{key}"),
            format!("PeterNeumann+c74f20a+{key}"),
            format!("PeterNeumann+c74f20a3+{}", &key[4..]),
            format!("PeterNeumann+c74f20a3+B{}", &key[1..]),
            format!("{GO_PUBLIC}="),
            format!("{GO_PUBLIC}\n"),
            format!(" {GO_PUBLIC}"),
            GO_SECRET.to_owned(),
        ];
        for text in changed {
            assert_eq!(
                text.parse::<VerifierKey>().unwrap_err().class(),
                ErrorClass::Usage,
                "{text}"
            );
            assert_eq!(
                SigningKey::parse(&format!("PRIVATE+KEY+{text}"))
                    .unwrap_err()
                    .class(),
                ErrorClass::Usage
            );
        }
        assert_eq!(
            SigningKey::parse(GO_PUBLIC).unwrap_err().class(),
            ErrorClass::Usage
        );
        // No point of the curve; and one of low order, for which anybody can sign.
        let two = std::array::from_fn(|place| if place == 0 { 2 } else { 0 });
        let one = std::array::from_fn(|place| u8::from(place == 0));
        for bytes in [two, one] {
            assert_eq!(
                VerifierKey::new("a", bytes).unwrap_err().class(),
                ErrorClass::Usage
            );
        }
    }

    #[test]
    fn an_own_note_is_named_by_the_whole_digest_of_the_key() {
        let key: VerifierKey = GO_PUBLIC.parse().unwrap();
        let typed = Base64::decode_vec(GO_PUBLIC.rsplit('+').next().unwrap()).unwrap();
        let hash = Sha256::digest([b"PeterNeumann\n".as_slice(), &typed].concat());
        let name = key.own_note(7, Digest([0xab; 32])).to_string();
        assert_eq!(
            name,
            format!(
                "signatures/{:020}-{}-{}",
                7,
                "ab".repeat(32),
                Digest(hash.into())
            )
        );
        assert!(name.contains(&format!("-{}", key.id())));
    }

    #[test]
    fn names_are_those_of_the_text() {
        for name in ["a", "example.com/log", "\u{e9}", "\u{7f}", "\u{200b}", "-"] {
            assert!(is_name(name), "{name:?}");
        }
        for name in [
            "", "a b", "a+b", "\n", "\u{1f}", "a\u{85}", "\u{a0}", "\u{2028}", "\u{3000}",
        ] {
            assert!(!is_name(name), "{name:?}");
            assert!(SigningKey::from_seed(name, [1; 32]).is_err());
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let key = SigningKey::parse(GO_SECRET).unwrap();
        let shown = format!("{key:?} {key:#?}");
        assert!(
            shown.contains(GO_PUBLIC) && !shown.contains(GO_SECRET.rsplit('+').next().unwrap())
        );
        assert!(!shown.contains("secret"));
        let error = SigningKey::parse(&GO_SECRET[..GO_SECRET.len() - 4]).unwrap_err();
        assert!(!error.to_string().contains("AYEKFAL"));
    }
}
