//! The weight deltas of other systems, read and written: ARC 1 and 2 of Fireworks, the directories
//! of slime, PULSEPT1 of basilica, and the patches of TRL. [docs/exchange.md] says who reads what,
//! and what each layout can carry.
//!
//! One file per layout, with its reader beside its writer. A [`Reader`] turns a base into the state
//! that a foreign delta leads to; a [`Writer`] makes a foreign delta of two states. Neither knows
//! links: [`deltachain::diff()`] compares the states that are read, and [`deltachain::Replay`]
//! builds the states that are written.
//!
//! Foreign files are untrusted. No more is allocated than a few times the file's length and, per
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
//! The feature `program` adds the program `deltachain-exchange`, and what it needs.
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

/// A layout whose deltas are read.
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
    /// Applies the foreign delta at `delta` to `base`, checks all that its checksums allow, and
    /// puts every tensor of the result into `out`. `out` has been created for the tensors of
    /// `base`, because these layouts add, remove and reshape nothing. Until this has returned
    /// without error, what `out` holds must not be used. Tells `progress` of all bytes of the base,
    /// once.
    ///
    /// Memory: a few times the delta's length, and per thread a few times the longest tensor.
    ///
    /// # Errors
    /// With the file, and where there is one with the tensor: `CORRUPT` or `MALFORMED` if the delta
    /// is not what its layout asks for, `UNSUPPORTED` for pickled data and what only a GPU can
    /// decode, `WRONG_BASE` if the base cannot be the one it was made from, `STATE_MISMATCH` if a
    /// checksum of the result is another; USAGE, IO.
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

/// A layout in which deltas are written, with what can be chosen about it.
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
    /// Whether the layout can carry what leads from `base` to `target`; to be asked for all steps
    /// before the first is written.
    ///
    /// # Errors
    /// USAGE with the tensor that it cannot carry.
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

    /// Writes the delta from `base` to `target` into `directory`, which exists. What a reader looks
    /// for first is there last. Tells `progress` of all bytes of the target, once. Memory: the
    /// delta, and per thread a few times the longest tensor.
    ///
    /// # Errors
    /// USAGE if the layout cannot carry it ([`check`](Self::check)) or the step is there already;
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
            Self::Slime(encoding, checksum) => slime::write(
                (encoding, checksum),
                base,
                target,
                step,
                directory,
                progress,
            ),
            Self::Pulsept1(version) => {
                pulsept1::write(version, base, target, step, directory, progress)
            }
            Self::Trl(encoding) => trl::write(encoding, base, target, step, directory, progress),
        }
    }
}
