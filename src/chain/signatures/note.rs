//! Makes and reads notes on commits (SPEC section 23.2).

use std::fmt::Write as _;
use std::sync::Arc;

use base64ct::{Base64, Encoding as _};

use crate::chain::signatures::keys;
use crate::chain::{ObjectName, Signer, Trust, VerifierKey};
use crate::error::{Error, Result};
use crate::tensor::Digest;

/// The beginning of a signature line: an em dash and a space.
const DASH: &str = "\u{2014} ";

/// A note on a commit, in the only form that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    chain: Digest,
    text: String,
    lines: Vec<SignatureLine>,
    /// If the note is not named by its own digest: the digest of the key whose own note it may be.
    own: Option<Digest>,
}

/// A signature line. Other kinds of keys have signatures of other lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SignatureLine {
    name: String,
    id: [u8; 4],
    signature: Vec<u8>,
}

impl Note {
    /// Maximum size of a note in bytes; a longer note does not count.
    pub const MOST_BYTES: u64 = 16_384;
    /// Maximum number of signature lines; a note with more does not count.
    pub(crate) const MOST_LINES: usize = 100;
    /// Maximum number of notes on one commit that are read, in ascending order of their names,
    /// besides the own notes of trusted keys.
    pub(crate) const MOST_OF_COMMIT: usize = 64;

    /// The text that is signed by notes on the commit of a version. `chain` is the digest of the
    /// chain document's bytes, `commit` that of the commit's.
    pub(crate) fn text(chain: Digest, version: u64, commit: Digest) -> String {
        format!("deltachain commit v1\n{chain}\n{version}\n{commit}\n")
    }

    /// Makes a note on a commit with the signatures of these signers, and returns its name and its
    /// bytes. The signatures are checked.
    ///
    /// # Errors
    /// USAGE if there is no signer, if there are too many, if one is given twice, or if a signature
    /// does not fit its public key. Also errors of the signers.
    pub fn make(
        chain: Digest,
        version: u64,
        commit: Digest,
        signers: &[Arc<dyn Signer>],
    ) -> Result<(ObjectName, Vec<u8>)> {
        let text = Self::text(chain, version, commit);
        let mut note = format!("{text}\n");
        for (place, signer) in signers.iter().enumerate() {
            let key = signer.public();
            if signers[..place]
                .iter()
                .any(|before| before.public().bytes() == key.bytes())
            {
                return Err(Error::usage(format!("duplicate signer: {key}")));
            }
            let signature = signer.sign(text.as_bytes())?;
            if !key.verifies(&text, &signature) {
                return Err(Error::usage(format!(
                    "the signer of the key {key} returned a signature that this key did not make"
                )));
            }
            let mut signed = key.raw_id().to_vec();
            signed.extend_from_slice(&signature);
            // Writing to a string cannot fail.
            let _ = writeln!(
                note,
                "{DASH}{} {}",
                key.name(),
                Base64::encode_string(&signed)
            );
        }
        if !(1..=Self::MOST_LINES).contains(&signers.len()) || note.len() as u64 > Self::MOST_BYTES
        {
            return Err(Error::usage(format!(
                "a note cannot have {} signatures, or names of keys as long as these",
                signers.len()
            )));
        }
        let note = note.into_bytes();
        Ok((
            ObjectName::Signature {
                version,
                commit,
                note: Digest::of_bytes(&note),
            },
            note,
        ))
    }

