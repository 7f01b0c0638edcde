//! The header of one safetensors file: parsed from untrusted bytes, and built as the safetensors
//! crate builds it.
//!
//! The bytes of a parsed header are kept, so that a file with the same tensors can be written with
//! that very header.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use safetensors::tensor::{Metadata, TensorInfo as Declared};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::json::printable;
use crate::tensor::{Dtype, TensorInfo};

/// Bytes of the little-endian header length that opens the file.
pub(super) const LENGTH_BYTES: usize = 8;

/// Maximum bytes of the JSON in a header of safetensors.
pub(super) const MAX_HEADER_BYTES: u64 = 100_000_000;

const METADATA_NAME: &str = "__metadata__";

/// A checked header: its bytes and their content.
#[derive(Debug, Clone)]
pub(super) struct FileHeader {
    /// The 8 length bytes and the JSON, as in the file.
    pub(super) bytes: Vec<u8>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    /// Tensors by ascending name, each with the offset of its data in the file.
    pub(super) tensors: Vec<(TensorInfo, u64)>,
    /// Length of header and data together.
    pub(super) file_bytes: u64,
}

impl FileHeader {
    /// Reads a header from its bytes, which include the length. The error says what is wrong with
    /// it.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes.get(LENGTH_BYTES..).unwrap_or_default())
            .map_err(|error| format!("the header is not UTF-8: {error}"))?;
        let json: HeaderJson = serde_json::from_str(text)
            .map_err(|error| format!("bad header: {}", printable(&error)))?;
        let mut declared: Vec<(String, Declared)> = json.tensors.into_iter().collect();
        declared.sort_by_key(|(_, tensor)| tensor.data_offsets);
        // This checks that sizes fit shapes, and that the data of the tensors follow each other
        // without holes.
        let declared = Metadata::new(None, declared)
            .map_err(|error| format!("bad header: {}", printable(&error)))?;

        let start = bytes.len() as u64;
        let by_name: BTreeMap<String, &Declared> = declared.tensors().into_iter().collect();
        let mut tensors = Vec::with_capacity(by_name.len());
        for (name, tensor) in by_name {
            let dtype = tensor.dtype.to_string();
            let shape: Vec<u64> = tensor
                .shape
                .iter()
                .map(|&dimension| dimension as u64)
                .collect();
            let info = Dtype::from_name(&dtype)
                .and_then(|dtype| TensorInfo::new(name.as_str(), dtype, shape))
                .ok_or_else(|| format!("tensor {name:?} of type {dtype} is not supported"))?;
            let offset = start
                .checked_add(tensor.data_offsets.0 as u64)
                .ok_or("the data is too long")?;
            tensors.push((info, offset));
        }
        let file_bytes = start
            .checked_add(declared.data_len() as u64)
            .ok_or("the data is too long")?;
        Ok(Self {
            bytes,
            metadata: json.metadata,
            tensors,
            file_bytes,
        })
    }

    /// Builds the header that the safetensors crate would write: widest dtypes first, then by name.
    pub(super) fn build(
        metadata: Option<&BTreeMap<String, String>>,
        tensors: &[&TensorInfo],
    ) -> Result<Self, String> {
        if tensors.iter().any(|info| info.name() == METADATA_NAME) {
            return Err(format!(
                "safetensors files cannot hold a tensor named {METADATA_NAME}"
            ));
        }
        if let Some(info) = tensors
            .iter()
            .find(|info| matches!(info.dtype(), Dtype::Described(_)))
        {
            return Err(format!(
                "safetensors files cannot hold the dtype {} of tensor {:?}",
                info.dtype(),
                info.name()
            ));
        }
        let mut order = tensors.to_vec();
        order.sort_by(|left, right| {
            right
                .dtype()
                .cmp(&left.dtype())
                .then_with(|| left.name().cmp(right.name()))
        });
        let mut end = 0_u64;
        let mut placed = Vec::with_capacity(order.len());
        for info in order {
            let start = end;
            end = start
                .checked_add(info.bytes())
                .ok_or("the data is too long")?;
            placed.push((info, [start, end]));
        }
        let mut json = serde_json::to_vec(&NewHeader {
            metadata,
            tensors: &placed,
        })
        .map_err(|e| e.to_string())?;
        json.resize(json.len().next_multiple_of(LENGTH_BYTES), b' ');
        let length = json.len() as u64;
        if length > MAX_HEADER_BYTES {
            return Err(format!(
                "a safetensors header is at most {MAX_HEADER_BYTES} bytes long, this needs {length}"
            ));
        }
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.append(&mut json);
        // Reading the header back finds shapes that safetensors cannot express, although this
        // library can.
        Self::parse(bytes)
    }

    /// Whether this is a header for a file with these tensors (ascending by name) and this
    /// `__metadata__`.
    pub(super) fn describes(
        &self,
        metadata: Option<&BTreeMap<String, String>>,
        tensors: &[&TensorInfo],
    ) -> bool {
        self.metadata.as_ref() == metadata
            && self
                .tensors
                .iter()
                .map(|(info, _)| info)
                .eq(tensors.iter().copied())
    }
}

