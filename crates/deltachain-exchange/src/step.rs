//! The facts that reading and writing a step needs beside the states, and the results of both.

use std::path::PathBuf;

use deltachain::files::Layout;

/// The facts of a foreign delta that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Layout, version and encoding, for people.
    pub format: String,
    /// The version that it leads to, as the file calls it.
    pub version: Option<String>,
    /// The version that it starts from, as the file calls it.
    pub base_version: Option<String>,
    /// The remarks on what its checksums have proven, and what they could not: whole sentences for
    /// people.
    pub remarks: Vec<String>,
}

/// Which step of a sequence a delta is.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// Its number; the base has the one before, so it is at least 1.
    pub number: u64,
    /// The layout of the base, which ARC keeps if it has no folders. Default: one file
    /// `model.safetensors`.
    pub layout: Option<&'a Layout>,
    /// Name of the model, which PULSEPT1 records. Default: `model`.
    pub model: String,
    /// Digest of the state at step 0 as PULSEPT1 has it, which it records. Default: the base's.
    pub first_digest: Option<String>,
}

impl<'a> Step<'a> {
    /// The step with this number; everything else as by default.
    pub fn new(number: u64) -> Self {
        Self {
            number,
            layout: None,
            model: "model".to_owned(),
            first_digest: None,
        }
    }

    /// With the layout of the base.
    #[must_use]
    pub fn layout(mut self, layout: Option<&'a Layout>) -> Self {
        self.layout = layout;
        self
    }
}

/// A foreign delta that has been written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The file or the directory.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
}
