//! Properties of notes on commits and of keys, as texts.

use std::sync::Arc;

use deltachain::chain::{Note, ObjectName, Signer, SigningKey, Trust, VerifierKey};
use deltachain::tensor::Digest;

use crate::memory::{peak_of, single_threaded};

const VERSION: u64 = 7;

/// Reads any bytes as a note: it counts for a key only if it has the one line that the key's owner
/// would write, and takes memory in proportion to its length. Reads them as a key, too: it is
/// refused, or writing it again gives the same text.
pub fn note(data: &[u8]) {
    single_threaded();
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(key) = text.parse::<VerifierKey>() {
            assert_eq!(
                key.to_string(),
                text,
                "writing the key again gives another text"
            );
        }
        if let Ok(key) = SigningKey::parse(text) {
            assert_eq!(
                key.to_text(),
                text,
                "writing the key again gives another text"
            );
        }
    }
    let signers = signers();
    let trust = Trust::new(signers.iter().map(|signer| signer.public().clone()), 1)
        .expect("different keys");
    let (chain, commit) = digests();
    let name = ObjectName::Signature {
        version: VERSION,
        commit,
        note: Digest::of_bytes(data),
    };
    let (read, peak) = peak_of(|| Note::read(name, chain, data));
    let bound = 4096 + 8 * data.len() as u64;
    assert!(
        peak <= bound,
        "{} bytes made the reader allocate {peak}, at most {bound}",
        data.len()
    );
    let Some(read) = read else { return };
    let text = std::str::from_utf8(data).expect("the note was read");
    for key in trust.signers(std::slice::from_ref(&read)) {
        let signer = signers
            .iter()
            .find(|signer| signer.public() == key)
            .expect("the key is trusted");
        let own = made(std::slice::from_ref(signer));
        let line = own.lines().last().expect("a signature line");
        let valid = text.lines().filter(|other| *other == line).count();
        let named = read
            .signers()
            .filter(|(name, id)| *name == key.name() && *id == key.id())
            .count();
        assert!(valid > 0, "the note counts for {key} without a signature");
        assert_eq!(
            named, valid,
            "the note counts for {key} with an invalid signature"
        );
    }
}

/// Makes two signers with the same name, and another one.
fn signers() -> [Arc<dyn Signer>; 3] {
    [("a", 1), ("a", 2), ("b", 3)].map(|(name, seed)| {
        let key = SigningKey::from_seed(name, [seed; 32]).expect("a name");
        Arc::new(key) as Arc<dyn Signer>
    })
}

fn digests() -> (Digest, Digest) {
    (Digest::of_bytes(b"chain"), Digest::of_bytes(b"commit"))
}

fn made(signers: &[Arc<dyn Signer>]) -> String {
    let (chain, commit) = digests();
    let (_, note) = Note::make(chain, VERSION, commit, signers).expect("they sign");
    String::from_utf8(note).expect("a text")
}

/// Makes notes and keys that are valid, and some that nearly are.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let signers = signers();
    let mut seeds: Vec<String> = signers
        .iter()
        .map(|signer| signer.public().to_string())
        .collect();
    seeds.extend((1..=3).map(|count| made(&signers[..count])));
    seeds.extend(["a", "example.com/\u{e9}"].map(|name| {
        SigningKey::from_seed(name, [9; 32])
            .expect("a name")
            .to_text()
    }));
    let note = made(&signers);
    seeds.push(note.replacen("\u{2014} a ", "\u{2014} c ", 1));
    seeds.push(note.replacen("AAAA", "AAAB", 1).replacen('A', "B", 1));
    seeds.push(format!(
        "{note}{}\n",
        note.lines().last().unwrap_or_default()
    ));
    seeds.push(note.replace("\n7\n", "\n8\n"));
    // A line with another key ID: its first 30 bits, five base64 digits, are those of the key's own
    // line.
    let (same, digits) = note.trim_end().split_at(note.trim_end().len() - 87);
    let other = if digits.starts_with(|digit| ('A'..='P').contains(&digit)) {
        'g'
    } else {
        'A'
    };
    let line = same.rsplit('\n').next().unwrap_or_default();
    seeds.push(format!("{note}{line}{other}{}\n", &digits[1..]));
    // Lines of other kinds of keys: as many as a note may have, and as many as fit into it.
    seeds
        .extend([97, 1000].map(|count| format!("{note}{}", "\u{2014} c AAAAAAA=\n".repeat(count))));
    seeds.into_iter().map(String::into_bytes).collect()
}
