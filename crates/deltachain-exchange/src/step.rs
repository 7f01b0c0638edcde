//! Parameters of a step that is read or written, besides the states; and the results of both.

use std::path::PathBuf;

use deltachain::files::Layout;

/// Result of reading a foreign delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Layout, version and encoding, for people.
    pub format: String,
    /// The version that the delta leads to, as the file names it.
    pub version: Option<String>,
    /// The version that the delta starts from, as the file names it.
    pub base_version: Option<String>,
    /// Remarks about what the checksums have proven and what they cannot prove: whole sentences for
    /// people.
    pub remarks: Vec<String>,
}

/// The parameters of a step in a sequence.
#[derive(Debug, Clone)]
pub struct Step<'a> {
    /// Number of the step, at least 1; the base is the previous step.
    pub number: u64,
    /// The base's layout, which ARC keeps if it has no folders. Default: one file
    /// `model.safetensors`.
    pub layout: Option<&'a Layout>,
    /// Name of the model, for PULSEPT1. Default: `model`.
    pub model: String,
    /// Digest of the state at step 0 in PULSEPT1's form, which PULSEPT1 records. Default: that of
    /// the base.
    pub first_digest: Option<String>,
}

impl<'a> Step<'a> {
    /// Makes a step with this number and the default of every other parameter.
    pub fn new(number: u64) -> Self {
        Self {
            number,
            layout: None,
            model: "model".to_owned(),
            first_digest: None,
        }
    }

    /// Sets the layout of the base.
    #[must_use]
    pub fn layout(mut self, layout: Option<&'a Layout>) -> Self {
        self.layout = layout;
        self
    }
}

/// Result of writing a foreign delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The file or the directory.
    pub path: PathBuf,
    /// Total size of its files in bytes.
    pub bytes: u64,
}