    /// Reads an object with the name of a note. Returns `None` if it is not a valid note on this
    /// commit of this chain. `chain` is the digest of the chain document's bytes.
    pub fn read(name: ObjectName, chain: Digest, bytes: &[u8]) -> Option<Self> {
        let ObjectName::Signature {
            version,
            commit,
            note,
        } = name
        else {
            return None;
        };
        if bytes.len() as u64 > Self::MOST_BYTES {
            return None;
        }
        let own = (Digest::of_bytes(bytes) != note).then_some(note);
        let text = Self::text(chain, version, commit);
        let lines = std::str::from_utf8(bytes)
            .ok()?
            .strip_prefix(&text)?
            .strip_prefix('\n')?;
        // Lines are short and there may be a thousand: one more than allowed is enough to refuse
        // the note.
        let lines = lines
            .strip_suffix('\n')?
            .split('\n')
            .take(Self::MOST_LINES + 1);
        let lines = lines
            .map(SignatureLine::read)
            .collect::<Option<Vec<SignatureLine>>>()?;
        (lines.len() <= Self::MOST_LINES).then_some(Self {
            chain,
            text,
            lines,
            own,
        })
    }

    /// The keys that this note counts for, among the keys that are trusted for its chain.
    pub fn counts_for<'t>(&self, trust: &'t Trust) -> Vec<&'t VerifierKey> {
        let mut counts = Vec::new();
        if self
            .own
            .is_some_and(|own| trust.keys_of(self.chain).all(|key| key.hash != own))
        {
            return counts;
        }
        for key in trust.keys_of(self.chain) {
            let mut lines = self
                .lines
                .iter()
                .filter(|line| key.is_named(&line.name, line.id))
                .peekable();
            if lines.peek().is_some() {
                if !lines.all(|line| key.verifies(&self.text, &line.signature)) {
                    return Vec::new();
                }
                counts.push(key);
            }
        }
        counts
    }

    /// Name and key ID of each signature line. They prove nothing: anyone can write them.
    pub fn signers(&self) -> impl Iterator<Item = (&str, String)> {
        self.lines
            .iter()
            .map(|line| (line.name.as_str(), keys::hex(line.id)))
    }
}

impl Trust {
    /// The trusted keys that these notes count for. The notes are those on one commit that
    /// [readers read](crate::chain::Listing::notes).
    pub fn signers(&self, notes: &[Note]) -> Vec<&VerifierKey> {
        let counts: Vec<&VerifierKey> = notes
            .iter()
            .flat_map(|note| note.counts_for(self))
            .collect();
        self.keys()
            .iter()
            .map(|trusted| &trusted.key)
            .filter(|key| counts.contains(key))
            .collect()
    }
}