/// The content of the header's JSON, in which each name appears once. In the safetensors crate, the
/// last of two equal names wins.
struct HeaderJson {
    metadata: Option<BTreeMap<String, String>>,
    tensors: BTreeMap<String, Declared>,
}

impl<'de> Deserialize<'de> for HeaderJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = HeaderJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderJson, A::Error> {
                let mut metadata: Option<Option<UniqueStrings>> = None;
                let mut tensors = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA_NAME {
                        if metadata.replace(map.next_value()?).is_some() {
                            return Err(twice(&name));
                        }
                    } else {
                        insert_once(&mut tensors, name, map.next_value()?)?;
                    }
                }
                Ok(HeaderJson {
                    metadata: metadata.flatten().map(|strings| strings.0),
                    tensors,
                })
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// A JSON object of strings that refuses a key that appears twice.
pub(super) struct UniqueStrings(pub(super) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringsVisitor;

        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = UniqueStrings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueStrings, A::Error> {
                let mut strings = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    insert_once(&mut strings, key, value)?;
                }
                Ok(UniqueStrings(strings))
            }
        }

        deserializer.deserialize_map(StringsVisitor)
    }
}

fn insert_once<V, E: serde::de::Error>(
    map: &mut BTreeMap<String, V>,
    key: String,
    value: V,
) -> Result<(), E> {
    match map.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
        Entry::Occupied(entry) => Err(twice(entry.key())),
    }
}

fn twice<E: serde::de::Error>(name: &str) -> E {
    E::custom(format_args!("duplicate name {name:?}"))
}

/// A header to be written: `__metadata__` first, then the tensors in the order of their data.
struct NewHeader<'a> {
    metadata: Option<&'a BTreeMap<String, String>>,
    tensors: &'a [(&'a TensorInfo, [u64; 2])],
}

impl Serialize for NewHeader<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Entry<'a> {
            dtype: &'a str,
            shape: &'a [u64],
            data_offsets: [u64; 2],
        }

        let mut map = serializer.serialize_map(None)?;
        if let Some(metadata) = self.metadata {
            map.serialize_entry(METADATA_NAME, metadata)?;
        }
        for (info, data_offsets) in self.tensors {
            let dtype = info.dtype();
            let entry = Entry {
                dtype: dtype.name(),
                shape: info.shape(),
                data_offsets: *data_offsets,
            };
            map.serialize_entry(info.name(), &entry)?;
        }
        map.end()
    }
}

