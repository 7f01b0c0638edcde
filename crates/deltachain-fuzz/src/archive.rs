//! Chains in few bytes: inputs of the target `chain`, which mutations can change without breaking
//! the references between objects.
//!
//! An input is four bytes (flags, the version wanted, the version held, and the object that will
//! fail) and then objects: kind, version, generation, length (two bytes), text. In the text of a
//! document some bytes stand for values that follow from other objects, so that digests and sizes
//! stay right when those objects change.

use std::collections::BTreeMap;

use deltachain::chain::ObjectName;
use deltachain::tensor::Digest;

use crate::reseal;
use crate::seal::Parts;

/// The lengths and checksums of links are recomputed.
pub(crate) const SEALED: u8 = 1;
/// A version is named; otherwise the head is wanted.
pub(crate) const WANTED: u8 = 2;
/// A version is held.
pub(crate) const HELD: u8 = 4;
/// The commit recorded for the version held differs from the commit that was read.
pub(crate) const FORKED: u8 = 8;
/// The chain document recorded for the version held differs from the one that was read.
pub(crate) const MOVED: u8 = 16;
/// The caller accepts the commit of the version wanted.
pub(crate) const ACCEPTED: u8 = 32;

/// Kinds of objects: the chain document, a commit, a routes document, a link under its own name, a
/// link whose name is the first 32 bytes of the text, and any other object, whose name is the text.
pub(crate) const CHAIN: u8 = 0;
pub(crate) const COMMIT: u8 = 1;
pub(crate) const ROUTES: u8 = 2;
pub(crate) const LINK: u8 = 3;
pub(crate) const MISPLACED: u8 = 4;
pub(crate) const OTHER: u8 = 5;
const KINDS: u8 = 6;
/// Added to the kind of an object that is removed after the reader has reached the version held.
pub(crate) const GONE: u8 = 8;

/// Escapes in a text. The first three stand for the digest, the size, or the state digest of the
/// target (of a link) of the object whose number follows; the others for the digest whose 32 bytes
/// follow, and for the byte that follows.
const DIGEST: u8 = 1;
const SIZE: u8 = 2;
const TARGET: u8 = 3;
const RAW_DIGEST: u8 = 4;
const LITERAL: u8 = 5;

/// Maximum number of bytes that one mutation adds to a text.
const ROOM: usize = 32;

/// Version bytes from this one on stand for the highest possible versions.
const HIGH: u8 = 0xF0;
const MOST: u64 = (1 << 53) - 1;

/// An input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Archive {
    pub(crate) flags: u8,
    pub(crate) wanted: u8,
    pub(crate) held: u8,
    /// Number of the object that fails.
    pub(crate) fault: u8,
    pub(crate) objects: Vec<Object>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    pub(crate) generation: u8,
    pub(crate) text: Vec<u8>,
}

