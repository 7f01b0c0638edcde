//! The table of a shard: name, dtype, shape and digest of every tensor, which is what its state digest is made of. As JSON
//! in `held.json` and in what a shard hands over to be committed.

use deltachain::tensor::{DescribedDtype, Digest, Dtype, StateDigests, TensorInfo};
use serde::{Deserialize, Serialize};

/// Tensors, ascending by name, and their digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Row>", into = "Vec<Row>")]
pub(crate) struct Table {
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) digests: StateDigests,
}

impl Table {
    /// Of the empty state.
    pub(crate) fn empty() -> Self {
        Self { tensors: Vec::new(), digests: StateDigests::from_tensors(&[], Vec::new()) }
    }
}

/// A tensor as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    dtype: DtypeDocument,
    shape: Vec<u64>,
    digest: String,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum DtypeDocument {
    /// Name of one that every reader knows.
    Known(String),
    /// Name, bits per element, bytes per lane, and width of the exponent field.
    Described(String, u8, u8, Option<u8>),
}

impl From<Dtype> for DtypeDocument {
    fn from(dtype: Dtype) -> Self {
        let name = dtype.name().to_owned();
        match dtype {
            Dtype::Described(own) => Self::Described(name, own.bits(), own.lane_bytes(), own.exponent_bits()),
            _ => Self::Known(name),
        }
    }
}

impl DtypeDocument {
    fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Known(name) => Dtype::from_name(name),
            Self::Described(name, bits, lane_bytes, exponent_bits) => {
                DescribedDtype::new(name, *bits, *lane_bytes, *exponent_bits).map(Dtype::Described)
            }
        }
    }
}

impl From<Table> for Vec<Row> {
    fn from(table: Table) -> Self {
        let rows = table.tensors.iter().zip(&table.digests.tensors).map(|(info, digest)| Row {
            name: info.name().to_owned(),
            dtype: info.dtype().into(),
            shape: info.shape().to_vec(),
            digest: digest.to_string(),
        });
        rows.collect()
    }
}

impl TryFrom<Vec<Row>> for Table {
    type Error = &'static str;

    fn try_from(rows: Vec<Row>) -> Result<Self, Self::Error> {
        let mut tensors = Vec::with_capacity(rows.len());
        let mut digests = Vec::with_capacity(rows.len());
        for row in rows {
            let dtype = row.dtype.dtype().ok_or("a tensor has an unknown dtype")?;
            tensors.push(TensorInfo::new(row.name, dtype, row.shape).ok_or("a tensor has an impossible shape")?);
            digests.push(Digest::from_hex(&row.digest).ok_or("a digest is none")?);
        }
        if !tensors.is_sorted_by(|left, right| left.name() < right.name()) {
            return Err("the tensors are not in ascending order");
        }
        let digests = StateDigests::from_tensors(&tensors, digests);
        Ok(Self { tensors, digests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let described = Dtype::Described(DescribedDtype::new("U7", 7, 1, Some(3)).unwrap());
        let tensor = |name: &str, dtype| TensorInfo::new(name, dtype, [8, 1]).unwrap();
        let tensors = vec![tensor("a\n\"", Dtype::BF16), tensor("b", described)];
        let digests = [b"a", b"b"].map(|data| Digest::of_bytes(data)).to_vec();
        Table { digests: StateDigests::from_tensors(&tensors, digests), tensors }
    }

    #[test]
    fn a_table_comes_back() {
        for table in [Table::empty(), table()] {
            let text = serde_json::to_string(&table).unwrap();
            assert_eq!(serde_json::from_str::<Table>(&text).unwrap(), table, "{text}");
        }
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let text = serde_json::to_string(&table()).unwrap();
        for (old, new) in [("BF16", "BF17"), ("[8,1]", "[3,1]"), ("U7", "u7"), ("\"b\"", "\"A\""), ("shape", "form")] {
            assert!(text.contains(old));
            assert!(serde_json::from_str::<Table>(&text.replace(old, new)).is_err(), "{new}");
        }
    }
}
