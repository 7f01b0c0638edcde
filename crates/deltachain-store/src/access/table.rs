//! The table of a shard as JSON, in `held.json` and in what a shard hands over to be committed. A
//! module for serde's `with`.

use deltachain::StateTable;
use deltachain::tensor::{DescribedDtype, Digest, Dtype, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

/// A tensor.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TableRow {
    name: String,
    dtype: DtypeDocument,
    shape: Vec<u64>,
    digest: Digest,
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum DtypeDocument {
    /// Name of one that every reader knows.
    Known(String),
    /// Name, bits per element, bytes per lane, and width of the exponent field if there is one.
    Described(String, u64, usize, Option<u32>),
}

impl DtypeDocument {
    fn of(dtype: Dtype) -> Self {
        let name = dtype.name().to_owned();
        if let Dtype::Described(_) = dtype {
            Self::Described(
                name,
                dtype.bits(),
                dtype.lane_bytes(),
                dtype.exponent_bits(),
            )
        } else {
            Self::Known(name)
        }
    }

    fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Known(name) => Dtype::from_name(name),
            Self::Described(name, bits, lane_bytes, exponent_bits) => {
                let exponent_bits = exponent_bits.map(u8::try_from).transpose().ok()?;
                let (bits, lane_bytes) = ((*bits).try_into().ok()?, (*lane_bytes).try_into().ok()?);
                DescribedDtype::new(name, bits, lane_bytes, exponent_bits).map(Dtype::Described)
            }
        }
    }
}

pub(crate) fn serialize<S: Serializer>(
    table: &StateTable,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let rows = table
        .tensors
        .iter()
        .zip(&table.digests.tensors)
        .map(|(info, digest)| TableRow {
            name: info.name().to_owned(),
            dtype: DtypeDocument::of(info.dtype()),
            shape: info.shape().to_vec(),
            digest: *digest,
        });
    rows.collect::<Vec<_>>().serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<StateTable, D::Error> {
    let mut tensors = Vec::new();
    let mut digests = Vec::new();
    for row in Vec::<TableRow>::deserialize(deserializer)? {
        let dtype = row
            .dtype
            .dtype()
            .ok_or_else(|| D::Error::custom("a tensor has an unknown dtype"))?;
        let info = TensorInfo::new(row.name, dtype, row.shape);
        tensors.push(info.ok_or_else(|| D::Error::custom("a tensor has an impossible shape"))?);
        digests.push(row.digest);
    }
    if tensors.is_sorted_by(|left, right| left.name() < right.name()) {
        Ok(StateTable::new(tensors, digests))
    } else {
        Err(D::Error::custom("the tensors are not in ascending order"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Document(#[serde(with = "super")] StateTable);

    fn table() -> Document {
        let described = Dtype::Described(DescribedDtype::new("U7", 7, 1, Some(3)).unwrap());
        let tensor = |name: &str, dtype| TensorInfo::new(name, dtype, [8, 1]).unwrap();
        let digests = [&b"a"[..], b"b"].map(Digest::of_bytes).to_vec();
        Document(StateTable::new(
            vec![tensor("a\n\"", Dtype::BF16), tensor("b", described)],
            digests,
        ))
    }

    #[test]
    fn a_table_comes_back() {
        for table in [Document(StateTable::new(Vec::new(), Vec::new())), table()] {
            let text = serde_json::to_string(&table).unwrap();
            assert_eq!(
                serde_json::from_str::<Document>(&text).unwrap(),
                table,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let text = serde_json::to_string(&table()).unwrap();
        let others = [
            ("BF16", "BF17"),
            ("[8,1]", "[3,1]"),
            ("U7", "u7"),
            ("7,1,3", "7,1,300"),
            ("\"b\"", "\"A\""),
            ("shape", "form"),
        ];
        for (old, new) in others {
            assert!(text.contains(old), "{old} in {text}");
            assert!(
                serde_json::from_str::<Document>(&text.replace(old, new)).is_err(),
                "{new}"
            );
        }
    }
}
