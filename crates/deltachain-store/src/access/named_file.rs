//! Files with credentials, which settings name.

use std::fs;

use deltachain::{Error, Result};

use crate::access::settings;

/// A file that a setting names.
#[derive(Debug, Clone)]
pub(crate) struct NamedFile {
    /// The variable, or the setting.
    pub(crate) name: String,
    pub(crate) path: String,
    /// True for a token, which goes into requests as it is.
    pub(crate) is_token: bool,
}

impl NamedFile {
    /// # Errors
    /// USAGE, with the names of the variable and of the file.
    pub(crate) fn check(&self) -> Result<()> {
        let Self {
            name,
            path,
            is_token,
        } = self;
        let refused = |what: String| Error::usage(format!("{name}={path}: {what}"));
        let content = fs::read(path).map_err(|error| refused(error.to_string()))?;
        let Ok(text) = String::from_utf8(content) else {
            return Err(refused("the file is not text".to_owned()));
        };
        if text.trim().is_empty() {
            return Err(refused("the file is empty".to_owned()));
        }
        if *is_token {
            settings::check_text(&format!("{name}={path}: the token"), &text)?;
        }
        Ok(())
    }
}
