//! Digests and keys as text in JSON. Modules for serde's `with`.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

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
