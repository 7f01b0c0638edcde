//! From a URL or a path to a store.

use std::path::PathBuf;
use std::sync::Arc;

use deltachain::{Error, Result};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, parse_url_opts};
use url::Url;

use crate::access::options::StoreOptions;

/// Environment variables that begin with one of these are settings of a store.
const ENVIRONMENT: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// A store that has been opened.
pub(crate) struct Opened {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    pub(crate) can_list: bool,
}

pub(crate) fn open_url(text: &str, options: &StoreOptions) -> Result<Opened> {
    let usage = |message: String| Error::usage(message).in_file(text);
    if let Some(directory) = directory_of(text) {
        if !directory.is_dir() {
            return Err(usage("there is no such directory".to_owned()));
        }
        let objects = LocalFileSystem::new_with_prefix(&directory).map_err(|error| usage(error.to_string()))?;
        // What has been stored must survive a power cut before anything is stored that refers to it.
        return Ok(Opened { objects: Arc::new(objects.with_fsync(true)), prefix: Path::default(), can_list: true });
    }
    let url = Url::parse(text).map_err(|error| usage(error.to_string()))?;
    let (scheme, _) = ObjectStoreScheme::parse(&url).map_err(|error| usage(error.to_string()))?;
    let (objects, prefix) = parse_url_opts(&url, settings(&url, options)).map_err(|error| usage(error.to_string()))?;
    Ok(Opened { objects: Arc::from(objects), prefix, can_list: scheme != ObjectStoreScheme::Http })
}

/// The directory that a URL or a path names; `None` if it names something else.
pub(crate) fn directory_of(text: &str) -> Option<PathBuf> {
    match Url::parse(text) {
        Ok(url) if url.scheme() == "file" => url.to_file_path().ok(),
        // A scheme of one letter is a drive of Windows.
        Ok(url) if url.scheme().len() > 1 && text.contains("://") => None,
        _ => Some(PathBuf::from(text)),
    }
}

/// Settings from the environment, and after them those of the options, the later ones counting.
fn settings(url: &Url, options: &StoreOptions) -> Vec<(String, String)> {
    let environment = std::env::vars_os().filter_map(|(key, value)| {
        let key = key.into_string().ok().filter(|key| ENVIRONMENT.iter().any(|start| key.starts_with(start)))?;
        Some((key.to_ascii_lowercase(), value.into_string().ok()?))
    });
    let mut settings: Vec<(String, String)> = environment.collect();
    settings.extend(options.settings.iter().map(|(key, value)| (key.to_ascii_lowercase(), value.clone())));
    // Who names a server without encryption wants it so.
    let is_plain = |(key, value): &(String, String)| key.contains("endpoint") && value.starts_with("http://");
    if url.scheme() == "http" || settings.iter().any(is_plain) {
        settings.insert(0, ("allow_http".to_owned(), "true".to_owned()));
    }
    // Retries are done here, where all kinds of stores have them alike.
    settings.insert(0, ("timeout".to_owned(), format!("{} seconds", options.timeout.as_secs().max(1))));
    settings
}
