//! An intermediate state in a temporary file: any state, even one that safetensors files cannot
//! hold.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::disk::{read_at, reading, write_at, writing};
use crate::tensor::{State, StateWriter, TensorInfo};

/// Creates a state with room for these tensors, ascending by name, in a temporary file in this
/// directory. The file has no name, and disappears when the state is dropped. It is for states
/// between two links, which may have tensors that safetensors files cannot hold (SPEC section 12).
///
/// # Errors
/// USAGE if the tensors are not in ascending order or too large; IO if the file cannot be created.
pub fn scratch_state(
    directory: &Path,
    tensors: &[TensorInfo],
) -> Result<impl State + StateWriter + use<>> {
    if !tensors.is_sorted_by(|left, right| left.name() < right.name()) {
        return Err(Error::usage(
            "the tensors are not in the order of their names",
        ));
    }
    let mut offsets = Vec::with_capacity(tensors.len());
    let mut end = 0_u64;
    for info in tensors {
        offsets.push(end);
        end = end
            .checked_add(info.bytes())
            .ok_or_else(|| Error::usage("the state is too large"))?;
    }
    let file = tempfile::tempfile_in(directory).map_err(|error| writing(error, directory))?;
    // The file reads as zeros where nothing has been written.
    file.set_len(end)
        .map_err(|error| writing(error, directory))?;
    Ok(ScratchState {
        file,
        directory: directory.to_owned(),
        tensors: tensors.to_vec(),
        offsets,
    })
}

#[derive(Debug)]
struct ScratchState {
    file: File,
    directory: PathBuf,
    tensors: Vec<TensorInfo>,
    /// Offset of each tensor's data in the file.
    offsets: Vec<u64>,
}

impl ScratchState {
    /// Offset in the file of some bytes of a tensor.
    fn place(&self, tensor: usize, offset: u64, length: usize) -> Result<u64> {
        let fits = |info: &&TensorInfo| {
            offset
                .checked_add(length as u64)
                .is_some_and(|end| end <= info.bytes())
        };
        let there = self
            .tensors
            .get(tensor)
            .filter(fits)
            .map(|_| self.offsets[tensor] + offset);
        there.ok_or_else(|| Error::usage("no such range in the state"))
    }
}

impl State for ScratchState {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let place = self.place(tensor, offset, out.len())?;
        read_at(&self.file, out, place).map_err(|error| reading(error, &self.directory))
    }
}

impl StateWriter for ScratchState {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let place = self.place(tensor, offset, bytes.len())?;
        write_at(&self.file, bytes, place).map_err(|error| writing(error, &self.directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;
    use crate::tensor::{DescribedDtype, Dtype, MemoryState};

    #[test]
    fn any_state_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let described = Dtype::Described(DescribedDtype::new("U24", 24, 1, None).unwrap());
        let infos = [
            TensorInfo::new("__metadata__", Dtype::U8, [3]).unwrap(),
            TensorInfo::new("a", described, [2]).unwrap(),
            TensorInfo::new("b", Dtype::F32, [0]).unwrap(),
        ];
        let scratch = scratch_state(folder.path(), &infos).unwrap();
        scratch.write(1, 1, &[1, 2, 3]).unwrap();
        scratch.write(0, 2, &[9]).unwrap();
        let copy = MemoryState::copy_of(&scratch).unwrap();
        assert!(
            copy.iter()
                .map(|(_, data)| data)
                .eq([&[0, 0, 9][..], &[0, 1, 2, 3, 0, 0], &[]])
        );
        for (tensor, offset) in [(0, 3), (1, 6), (2, 0), (3, 0), (0, u64::MAX)] {
            let errors = [
                scratch.read(tensor, offset, &mut [0]),
                scratch.write(tensor, offset, &[0]),
            ];
            assert!(
                errors
                    .map(Result::unwrap_err)
                    .iter()
                    .all(|error| error.class() == ErrorClass::Usage)
            );
        }
        let unsorted = scratch_state(folder.path(), &[infos[1].clone(), infos[0].clone()]);
        assert_eq!(unsorted.err().unwrap().class(), ErrorClass::Usage);
        let nowhere = scratch_state(&folder.path().join("missing"), &infos);
        assert_eq!(nowhere.err().unwrap().class(), ErrorClass::Io);
    }
}
