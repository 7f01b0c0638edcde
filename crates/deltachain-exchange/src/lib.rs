//! Reads and writes the weight deltas of other systems: ARC 1 and 2 of Fireworks, the directories
//! of slime, PULSEPT1 of basilica, and the patches of TRL. [docs/exchange.md] says which systems
//! read what, and what each layout can carry.
//!
//! Each layout has one file, with its reader next to its writer. A [`Reader`] turns a base into the
//! target of a foreign delta; a [`Writer`] makes a foreign delta from two states. Neither uses
//! links: [`deltachain::diff()`] compares the states that were read, and [`deltachain::Replay`]
//! builds the states to be written.
//!
//! Foreign files are untrusted. Readers allocate at most a few times the file's length and, per
//! thread, a few times the longest tensor of the base. Pickled data is always refused.
//!
//! ```
//! use deltachain::tensor::{Dtype, MemoryState};
//! use deltachain_exchange::{Reader, Step, Writer, pulsept1};
//!
//! # fn main() -> deltachain::Result<()> {
//! let (mut base, mut target) = (MemoryState::new(), MemoryState::new());
//! base.insert("weight", Dtype::BF16, &[2], vec![0x80, 0x3f, 0, 0])?;
//! target.insert("weight", Dtype::BF16, &[2], vec![0x80, 0x3f, 0, 0x80])?; // the second element is now -0
//!
//! let folder = tempfile::tempdir().unwrap();
//! let writer = Writer::Pulsept1(pulsept1::Version::V3);
//! let written = writer.write(&base, &target, &Step::new(1), folder.path(), &())?;
//!
//! let mut result = MemoryState::copy_of(&base)?;
//! Reader::Pulsept1.apply(&written.path, &base, &result.writer(), &())?;
//! assert_eq!(result, target);
//! # Ok(())
//! # }
//! ```
//!
//! The feature `program` adds the program `deltachain-exchange` and its dependencies.
//!
//! [docs/exchange.md]: https://docs.rs/crate/deltachain/latest

#![forbid(unsafe_code)]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::panic,
        clippy::dbg_macro,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

pub mod arc2;
mod checksum;
mod compressed;
mod container;
pub mod pulsept1;
mod refusal;
mod rice;
pub mod slime;
mod step;
mod tensors;
pub mod trl;

use std::path::Path;

use deltachain::tensor::{State, StateWriter};
use deltachain::{Progress, Result, StateTable};

pub use step::{Export, Import, Step};

/// A layout that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// [`arc2`]: a file, or a directory of files; versions 1 and 2.
    Arc2,
    /// [`slime`]: a directory.
    Slime,
    /// [`pulsept1`]: a file; versions 1 to 3.
    Pulsept1,
    /// [`trl`]: a file; the first form and the later one.
    Trl,
}

impl Reader {
    /// Applies the foreign delta at `delta` to `base`, checks everything that its checksums allow,
    /// and writes every tensor of the result to `out`. `out` was created for the tensors of `base`,
    /// because these layouts do not add, remove or reshape tensors. The content of `out` must not
    /// be used unless this function has returned without an error. Reports all bytes of the base to
    /// `progress`, once.
    ///
    /// Memory: a few times the delta's length, and per thread a few times the longest tensor.
    ///
    /// # Errors
    /// Errors name the file, and the tensor if there is one: `CORRUPT` or `MALFORMED` if the delta
    /// does not follow its layout, `UNSUPPORTED` for pickled data and for codings that only a GPU
    /// can decode, `WRONG_BASE` if the delta cannot have been made from this base, `STATE_MISMATCH`
    /// if a checksum of the result differs; USAGE, IO.
    pub fn apply(
        self,
        delta: &Path,
        base: &dyn State,
        out: &dyn StateWriter,
        progress: &dyn Progress,
    ) -> Result<Import> {
        let applied = match self {
            Self::Arc2 => arc2::apply(delta, base, out, progress),
            Self::Slime => slime::apply(delta, base, out, progress),
            Self::Pulsept1 => pulsept1::apply(delta, base, out, progress),
            Self::Trl => trl::apply(delta, base, out, progress),
        };
        applied.map_err(|error| error.in_file(delta))
    }
}

/// A layout that can be written, with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Files with the names of the base's files.
    Arc2(arc2::Version),
    /// A directory `weight_vNNNNNN`.
    Slime(slime::Encoding, slime::Checksum),
    /// A file `step_NNNNNN.pulse`.
    Pulsept1(pulsept1::Version),
    /// A file `deltas/step_NNNNNN.safetensors`.
    Trl(trl::Encoding),
}

impl Writer {
    /// Checks that the layout can carry the difference between `base` and `target`; to be called
    /// for all steps before the first one is written.
    ///
    /// # Errors
    /// USAGE, with the tensor that the layout cannot carry.
    pub fn check(self, base: &StateTable, target: &StateTable) -> Result<()> {
        tensors::same(&base.tensors, &target.tensors)?;
        let digests = base.digests.tensors.iter().zip(&target.digests.tensors);
        for (info, (old, new)) in target.tensors.iter().zip(digests) {
            let carried = match self {
                Self::Arc2(_) => Ok(()),
                Self::Slime(encoding, _) => slime::check(encoding, info, old != new),
                Self::Pulsept1(_) => pulsept1::check(info),
                Self::Trl(encoding) => trl::check(encoding, info, old != new),
            };
            carried.map_err(|error| error.of_tensor(info.name()))?;
        }
        Ok(())
    }

    /// Writes the delta from `base` to `target` into `directory`, which exists. The file that
    /// readers look for appears last. Reports all bytes of the target to `progress`, once. Memory:
    /// the delta, and per thread a few times the longest tensor.
    ///
    /// # Errors
    /// USAGE if the layout cannot carry the difference ([`check`](Self::check)) or the step exists;
    /// IO.
    pub fn write(
        self,
        base: &dyn State,
        target: &dyn State,
        step: &Step<'_>,
        directory: &Path,
        progress: &dyn Progress,
    ) -> Result<Export> {
        tensors::same(base.tensors(), target.tensors())?;
        if step.number == 0 {
            return Err(deltachain::Error::usage(
                "the number of a step must be at least 1",
            ));
        }
        match self {
            Self::Arc2(version) => arc2::write(version, base, target, step, directory, progress),
            Self::Slime(encoding, checksum) => {
                slime::write(encoding, checksum, base, target, step, directory, progress)
            }
            Self::Pulsept1(version) => {
                pulsept1::write(version, base, target, step, directory, progress)
            }
            Self::Trl(encoding) => trl::write(encoding, base, target, step, directory, progress),
        }
    }
}
