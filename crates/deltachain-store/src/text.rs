//! Digests, keys and what else is text in JSON. Modules for serde's `with`, and functions for its `serialize_with`.

use std::fmt::{Display, Write as _};
use std::str::FromStr;
use std::time::SystemTime;

use deltachain::chain::{Asset, FileReference, VerifierKey};
use deltachain::tensor::Digest;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// Any number of them.
pub(crate) mod all {
    use super::{Deserialize, Deserializer, Display, Error, FromStr, Serializer};

    pub(crate) fn serialize<'a, T, C, S: Serializer>(values: &'a C, serializer: S) -> Result<S::Ok, S::Error>
    where
        T: Display + 'a,
        &'a C: IntoIterator<Item = &'a T>,
    {
        serializer.collect_seq(values.into_iter().map(T::to_string))
    }

    pub(crate) fn deserialize<'de, T, C, D: Deserializer<'de>>(from: D) -> Result<C, D::Error>
    where
        T: FromStr<Err: Display>,
        C: FromIterator<T> + IntoIterator<Item = T>,
    {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

/// Keys; null if nobody says which.
#[expect(clippy::ref_option, reason = "serde calls it so")]
pub(crate) fn keys<S: Serializer>(keys: &Option<Vec<VerifierKey>>, serializer: S) -> Result<S::Ok, S::Error> {
    keys.as_ref().map(|keys| keys.iter().map(VerifierKey::to_string).collect::<Vec<_>>()).serialize(serializer)
}

/// A file of a chain.
#[derive(serde::Serialize)]
struct File {
    #[serde(serialize_with = "serialize")]
    digest: Digest,
    size: u64,
}

pub(crate) fn files<S: Serializer>(files: &[FileReference], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(files.iter().map(|&FileReference { digest, size }| File { digest, size }))
}

/// Assets.
pub(crate) mod assets {
    use super::{Asset, Deserialize, Deserializer, Digest, FileReference, Serializer};

    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Row {
        name: String,
        #[serde(with = "super")]
        digest: Digest,
        size: u64,
    }

    pub(crate) fn serialize<S: Serializer>(assets: &[Asset], serializer: S) -> Result<S::Ok, S::Error> {
        let row = |Asset { name, file }: &Asset| Row { name: name.clone(), digest: file.digest, size: file.size };
        serializer.collect_seq(assets.iter().map(row))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Asset>, D::Error> {
        let asset = |Row { name, digest, size }| Asset { name, file: FileReference { digest, size } };
        Ok(Vec::deserialize(from)?.into_iter().map(asset).collect())
    }
}

/// The length of a list, instead of the list itself.
pub(crate) fn count<T, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    list.len().serialize(serializer)
}

/// A time in UTC such as `2026-01-31T12:00:00Z`; null if it is not known.
#[expect(clippy::ref_option, reason = "serde calls it so")]
pub(crate) fn time<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(date).serialize(serializer)
}

/// A time in UTC such as `2026-01-31T12:00:00Z`, or a dash: a time before 1970 or after 9999 cannot be shown.
pub fn date(time: SystemTime) -> String {
    let mut text = String::new();
    if write!(text, "{}", humantime::format_rfc3339_seconds(time)).is_err() { "-".to_owned() } else { text }
}
