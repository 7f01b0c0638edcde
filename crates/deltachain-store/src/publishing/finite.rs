//! Counts values that are not finite (NaN and infinities) while they are read for other work.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use deltachain::tensor::{Dtype, State, TensorInfo, find};
use deltachain::{Error, Result};

use crate::assets::other_files::list_of;

/// Maximum number of tensors in a message.
const NAMED: usize = 5;

/// Bytes that are read at a time; a multiple of the width of each dtype.
const AT_ONCE: usize = 1 << 20;

/// A state that counts its values that are not finite when they are read.
pub(crate) struct CountingState<'a> {
    state: &'a dyn State,
    /// Counts by tensor and offset, so that bytes that are read again are not counted again.
    found: Mutex<BTreeMap<(usize, u64), u64>>,
}

impl<'a> CountingState<'a> {
    pub(crate) fn new(state: &'a dyn State) -> Self {
        Self {
            state,
            found: Mutex::default(),
        }
    }

    /// # Errors
    /// USAGE if values that have been read are not finite.
    pub(crate) fn check(&self) -> Result<()> {
        let counts = self.counts();
        if counts.is_empty() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "values are not finite (NaN or infinite): {}; nothing was published",
            self.list(&counts)
        )))
    }

    /// Lists the tensors with values that are not finite, with the number of these values, except
    /// tensors that already had such values in the state before. That state is not read if all
    /// values are finite.
    ///
    /// # Errors
    /// Same errors as reading the state before.
    pub(crate) fn new_since(&self, before: Option<&dyn State>) -> Result<Option<String>> {
        let mut counts = self.counts();
        if let Some(before) = before {
            let mut new = BTreeMap::new();
            for (tensor, count) in counts {
                if !has_nonfinite(before, self.name(tensor))? {
                    new.insert(tensor, count);
                }
            }
            counts = new;
        }
        Ok((!counts.is_empty()).then(|| self.list(&counts)))
    }

    /// Counts the values that are not finite, by the number of their tensor.
    fn counts(&self) -> BTreeMap<usize, u64> {
        let mut counts = BTreeMap::new();
        for (&(tensor, _), count) in &*self.found.lock().unwrap_or_else(PoisonError::into_inner) {
            *counts.entry(tensor).or_insert(0) += count;
        }
        counts
    }

    fn name(&self, tensor: usize) -> &str {
        let info = self.state.tensors().get(tensor);
        info.map_or("", TensorInfo::name)
    }

    fn list(&self, counts: &BTreeMap<usize, u64>) -> String {
        let named = counts
            .iter()
            .map(|(&tensor, count)| format!("{:?} ({count})", self.name(tensor)));
        list_of(&named.collect::<Vec<_>>(), NAMED)
    }
}

impl State for CountingState<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        self.state.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.state.read(tensor, offset, out)?;
        let count = self
            .tensors()
            .get(tensor)
            .map_or(0, |info| not_finite(info.dtype(), out));
        if count > 0 {
            self.found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert((tensor, offset), count);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.state.check_unchanged()
    }
}

/// True if the tensor of this name has a NaN or an infinity.
fn has_nonfinite(state: &dyn State, name: &str) -> Result<bool> {
    let Some(number) = find(state.tensors(), name) else {
        return Ok(false);
    };
    let info = &state.tensors()[number];
    let mut buffer = vec![0; AT_ONCE];
    let mut offset = 0;
    while offset < info.bytes() {
        let left = usize::try_from(info.bytes() - offset).unwrap_or(AT_ONCE);
        let piece = &mut buffer[..left.min(AT_ONCE)];
        state.read(number, offset, piece)?;
        if not_finite(info.dtype(), piece) > 0 {
            return Ok(true);
        }
        offset += piece.len() as u64;
    }
    Ok(false)
}