/// A safetensors file with this header text and data, whether legal or not.
#[cfg(test)]
pub(super) fn file_of(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DescribedDtype;

    fn refusal(json: &str) -> String {
        FileHeader::parse(file_of(json, &[])).unwrap_err()
    }

    #[test]
    fn built_headers_are_those_of_the_safetensors_crate() {
        use safetensors::tensor::TensorView;

        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let mut infos = Vec::new();
        for dtype in Dtype::all() {
            infos.push(TensorInfo::new(format!("{dtype} b"), dtype, [4, 2]).unwrap());
            infos.push(TensorInfo::new(format!("{dtype} a"), dtype, [0]).unwrap());
        }
        infos.push(TensorInfo::new("Gewicht \u{1F9EE}\n\0\"", Dtype::BF16, []).unwrap());
        infos.sort_by(|left, right| left.name().cmp(right.name()));
        let built = FileHeader::build(Some(&metadata), &infos.iter().collect::<Vec<_>>()).unwrap();

        let data = [0; 64];
        let views = infos.iter().map(|info| {
            let dtype: safetensors::Dtype =
                serde_json::from_str(&format!("\"{}\"", info.dtype())).unwrap();
            let shape = info
                .shape()
                .iter()
                .map(|&dimension| usize::try_from(dimension).unwrap())
                .collect();
            let bytes = &data[..usize::try_from(info.bytes()).unwrap()];
            (info.name(), TensorView::new(dtype, shape, bytes).unwrap())
        });
        let theirs =
            safetensors::serialize(views, Some(metadata.clone().into_iter().collect())).unwrap();
        assert_eq!(built.file_bytes, theirs.len() as u64);
        assert_eq!(built.bytes, theirs[..built.bytes.len()]);
        assert!(built.describes(Some(&metadata), &infos.iter().collect::<Vec<_>>()));
        assert!(!built.describes(None, &infos.iter().collect::<Vec<_>>()));
        assert!(!built.describes(Some(&metadata), &infos[1..].iter().collect::<Vec<_>>()));
    }

    #[test]
    fn names_that_appear_twice_are_refused() {
        let tensor = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        for json in [
            format!(r#"{{"a":{tensor},"a":{tensor}}}"#),
            format!(r#"{{"a":{tensor},"\u0061":{tensor}}}"#),
            r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(),
            r#"{"__metadata__":null,"__metadata__":{}}"#.to_owned(),
            r#"{"__metadata__":{"k":"1","\u006b":"2"}}"#.to_owned(),
        ] {
            assert!(
                refusal(&json).contains("duplicate name"),
                "{json}: {}",
                refusal(&json)
            );
        }
        let twice_inside = r#"{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
        assert!(
            refusal(twice_inside).contains("duplicate field"),
            "{}",
            refusal(twice_inside)
        );
    }

    #[test]
    fn headers_that_do_not_add_up_are_refused() {
        for json in [
            "",
            "[]",
            "{}x",
            "{",
            r#"{"a":1}"#,
            r#"{"__metadata__":{"k":1}}"#,
            r#"{"a":{"dtype":"F3","shape":[1],"data_offsets":[0,1]}}"#,
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}}"#,
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}"#,
            r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#,
            r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#,
            r#"{"a":{"dtype":"U8","shape":[18446744073709551615,18446744073709551615],"data_offsets":[0,1]}}"#,
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#,
        ] {
            assert!(!refusal(json).is_empty(), "{json}");
        }
        let not_utf8 = [&[1, 0, 0, 0, 0, 0, 0, 0][..], b"\xFF"].concat();
        assert!(
            FileHeader::parse(not_utf8)
                .unwrap_err()
                .contains("not UTF-8")
        );
    }

    #[test]
    fn refusals_carry_no_control_characters() {
        let text =
            refusal("{\"a\":{\"dtype\":\"\\u001b[2J\",\"shape\":[],\"data_offsets\":[0,1]}}");
        assert!(!text.contains(char::is_control), "{text:?}");
        assert!(text.contains("[2J"), "{text:?}");
    }

    #[test]
    fn what_safetensors_cannot_hold_is_not_built() {
        let reserved = TensorInfo::new("__metadata__", Dtype::U8, []).unwrap();
        assert!(
            FileHeader::build(None, &[&reserved])
                .unwrap_err()
                .contains("named __metadata__")
        );
        let described = Dtype::Described(DescribedDtype::new("U7", 7, 1, None).unwrap());
        let described = TensorInfo::new("t", described, [8]).unwrap();
        assert!(
            FileHeader::build(None, &[&described])
                .unwrap_err()
                .contains("dtype U7")
        );
        let overflowing = TensorInfo::new("t", Dtype::U8, [u64::MAX, 2, 0]).unwrap();
        assert!(FileHeader::build(None, &[&overflowing]).is_err());
    }
}