impl SignatureLine {
    /// Reads a line without the line feed at its end.
    fn read(line: &str) -> Option<Self> {
        let (name, signed) = line.strip_prefix(DASH)?.split_once(' ')?;
        let signed = Base64::decode_vec(signed).ok()?;
        let (id, signature) = signed.split_first_chunk()?;
        let is_line = keys::is_name(name) && !signature.is_empty();
        is_line.then(|| Self {
            name: name.to_owned(),
            id: *id,
            signature: signature.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::SigningKey;
    use crate::error::ErrorClass;

    const VERSION: u64 = 7;

    fn key(name: &str, seed: u8) -> Arc<dyn Signer> {
        Arc::new(SigningKey::from_seed(name, [seed; 32]).unwrap())
    }

    fn trust(keys: &[&Arc<dyn Signer>]) -> Trust {
        Trust::new(keys.iter().map(|key| key.public().clone()), 1).unwrap()
    }

    fn digests() -> (Digest, Digest) {
        (Digest::of_bytes(b"chain"), Digest::of_bytes(b"commit"))
    }

    fn made(signers: &[Arc<dyn Signer>]) -> String {
        let (chain, commit) = digests();
        String::from_utf8(Note::make(chain, VERSION, commit, signers).unwrap().1).unwrap()
    }

    /// For which of these keys a note counts, by their names; under the name that it should have.
    fn counts(note: impl AsRef<[u8]>, keys: &[&Arc<dyn Signer>]) -> Vec<String> {
        let (chain, commit) = digests();
        let name = ObjectName::Signature {
            version: VERSION,
            commit,
            note: Digest::of_bytes(note.as_ref()),
        };
        let note = Note::read(name, chain, note.as_ref());
        let counts = note.map(|note| {
            note.counts_for(&trust(keys))
                .into_iter()
                .cloned()
                .collect::<Vec<_>>()
        });
        counts
            .into_iter()
            .flatten()
            .map(|key| key.name().to_owned())
            .collect()
    }

    #[test]
    fn a_note_counts_for_those_who_signed_it() {
        let a = key("a", 1);
        let b = key("b", 2);
        let c = key("c", 3);
        let note = made(&[a.clone(), b.clone()]);
        assert_eq!(counts(&note, &[&a, &b, &c]), ["a", "b"]);
        assert_eq!(counts(&note, &[&b]), ["b"]);
        assert!(counts(&note, &[&c]).is_empty());
        // A note does not count for a key of the same name and another seed, nor for one of the
        // same seed and another name.
        assert!(counts(&note, &[&key("a", 9)]).is_empty());
        assert!(counts(&note, &[&key("c", 1)]).is_empty());
        let (chain, commit) = digests();
        let (name, bytes) = Note::make(chain, VERSION, commit, &[a.clone(), b]).unwrap();
        let read = Note::read(name, chain, &bytes).unwrap();
        let signers: Vec<(&str, String)> = read.signers().collect();
        assert_eq!(signers[0], ("a", a.public().id()));
        assert_eq!(note.lines().count(), 4 + 1 + 2);
    }

    /// The example in the documentation of Go's `golang.org/x/mod/sumdb/note`.
    #[test]
    fn a_signature_of_another_tool_is_valid() {
        let text = "If you think cryptography is the answer to your problem,\nthen you don't know \
                    what your problem is.\n";
        let line = "\u{2014} PeterNeumann \
                    x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=";
        let key = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
            .parse::<VerifierKey>()
            .unwrap();
        let line = SignatureLine::read(line).unwrap();
        assert!(key.is_named(&line.name, line.id) && key.verifies(text, &line.signature));
        assert!(!key.verifies(text.trim_end(), &line.signature));
    }

    #[test]
    fn a_note_is_on_one_commit_of_one_chain() {
        let a = key("a", 1);
        let (chain, commit) = digests();
        let (name, bytes) = Note::make(chain, VERSION, commit, std::slice::from_ref(&a)).unwrap();
        let ObjectName::Signature { note, .. } = name else {
            panic!("{name}")
        };
        let counted = |name: ObjectName, chain, trusted: &[&Arc<dyn Signer>]| {
            Note::read(name, chain, &bytes)
                .is_some_and(|note| !note.counts_for(&trust(trusted)).is_empty())
        };
        let read = |version, commit, note, chain| {
            counted(
                ObjectName::Signature {
                    version,
                    commit,
                    note,
                },
                chain,
                &[&a],
            )
        };
        let other = Digest::of_bytes(b"other");
        assert!(read(VERSION, commit, note, chain));
        assert!(!read(VERSION + 1, commit, note, chain));
        assert!(!read(VERSION, other, note, chain));
        assert!(!read(VERSION, commit, other, chain));
        assert!(!read(VERSION, commit, note, other));
        assert!(Note::read(ObjectName::Commit(VERSION), chain, &bytes).is_none());
        // As an own note: of whichever trusted key.
        let b = key("b", 2);
        let own = |key: &Arc<dyn Signer>, commit| key.public().own_note(VERSION, commit);
        assert!(counted(own(&a, commit), chain, &[&a]));
        assert!(!counted(own(&a, other), chain, &[&a]));
        assert!(!counted(own(&b, commit), chain, &[&a]));
        assert!(counted(own(&b, commit), chain, &[&a, &b]));
    }

    #[test]
    fn a_wrong_signature_of_a_trusted_key_spoils_the_note() {
        let a = key("a", 1);
        let b = key("b", 2);
        let c = key("c", 3);
        let note = made(&[a.clone(), b.clone()]);
        let (text, lines) = note.split_once("\n\n").unwrap();
        let (of_a, of_b) = lines.split_once('\n').unwrap();
        // The ID of `a`, and the signature of another text.
        let (chain, commit) = digests();
        let other = Note::make(chain, VERSION + 1, commit, std::slice::from_ref(&a))
            .unwrap()
            .1;
        let wrong = String::from_utf8(other)
            .unwrap()
            .lines()
            .last()
            .unwrap()
            .to_owned();
        let with = |lines: &[&str]| counts(format!("{text}\n\n{}\n", lines.join("\n")), &[&a, &b]);
        let of_b = of_b.trim_end();
        assert_eq!(with(&[of_a]), ["a"]);
        // Several lines of one key count once.
        assert_eq!(with(&[of_a, of_b, of_a]), ["a", "b"]);
        assert!(with(&[of_b, &wrong]).is_empty());
        assert!(with(&[of_a, &wrong]).is_empty());
        // Nobody looks at the lines of others.
        assert_eq!(
            counts(format!("{text}\n\n{wrong}\n{of_b}\n"), &[&b, &c]),
            ["b"]
        );
        assert_eq!(
            with(&[of_b, &wrong.replace("\u{2014} a ", "\u{2014} c ")]),
            ["b"]
        );
    }

    #[test]
    fn other_forms_count_for_nobody() {
        let a = key("a", 1);
        let note = made(std::slice::from_ref(&a));
        let line = note.lines().last().unwrap().to_owned();
        let base64 = line.rsplit(' ').next().unwrap();
        assert_eq!(counts(&note, &[&a]), ["a"]);
        let changed = [
            String::new(),
            note.trim_end().to_owned(),
            format!("{note}\n"),
            format!("{note}x"),
            format!(" {note}"),
            format!("\u{feff}{note}"),
            note.replace('\n', "\r\n"),
            note.replace("\n\n", "\n"),
            note.replace("\n\n", "\n\n\n"),
            note.replace("v1", "v2"),
            note.replace("\n7\n", "\n07\n"),
            note.replace("\n7\n", "\n+7\n"),
            note.replace(
                &digests().0.to_string(),
                &digests().0.to_string().to_uppercase(),
            ),
            note.replace('\u{2014}', "-"),
            note.replace("\u{2014} a ", "\u{2014}  a "),
            note.replace("\u{2014} a ", "\u{2014} "),
            note.replace("\u{2014} a ", "\u{2014} a+b "),
            note.replace(base64, &base64[4..]),
            note.replace(base64, base64.trim_end_matches('=')),
            note.replace(base64, &format!("{base64} ")),
            note.replace(base64, &format!("AAAA{base64}")),
            // Lines of another key without a signature, or without a key ID.
            format!("{note}\u{2014} b AAAAAA==\n"),
            format!("{note}\u{2014} b AAAA\n"),
            format!("{note}\u{2014} b \n"),
            note.replace("\n\n", &format!("\nmore\n\n{line}\n")),
            note.split_once("\n\n").unwrap().0.to_owned() + "\n\n",
            note.split_once("\n\n").unwrap().0.to_owned() + "\n\n\n",
        ];
        for changed in changed {
            assert_ne!(changed, note);
            assert!(counts(&changed, &[&a]).is_empty(), "{changed}");
        }
        let mut bytes = note.clone().into_bytes();
        bytes.extend_from_slice(b"\xff\n");
        assert!(counts(bytes, &[&a]).is_empty());
    }

    #[test]
    fn lines_of_other_kinds_of_keys_mean_nothing() {
        let (a, b) = (key("a", 1), key("b", 2));
        let note = made(std::slice::from_ref(&a));
        let line = |name: &str, id: [u8; 4], signature: &[u8]| {
            format!(
                "\u{2014} {name} {}\n",
                Base64::encode_string(&[&id, signature].concat())
            )
        };
        for length in [1, 63, 64, 65, 72, 2420] {
            let signature = vec![7; length];
            for (name, id) in [("c", [9; 4]), ("a", [9; 4]), ("c", a.public().raw_id())] {
                let other = line(name, id, &signature);
                assert_eq!(
                    counts(format!("{note}{other}"), &[&a, &b]),
                    ["a"],
                    "{other}"
                );
            }
            // A line of a trusted key must hold a valid signature of this kind, wherever the line
            // stands.
            let own = line("b", b.public().raw_id(), &signature);
            assert!(
                counts(format!("{note}{own}"), &[&a, &b]).is_empty(),
                "{own}"
            );
            assert!(
                counts(note.replace("\n\n", &format!("\n\n{own}")), &[&a, &b]).is_empty(),
                "{own}"
            );
            assert_eq!(counts(format!("{note}{own}"), &[&a]), ["a"], "{own}");
        }
        // A valid signature, and one byte less or more.
        let signed = Base64::decode_vec(note.trim_end().rsplit(' ').next().unwrap()).unwrap();
        let longer = [&signed[4..], &[0]].concat();
        for signature in [&signed[4..67], &longer] {
            let own = line("a", a.public().raw_id(), signature);
            assert!(counts(format!("{note}{own}"), &[&a]).is_empty(), "{own}");
        }
    }

    #[test]
    fn a_note_has_bounds() {
        let a = key("a", 1);
        let note = made(std::slice::from_ref(&a));
        let line = note.lines().last().unwrap().to_owned() + "\n";
        let (text, _) = note.split_once(&line).unwrap();
        assert_eq!(counts(format!("{text}{}", line.repeat(100)), &[&a]), ["a"]);
        assert!(counts(format!("{text}{}", line.repeat(101)), &[&a]).is_empty());
        // A line of another key fills it to the last byte.
        let other = line.replace("\u{2014} a ", "\u{2014} b ");
        let room = 16_384 - note.len() - (other.len() - 1);
        let fill = |length: usize| {
            format!(
                "{note}{}",
                other.replace("\u{2014} b ", &format!("\u{2014} {} ", "b".repeat(length)))
            )
        };
        assert_eq!(
            (fill(room).len(), counts(fill(room), &[&a])),
            (16_384, vec!["a".to_owned()])
        );
        assert!(counts(fill(room + 1), &[&a]).is_empty());
    }

    #[test]
    fn who_signs_is_checked() {
        #[derive(Debug)]
        struct Elsewhere(SigningKey, &'static str);

        impl Signer for Elsewhere {
            fn public(&self) -> &VerifierKey {
                self.0.public()
            }

            fn sign(&self, text: &[u8]) -> Result<[u8; 64]> {
                match self.1 {
                    "" => self.0.sign(text),
                    "other" => self.0.sign(b"other"),
                    message => Err(Error::refused(ErrorClass::Io, message)),
                }
            }
        }

        let (chain, commit) = digests();
        let make = |signers: &[Arc<dyn Signer>]| {
            Note::make(chain, VERSION, commit, signers)
                .map(drop)
                .map_err(|error| error.class())
        };
        let elsewhere = |message| {
            Arc::new(Elsewhere(
                SigningKey::from_seed("e", [5; 32]).unwrap(),
                message,
            ))
        };
        assert_eq!(make(&[elsewhere("")]), Ok(()));
        assert_eq!(make(&[elsewhere("other")]), Err(ErrorClass::Usage));
        assert_eq!(make(&[elsewhere("no answer")]), Err(ErrorClass::Io));
        assert_eq!(make(&[]), Err(ErrorClass::Usage));
        assert_eq!(make(&[key("a", 1), key("b", 1)]), Err(ErrorClass::Usage));
        let many: Vec<Arc<dyn Signer>> = (0..=100).map(|seed| key("a", seed)).collect();
        assert_eq!(make(&many[..100]), Ok(()));
        assert_eq!(make(&many), Err(ErrorClass::Usage));
        let long: Vec<Arc<dyn Signer>> = vec![key(&"a".repeat(17_000), 1)];
        assert_eq!(make(&long), Err(ErrorClass::Usage));
    }
}
