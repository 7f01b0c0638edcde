//! The members of a request. One that is missing is a mistake of the runner.

use std::path::{Path, PathBuf};

use deltachain::{Error, Result};
use serde_json::Value;

/// A request, whose members are asked for by name.
#[derive(Debug)]
pub(crate) struct Request<'a>(&'a Value);

impl<'a> Request<'a> {
    pub(crate) fn new(json: &'a Value) -> Self {
        Self(json)
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'a str> {
        self.0[name].as_str().ok_or_else(|| Error::usage(format!("the request lacks {name}")))
    }

    pub(crate) fn path(&self, name: &str) -> Result<&'a Path> {
        self.text(name).map(Path::new)
    }

    /// A path or null.
    pub(crate) fn optional_path(&self, name: &str) -> Result<Option<&'a Path>> {
        if self.0[name].is_null() { Ok(None) } else { self.path(name).map(Some) }
    }

    pub(crate) fn paths(&self, name: &str) -> Result<Vec<PathBuf>> {
        let items = self.0[name].as_array().into_iter().flatten();
        let paths: Option<Vec<PathBuf>> = items.map(|item| item.as_str().map(PathBuf::from)).collect();
        paths.filter(|paths| !paths.is_empty()).ok_or_else(|| Error::usage(format!("the request lacks {name}")))
    }

    /// An object or null.
    pub(crate) fn object(&self, name: &str) -> Option<Self> {
        self.0[name].is_object().then(|| Self(&self.0[name]))
    }

    /// A number or null.
    pub(crate) fn optional_number(&self, name: &str) -> Option<u64> {
        self.0[name].as_u64()
    }
}
