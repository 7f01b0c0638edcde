//! The members of a request. A missing member is an error of the runner.

use std::path::{Path, PathBuf};

use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use serde_json::Value;

/// A request, whose members are read by name.
#[derive(Debug)]
pub(crate) struct Request<'a>(&'a Value);

impl<'a> Request<'a> {
    pub(crate) fn new(json: &'a Value) -> Self {
        Self(json)
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'a str> {
        self.0[name]
            .as_str()
            .ok_or_else(|| Error::usage(format!("the request lacks {name}")))
    }

    pub(crate) fn path(&self, name: &str) -> Result<&'a Path> {
        self.text(name).map(Path::new)
    }

    /// Reads a path or null.
    pub(crate) fn optional_path(&self, name: &str) -> Result<Option<&'a Path>> {
        if self.0[name].is_null() {
            Ok(None)
        } else {
            self.path(name).map(Some)
        }
    }

    pub(crate) fn paths(&self, name: &str) -> Result<Vec<PathBuf>> {
        Ok(self.texts(name)?.into_iter().map(PathBuf::from).collect())
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>> {
        self.optional_texts(name)?
            .ok_or_else(|| Error::usage(format!("the request lacks {name}")))
    }

    /// Reads an array of strings or null.
    pub(crate) fn optional_texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        self.optional_array(name, |item| item.as_str().map(str::to_owned))
    }

    /// Reads an array of numbers or null.
    pub(crate) fn optional_numbers(&self, name: &str) -> Result<Option<Vec<u64>>> {
        self.optional_array(name, Value::as_u64)
    }

    fn optional_array<T>(
        &self,
        name: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        if self.0[name].is_null() {
            return Ok(None);
        }
        let items = self.0[name]
            .as_array()
            .and_then(|items| items.iter().map(read).collect());
        items
            .map(Some)
            .ok_or_else(|| Error::usage(format!("{name} is not what it should be")))
    }

    /// Reads the text of the layout of each shard of a held version, and true if the layout is
    /// proven.
    pub(crate) fn layouts(&self) -> Result<Vec<(String, bool)>> {
        let layouts = self.optional_array("layouts", |item| {
            Some((
                item["layout"].as_str()?.to_owned(),
                item["proven"].as_bool()?,
            ))
        });
        Ok(layouts?.unwrap_or_default())
    }

    pub(crate) fn digest(&self, name: &str) -> Result<Digest> {
        Digest::from_hex(self.text(name)?)
            .ok_or_else(|| Error::usage(format!("{name} is not a digest")))
    }

    /// Reads a digest or null.
    pub(crate) fn optional_digest(&self, name: &str) -> Result<Option<Digest>> {
        if self.0[name].is_null() {
            Ok(None)
        } else {
            self.digest(name).map(Some)
        }
    }

    /// Reads an object or null.
    pub(crate) fn object(&self, name: &str) -> Option<Self> {
        self.0[name].is_object().then(|| Self(&self.0[name]))
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        self.optional_number(name)
            .ok_or_else(|| Error::usage(format!("the request lacks {name}")))
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.0[name] == true
    }

    /// Reads a number or null.
    pub(crate) fn optional_number(&self, name: &str) -> Option<u64> {
        self.0[name].as_u64()
    }
}
