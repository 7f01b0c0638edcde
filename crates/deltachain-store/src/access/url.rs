//! Opens the store that a URL or a path names.

use std::path::PathBuf;
use std::sync::Arc;

use deltachain::{Error, Result};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::Url;

use crate::access::links::find_dangling;
use crate::access::opened::OpenStore;
use crate::access::options::StoreOptions;

/// Replacements for URL schemes of other programs.
const FOREIGN: [(&str, &str); 4] = [
    (
        "hf",
        "write s3://NAME/PREFIX for hf://buckets/ORG/NAME/PREFIX, with \
         AWS_ENDPOINT_URL=https://s3.hf.co/ORG and keys of Hugging Face for its buckets \
         (docs/operating.md); a repository of models cannot hold a chain",
    ),
    (
        "r2",
        "write s3://BUCKET/PREFIX, with AWS_ENDPOINT_URL=https://ACCOUNT.r2.cloudflarestorage.com",
    ),
    ("oss", NO_CONDITION),
    ("cos", NO_CONDITION),
];

const NO_CONDITION: &str = "write s3://BUCKET/PREFIX with AWS_ENDPOINT_URL to follow a chain that \
                            was copied there; nothing can be published there, since this store \
                            does not know If-None-Match";

/// `is_awaited`: whether the directory may be missing, and come later.
pub(crate) fn open_url(text: &str, options: &StoreOptions, is_awaited: bool) -> Result<OpenStore> {
    let usage = |message: String| Error::usage(message).in_file(text);
    if let Some(directory) = directory_of(text) {
        if let Some((key, _)) = options.settings.first() {
            return Err(usage(format!(
                "the chain is in a directory, which has no settings of a store, such as {key:?}"
            )));
        }
        if options.credentials.is_some() {
            return Err(usage(
                "the chain is in a directory, which needs no credentials".to_owned(),
            ));
        }
        let (objects, prefix) = if directory.is_dir() {
            (
                LocalFileSystem::new_with_prefix(&directory)
                    .map_err(|error| usage(error.to_string()))?,
                Path::default(),
            )
        } else if is_awaited && !directory.exists() {
            let absolute =
                std::path::absolute(&directory).map_err(|error| usage(error.to_string()))?;
            let prefix =
                Path::from_absolute_path(absolute).map_err(|error| usage(error.to_string()))?;
            (LocalFileSystem::new(), prefix)
        } else {
            find_dangling(&directory)?;
            return Err(usage(
                "there is no such directory: check the path, or create it and a new chain with \
                 `deltachain init`"
                    .to_owned(),
            ));
        };
        // An object that has been stored must survive a power cut before anything is stored that
        // refers to it.
        let opened = OpenStore::new(Arc::new(objects.with_fsync(true)), prefix);
        return Ok(OpenStore {
            directory: Some(directory),
            ..opened
        });
    }
    // `gcs://` is the name that fsspec has for `gs://`.
    let text = &text
        .strip_prefix("gcs://")
        .map_or_else(|| text.to_owned(), |rest| format!("gs://{rest}"));
    let url = Url::parse(text).map_err(|error| usage(error.to_string()))?;
    if let Some((_, advice)) = FOREIGN.iter().find(|(scheme, _)| *scheme == url.scheme()) {
        return Err(usage((*advice).to_owned()));
    }
    #[cfg(feature = "servers")]
    return crate::access::server::open(&url, options).map_err(|error| error.in_file(text));
    #[cfg(not(feature = "servers"))]
    {
        let _ = options;
        Err(usage(format!(
            "this program was built without support for {}://",
            url.scheme()
        )))
    }
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
