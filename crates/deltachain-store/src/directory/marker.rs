//! The file `deltachain.directory` marks a directory that this program manages. A directory that
//! has no marker and is not empty is foreign, and is not touched.

use std::fs;
use std::path::Path;

use deltachain::{Error, Result};

use crate::directory::names::is_real_file;
use crate::there::if_there;

pub(crate) use deltachain::files::MARKER;

/// The purpose of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectoryKind {
    /// A model that a follower keeps at a version.
    Model,
    /// A cache of downloaded links.
    Cache,
    /// Unfinished files.
    Unfinished,
}

impl DirectoryKind {
    /// The content of the marker.
    pub(crate) fn text(self) -> String {
        let kind = match self {
            Self::Model => "model",
            Self::Cache => "cache",
            Self::Unfinished => "unfinished",
        };
        format!("{{\"deltachain_directory\":1,\"kind\":\"{kind}\"}}\n")
    }

    /// Whether a directory has the marker of this kind.
    ///
    /// # Errors
    /// USAGE if it has another marker, or something else of that name; IO.
    pub(crate) fn marks(self, directory: &Path) -> Result<bool> {
        let path = directory.join(MARKER);
        let found = if_there(fs::symlink_metadata(&path))
            .map_err(|error| Error::io("reading", error).in_file(&path));
        if found?.is_none() {
            return Ok(false);
        }
        let text = if is_real_file(&path) {
            fs::read(&path).unwrap_or_default()
        } else {
            Vec::new()
        };
        if text == self.text().as_bytes() {
            return Ok(true);
        }
        Err(
            Error::usage("this directory is managed by deltachain, but for another purpose")
                .in_file(path),
        )
    }
}