impl Archive {
    /// Reads all objects, the last of which may be cut short.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let (&[flags, wanted, held, fault], mut rest) = data.split_first_chunk()?;
        let mut objects = Vec::new();
        while let Some((&[kind, version, generation, low, high], others)) = rest.split_first_chunk()
        {
            let length = usize::from(u16::from_le_bytes([low, high])).min(others.len());
            let (text, others) = others.split_at(length);
            objects.push(Object {
                kind,
                version,
                generation,
                text: text.to_vec(),
            });
            rest = others;
        }
        Some(Self {
            flags,
            wanted,
            held,
            fault,
            objects,
        })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.flags, self.wanted, self.held, self.fault];
        for Object {
            kind,
            version,
            generation,
            text,
        } in &self.objects
        {
            let [low, high] = u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes();
            bytes.extend([*kind, *version, *generation, low, high]);
            bytes.extend_from_slice(text);
        }
        bytes
    }

    /// Makes an input from the objects of a store, given by name.
    pub(crate) fn of(mut named: Vec<(String, Vec<u8>)>) -> Self {
        // Texts can only refer to objects before them.
        named.sort_by_cached_key(|(name, _)| (place(name), name.clone()));
        let mut objects: Vec<Object> = Vec::new();
        for (name, content) in &named {
            let mut object = Object {
                kind: OTHER,
                version: 0,
                generation: 0,
                text: name.clone().into_bytes(),
            };
            match ObjectName::parse(name) {
                Some(ObjectName::Chain) => object.kind = CHAIN,
                Some(ObjectName::Commit(version)) => {
                    (object.kind, object.version) = (COMMIT, byte_of(version));
                }
                Some(ObjectName::Routes {
                    version,
                    generation,
                }) => {
                    (object.kind, object.version) = (ROUTES, byte_of(version));
                    object.generation = u8::try_from(generation).unwrap_or(u8::MAX);
                }
                Some(ObjectName::File(digest)) if digest == Digest::of_bytes(content) => {
                    object.kind = LINK;
                }
                Some(ObjectName::File(digest)) => {
                    object.kind = MISPLACED;
                    object.text = [digest.0.as_slice(), content].concat();
                }
                // Planners do not read the content of these objects.
                Some(ObjectName::Asset(_) | ObjectName::Signature { .. }) | None => {}
            }
            match object.kind {
                CHAIN | COMMIT | ROUTES => {
                    object.text = shortened(content, &named[..objects.len()]);
                }
                LINK => object.text.clone_from(content),
                _ => {}
            }
            objects.push(object);
        }
        Self {
            flags: 0,
            wanted: 0,
            held: 0,
            fault: 0,
            objects,
        }
    }

    /// Returns the version wanted, or `None` for the head.
    pub(crate) fn wanted(&self) -> Option<u64> {
        (self.flags & WANTED != 0).then(|| version_of(self.wanted))
    }

    /// Returns the version held.
    pub(crate) fn held(&self) -> Option<u64> {
        (self.flags & HELD != 0).then(|| version_of(self.held))
    }

    /// Returns the objects with their names and contents: as they were when the reader reached the
    /// version held, and as they are now.
    pub(crate) fn stores(&self) -> (Store, Store) {
        let mut before = Store::default();
        let mut now = Store::default();
        let mut contents: Vec<Vec<u8>> = Vec::new();
        for object in &self.objects {
            let kind = object.kind % GONE % KINDS;
            let version = version_of(object.version);
            let (name, content) = match kind {
                LINK => {
                    let content = self.sealed(&object.text);
                    (Some(ObjectName::File(Digest::of_bytes(&content))), content)
                }
                MISPLACED => {
                    let (name, content) =
                        object.text.split_first_chunk().unwrap_or((&[0; 32], &[]));
                    (Some(ObjectName::File(Digest(*name))), self.sealed(content))
                }
                OTHER => (None, object.text.clone()),
                _ => {
                    let name = match kind {
                        CHAIN => ObjectName::Chain,
                        COMMIT => ObjectName::Commit(version),
                        _ => ObjectName::Routes {
                            version,
                            generation: u64::from(object.generation).max(1),
                        },
                    };
                    (Some(name), expanded(&object.text, &contents))
                }
            };
            for store in [
                Some(&mut before),
                (object.kind & GONE == 0).then_some(&mut now),
            ]
            .into_iter()
            .flatten()
            {
                match name {
                    Some(name) => drop(store.objects.insert(name, content.clone())),
                    None => store
                        .others
                        .push(String::from_utf8_lossy(&content).into_owned()),
                }
            }
            contents.push(content);
        }
        (before, now)
    }

    fn sealed(&self, link: &[u8]) -> Vec<u8> {
        if self.flags & SEALED != 0
            && let Some(parts) = Parts::of(link)
        {
            return parts.join(false);
        }
        link.to_vec()
    }
}

/// Content of a chain's store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<ObjectName, Vec<u8>>,
    /// Names of objects that are not part of the chain.
    others: Vec<String>,
}

impl Store {
    /// Returns all names, as a store lists them.
    pub(crate) fn names(&self) -> Vec<String> {
        self.objects
            .keys()
            .map(ToString::to_string)
            .chain(self.others.iter().cloned())
            .collect()
    }
}