/// Number of these values that are not finite; 0 for described dtypes, where this is unknown.
fn not_finite(dtype: Dtype, bytes: &[u8]) -> u64 {
    fn count<const WIDTH: usize>(bytes: &[u8], is_not: impl Fn([u8; WIDTH]) -> bool) -> u64 {
        let values = bytes.as_chunks().0;
        // There are nearly always none. Without a branch, many values are compared at a time.
        let has_some = values
            .iter()
            .fold(false, |has_some, value| has_some | is_not(*value));
        if !has_some {
            return 0;
        }
        values.iter().map(|value| u64::from(is_not(*value))).sum()
    }
    match dtype {
        Dtype::BF16 => count(bytes, |value| u16::from_le_bytes(value) & 0x7F80 == 0x7F80),
        Dtype::F16 => count(bytes, |value| u16::from_le_bytes(value) & 0x7C00 == 0x7C00),
        Dtype::F32 | Dtype::C64 => count(bytes, |value| !f32::from_le_bytes(value).is_finite()),
        Dtype::F64 => count(bytes, |value| !f64::from_le_bytes(value).is_finite()),
        Dtype::F8_E5M2 => count(bytes, |[value]| value & 0x7C == 0x7C),
        Dtype::F8_E4M3 => count(bytes, |[value]| value & 0x7F == 0x7F),
        Dtype::F8_E8M0 => count(bytes, |[value]| value == 0xFF),
        Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ => count(bytes, |[value]| value == 0x80),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use deltachain::tensor::MemoryState;

    use super::*;

    #[test]
    fn what_is_not_finite_is_counted_once() {
        let mut state = MemoryState::new();
        let mut insert = |name: &str, dtype, bytes: &[u8], width: usize| {
            state
                .insert(name, dtype, &[(bytes.len() / width) as u64], bytes.to_vec())
                .unwrap();
        };
        let f32s: Vec<u8> = [1.0, f32::NAN, f32::NEG_INFINITY, f32::MAX]
            .iter()
            .flat_map(|one| one.to_le_bytes())
            .collect();
        insert("a", Dtype::BF16, &[0x80, 0x7F, 0x7F, 0x7F, 0xC0, 0xFF], 2);
        insert("b", Dtype::F16, &[0x00, 0x7C, 0xFF, 0x7B], 2);
        insert("c", Dtype::F32, &f32s, 4);
        insert("d", Dtype::F8_E5M2, &[0x7B, 0x7C, 0xFF], 1);
        insert("e", Dtype::F8_E4M3, &[0x7E, 0x7F, 0xFF], 1);
        insert("f", Dtype::F8_E4M3FNUZ, &[0x7F, 0x80, 0xFF], 1);
        insert("g", Dtype::F8_E8M0, &[0xFE, 0xFF], 1);
        insert("h", Dtype::I32, &[0xFF; 4], 4);
        let counting = CountingState::new(&state);
        counting.check().unwrap();
        for _ in 0..2 {
            for (number, info) in state.tensors().iter().enumerate() {
                counting
                    .read(
                        number,
                        0,
                        &mut vec![0; usize::try_from(info.bytes()).unwrap()],
                    )
                    .unwrap();
            }
        }
        // The state before has such values in all of these tensors; then in all but "a".
        assert_eq!(counting.new_since(Some(&state)).unwrap(), None);
        let mut before = MemoryState::new();
        for info in state.tensors() {
            let number = find(state.tensors(), info.name()).unwrap();
            let mut data = vec![0; usize::try_from(info.bytes()).unwrap()];
            if info.name() != "a" {
                state.read(number, 0, &mut data).unwrap();
            }
            before
                .insert(info.name(), info.dtype(), info.shape(), data)
                .unwrap();
        }
        let new = counting.new_since(Some(&before)).unwrap();
        assert_eq!(new.as_deref(), Some(r#""a" (2)"#));
        let told = counting.check().unwrap_err().to_string();
        assert!(
            told.contains(r#""a" (2), "b" (1), "c" (2), "d" (2), "e" (2) and 2 more; nothing"#),
            "{told}"
        );
    }
}
