//! States given by rule: a JSON text that describes a large safetensors file.

use std::fs;
use std::path::Path;

use deltachain::files::{Layout, StagedSafetensors};
use deltachain::tensor::{Dtype, StateWriter, TensorInfo};
use serde::Deserialize;

use crate::problem::{Problem, Result};

/// Number of bytes that are made and written at once.
const CHUNK: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateByRule {
    tensors: Vec<TensorByRule>,
}

/// Byte i of the data is `(i * multiply + add) mod modulus`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorByRule {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    multiply: u64,
    add: u64,
    modulus: u64,
}

/// Makes the safetensors file `out` from the JSON text `rules`.
pub(crate) fn make(rules: &Path, out: &Path) -> Result {
    let text = fs::read_to_string(rules).map_err(Problem::with_file(rules))?;
    let mut state: StateByRule = serde_json::from_str(&text).map_err(Problem::with_file(rules))?;
    state
        .tensors
        .sort_by(|left, right| left.name.cmp(&right.name));
    let infos = state
        .tensors
        .iter()
        .map(TensorByRule::info)
        .collect::<Result<Vec<_>, _>>();
    let infos = infos.map_err(Problem::with_file(rules))?;
    let staged = StagedSafetensors::create(out, &infos, &Layout::single_file(&infos), None, false)?;
    for (number, (tensor, info)) in state.tensors.iter().zip(&infos).enumerate() {
        let mut next = u128::from(tensor.add) % u128::from(tensor.modulus);
        for start in (0..info.bytes()).step_by(1 << 20) {
            let bytes: Vec<u8> = (start..info.bytes().min(start + CHUNK))
                .map(|_| {
                    // `next` is less than the modulus, which is at most 256.
                    let byte = u8::try_from(next).unwrap_or_default();
                    next = (next + u128::from(tensor.multiply)) % u128::from(tensor.modulus);
                    byte
                })
                .collect();
            staged.write(number, start, &bytes)?;
        }
    }
    staged.commit()?;
    Ok(())
}

impl TensorByRule {
    fn info(&self) -> Result<TensorInfo, String> {
        if !(1..=256).contains(&self.modulus) {
            return Err(format!("the modulus {} does not give bytes", self.modulus));
        }
        Dtype::from_name(&self.dtype)
            .and_then(|dtype| TensorInfo::new(self.name.as_str(), dtype, self.shape.as_slice()))
            .ok_or_else(|| format!("{} {:?} is not a tensor", self.dtype, self.shape))
    }
}

#[cfg(test)]
mod tests {
    use deltachain::files::SafetensorsState;
    use deltachain::tensor::MemoryState;

    use super::*;

    #[test]
    fn bytes_follow_the_rule_beyond_a_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let (rules, out) = (
            folder.path().join("a.json"),
            folder.path().join("a.safetensors"),
        );
        let length = CHUNK + 3;
        let text = format!(
            r#"{{"tensors":[{{"name":"t","dtype":"U8","shape":[{length}],"multiply":7,"add":3,"modulus":251}},
                {{"name":"s","dtype":"F32","shape":[],"multiply":{},"add":0,"modulus":256}}]}}"#,
            u64::MAX
        );
        fs::write(&rules, text).unwrap();
        make(&rules, &out).unwrap();
        let made = MemoryState::copy_of(&SafetensorsState::open(&out).unwrap()).unwrap();
        let expected: Vec<u8> = (0..length)
            .map(|i| u8::try_from((i * 7 + 3) % 251).unwrap())
            .collect();
        assert!(made.get("t").unwrap().1 == expected);
        assert_eq!(made.get("s").unwrap().1, [0, 255, 254, 253]);
    }

    #[test]
    fn rules_that_give_no_bytes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("a.json");
        for (dtype, modulus) in [("U8", 257), ("U8", 0), ("U9", 5)] {
            let tensor = r#""name":"t","shape":[1],"multiply":7,"add":3"#;
            let text =
                format!(r#"{{"tensors":[{{{tensor},"dtype":"{dtype}","modulus":{modulus}}}]}}"#);
            fs::write(&rules, text).unwrap();
            assert!(make(&rules, &folder.path().join("out")).is_err());
        }
    }
}