/// Mutates an input, the first `size` bytes of `data`, and returns its new length, at most `most`.
/// `plainly` mutates bytes without regard to their meaning.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    most: usize,
    seed: u32,
    plainly: impl Fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut random = fastrand::Rng::with_seed(seed.into());
    let archive = Archive::parse(&data[..size])
        .filter(|archive| !archive.objects.is_empty() && random.u8(..32) > 0);
    let Some(mut archive) = archive else {
        return plainly(data, size, most);
    };
    let number = random.usize(..archive.objects.len());
    let other = archive.objects[random.usize(..archive.objects.len())].clone();
    let object = &mut archive.objects[number];
    match random.u8(..16) {
        0 => archive.flags ^= 1 << random.u8(..6),
        1 => (archive.wanted, archive.held) = (other.version, object.version),
        2 => archive.fault = random.u8(..),
        3 => object.kind ^= GONE,
        4 => drop(archive.objects.remove(number)),
        5 => {
            (object.version, object.generation) =
                (other.version, other.generation.wrapping_add(random.u8(..2)));
        }
        6 => archive.objects.push(Object {
            version: random.u8(..),
            ..other
        }),
        // The link starts from the base or target of another one, or ends at that target.
        7 if object.text.len() >= 88 && other.text.len() >= 88 => {
            let (to, from) = random
                .choice([(24, 56), (24, 24), (56, 56)])
                .unwrap_or_default();
            object.text[to..to + 32].copy_from_slice(&other.text[from..from + 32]);
        }
        _ => {
            let length = object.text.len();
            object.text.resize(length + ROOM, 0);
            let is_link = object.kind % GONE % KINDS == LINK;
            let after = if is_link && archive.flags & SEALED != 0 {
                reseal::mutate(
                    &mut object.text,
                    length,
                    length + ROOM,
                    random.u32(..),
                    &plainly,
                )
            } else {
                plainly(&mut object.text, length, length + ROOM)
            };
            object.text.truncate(after);
        }
    }
    let bytes = archive.to_bytes();
    if bytes.len() > most {
        return plainly(data, size, most);
    }
    data[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
}

/// Returns the rank of a name: links first, then the documents that refer to them, in the order in
/// which they refer to each other.
fn place(name: &str) -> u8 {
    match ObjectName::parse(name) {
        Some(ObjectName::File(_) | ObjectName::Asset(_)) => 0,
        Some(ObjectName::Chain) => 1,
        Some(ObjectName::Commit(_)) => 2,
        Some(ObjectName::Routes { .. }) => 3,
        Some(ObjectName::Signature { .. }) | None => 4,
    }
}

pub(crate) fn version_of(byte: u8) -> u64 {
    if byte < HIGH {
        byte.into()
    } else {
        MOST - u64::from(u8::MAX - byte)
    }
}

/// Returns the byte whose version is nearest to this one.
pub(crate) fn byte_of(version: u64) -> u8 {
    let high = MOST.saturating_sub(version);
    u8::try_from(high)
        .ok()
        .filter(|&high| high <= u8::MAX - HIGH)
        .map_or_else(
            || u8::try_from(version).unwrap_or(HIGH - 1).min(HIGH - 1),
            |high| u8::MAX - high,
        )
}

/// Returns a document's text with the values that follow from other objects.
fn expanded(text: &[u8], objects: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            DIGEST | SIZE | TARGET => {
                let Some((&number, after)) = rest.split_first() else {
                    break;
                };
                rest = after;
                let object = objects
                    .get(usize::from(number))
                    .map_or(&[][..], Vec::as_slice);
                let written = match byte {
                    DIGEST => Digest::of_bytes(object).to_string(),
                    SIZE => object.len().to_string(),
                    _ => target_of(object).unwrap_or(Digest([0; 32])).to_string(),
                };
                out.extend_from_slice(written.as_bytes());
            }
            RAW_DIGEST => {
                let Some((digest, after)) = rest.split_first_chunk() else {
                    break;
                };
                rest = after;
                out.extend_from_slice(Digest(*digest).to_string().as_bytes());
            }
            LITERAL => {
                out.extend(rest.first());
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => out.push(byte),
        }
    }
    out
}

