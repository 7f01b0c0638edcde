//! Two neighbouring versions of a model that was never trained, as safetensors files of any size.
//!
//! BF16 numbers as weights have them: sizes of all magnitudes below a limit, each power of two half as frequent as the
//! one above. The same calls write the same bytes everywhere.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::Result;

/// Lanes per row of every tensor.
const ROW_LANES: u64 = 1024;
/// Exponent field of the largest numbers: they are below 2^-3.
const TOP_EXPONENT: u16 = 123;

/// Which elements differ between the two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// About 1 %, small numbers more often than large ones, as a training step changes them.
    Sparse,
    /// All of them.
    Dense,
}

/// Writes two files with `mebibytes` of data each. Returns the part of the elements that differ.
pub(crate) fn write_pair(base: &Path, target: &Path, mebibytes: u64, change: Change) -> Result<f64> {
    let rows = mebibytes << 20 >> 11;
    let tensors = tensors(rows);
    let header = header(&tensors);
    let create = |path| Ok::<_, std::io::Error>(BufWriter::with_capacity(1 << 20, File::create(path)?));
    let (mut old_file, mut new_file) = (create(base)?, create(target)?);
    old_file.write_all(&header)?;
    new_file.write_all(&header)?;

    let mut random = fastrand::Rng::with_seed(0);
    let mut changed = 0_u64;
    let lanes = rows * ROW_LANES;
    for _ in 0..lanes {
        let bits = random.u64(..);
        let [b0, b1, b2, b3, b4, b5, b6, b7] = bits.to_le_bytes();
        // Half of the numbers get exponent 0 below the top, a quarter 1, and so on.
        let below = u16::from_le_bytes([b0, b1]).leading_zeros();
        let exponent = TOP_EXPONENT - u16::try_from(below)?;
        let old = u16::from(b2 & 0x80) << 8 | exponent << 7 | u16::from(b3 & 0x7F);
        let new = match change {
            // 0.2 % of the largest numbers, twice as many of each smaller size: together about 1 %.
            Change::Sparse if u32::from_le_bytes([b4, b5, b6, 0]) >= (1 << 15) << below.min(9) => old,
            Change::Sparse => {
                if b7 & 1 == 0 {
                    old + 1
                } else {
                    old - 1
                }
            }
            Change::Dense => old.wrapping_add(u16::from(b7 % 7) + 1),
        };
        changed += u64::from(old != new);
        old_file.write_all(&old.to_le_bytes())?;
        new_file.write_all(&new.to_le_bytes())?;
    }
    old_file.into_inner()?.sync_all()?;
    new_file.into_inner()?.sync_all()?;
    let parts_per_million = u32::try_from(changed * 1_000_000 / lanes.max(1))?;
    Ok(f64::from(parts_per_million) / 1e6)
}

/// Names and rows of the tensors, in the order of their names: one of more than half of the model, a few large ones,
/// and many small ones.
fn tensors(rows: u64) -> Vec<(String, u64)> {
    let mut tensors = vec![("embedding".to_owned(), rows / 8 * 5)];
    tensors.extend((0..4).map(|layer| (format!("layer.{layer}"), rows / 16)));
    tensors.extend((0..63).map(|norm| (format!("norm.{norm:02}"), rows / 512)));
    let used: u64 = tensors.iter().map(|(_, rows)| rows).sum();
    tensors.push(("output".to_owned(), rows - used));
    tensors
}

/// The header of a safetensors file that holds these tensors.
fn header(tensors: &[(String, u64)]) -> Vec<u8> {
    let mut end = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, rows)| {
            let start = end;
            end += rows * ROW_LANES * 2;
            format!(r#""{name}":{{"dtype":"BF16","shape":[{rows},{ROW_LANES}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let mut json = format!("{{{}}}", entries.join(",")).into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes(), json.as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_size_and_the_changes_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (base, target) = (folder.path().join("base"), folder.path().join("target"));
        let sparse = write_pair(&base, &target, 2, Change::Sparse).unwrap();
        assert!((0.008..0.015).contains(&sparse), "{sparse}");
        let header = header(&tensors(1024)).len() as u64;
        assert_eq!(base.metadata().unwrap().len(), header + (2 << 20));
        assert_eq!(target.metadata().unwrap().len(), header + (2 << 20));
        let dense = write_pair(&base, &target, 1, Change::Dense).unwrap();
        assert!(dense > 0.999, "{dense}");
    }

    #[test]
    fn one_tensor_is_larger_than_all_others_together() {
        for rows in [512, 1000, 1 << 20] {
            let tensors = tensors(rows);
            assert_eq!(tensors.iter().map(|(_, rows)| rows).sum::<u64>(), rows);
            assert!(2 * tensors[0].1 > rows);
            assert!(tensors.is_sorted());
        }
    }
}