/// Returns the text that [`expanded`] turns into this document.
fn shortened(document: &[u8], before: &[(String, Vec<u8>)]) -> Vec<u8> {
    let number = |is: &dyn Fn(&[u8]) -> bool| {
        let found = before.iter().take(256).position(|(_, content)| is(content));
        found.and_then(|number| u8::try_from(number).ok())
    };
    let mut text = Vec::new();
    let mut rest = document;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if let Some(digest) = digest_at_front(byte, after) {
            rest = &after[63..];
            if let Some(object) = number(&|content| Digest::of_bytes(content) == digest) {
                text.extend([DIGEST, object]);
                let size = format!("\",\"size\":{}", before[usize::from(object)].1.len());
                if rest
                    .strip_prefix(size.as_bytes())
                    .is_some_and(|after| after.starts_with(b"}"))
                {
                    text.extend(b"\",\"size\":");
                    text.extend([SIZE, object]);
                    rest = &rest[size.len()..];
                }
            } else if let Some(link) = number(&|content| target_of(content) == Some(digest)) {
                text.extend([TARGET, link]);
            } else {
                text.push(RAW_DIGEST);
                text.extend(digest.0);
            }
        } else {
            text.extend((DIGEST..=LITERAL).contains(&byte).then_some(LITERAL));
            text.push(byte);
        }
    }
    text
}

fn digest_at_front(byte: u8, after: &[u8]) -> Option<Digest> {
    let digits = [&[byte], after.get(..63)?].concat();
    let text = std::str::from_utf8(&digits).ok()?;
    Digest::from_hex(text).filter(|digest| digest.to_string() == text)
}

/// Returns the state digest of the target in a link's header, if the bytes reach that far.
fn target_of(link: &[u8]) -> Option<Digest> {
    if !link.starts_with(b"\x89DCF") {
        return None;
    }
    Some(Digest(*link.get(56..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_was_shortened_is_whole_again() {
        let link = [b"\x89DCF".as_slice(), &[7; 100]].concat();
        let digest = Digest::of_bytes(&link);
        let chain = br#"{"deltachain":1,"chain":"00112233445566778899aabbccddeeff"}"#.to_vec();
        let commit = format!(
            "{{\"parent\":\"{}\",\"state\":\"{}\",\"other\":\"{}\",\"digest\":\"{digest}\",\"size\":104}}\u{1}\u{5}",
            Digest::of_bytes(&chain),
            Digest([7; 32]),
            Digest([8; 32])
        );
        let mut named = vec![
            (
                "commits/00009007199254740991.json".to_owned(),
                commit.into_bytes(),
            ),
            ("chain.json".to_owned(), chain),
            (format!("files/{digest}.dcf"), link),
            (
                format!("files/{}.dcf", Digest([1; 32])),
                b"another".to_vec(),
            ),
        ];
        let archive = Archive::of(named.clone());
        let bytes = archive.to_bytes();
        assert_eq!(Archive::parse(&bytes), Some(archive.clone()));
        let (before, now) = archive.stores();
        assert_eq!(before.names(), now.names());
        named.sort();
        let mut found: Vec<_> = now
            .objects
            .iter()
            .map(|(name, content)| (name.to_string(), content.clone()))
            .collect();
        found.sort();
        assert_eq!(found, named);
        // All digests but one follow from other objects.
        assert!(
            archive.objects[3].text.len() < 120,
            "{:?}",
            archive.objects[3]
        );
    }

    #[test]
    fn bytes_stand_for_versions() {
        assert!((0..=u8::MAX).all(|byte| byte_of(version_of(byte)) == byte));
        assert_eq!((version_of(u8::MAX), byte_of(1000)), (MOST, HIGH - 1));
    }
}
