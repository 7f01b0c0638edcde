//! Access to the store of a chain. Nothing outside of this folder uses the `object_store` crate.
//!
//! The folder has four layers, each of which uses those above it.

// Opening turns a URL and options into an `OpenStore`. `url` tells directories from servers, and
// `server` builds the clients of the `object_store` crate from settings. `sources` finds the
// service that gives credentials, `services` limits its time, and `provider` asks the caller.
#[cfg(feature = "az")]
pub(crate) mod connection_string;
pub(crate) mod credentials;
pub(crate) mod links;
#[cfg(feature = "servers")]
pub(crate) mod merged;
#[cfg(feature = "servers")]
pub(crate) mod named_file;
pub(crate) mod opened;
pub(crate) mod options;
#[cfg(feature = "s3")]
pub(crate) mod provider;
#[cfg(feature = "servers")]
pub(crate) mod server;
#[cfg(feature = "servers")]
pub(crate) mod services;
#[cfg(feature = "servers")]
pub(crate) mod settings;
#[cfg(feature = "servers")]
pub(crate) mod sources;
pub(crate) mod url;

// The wire: single requests to servers. `http` is the client, `answer` bounds bodies, `pace` waits
// for busy servers, `pages` ends lists, `refusal` knows the answers that are final, and
// `part_retry` repeats parts of uploads.
#[cfg(feature = "servers")]
pub(crate) mod answer;
#[cfg(feature = "servers")]
pub(crate) mod http;
#[cfg(feature = "servers")]
pub(crate) mod pace;
pub(crate) mod pages;
#[cfg(feature = "servers")]
pub(crate) mod part_retry;
pub(crate) mod rate;
pub(crate) mod refusal;

// Operations of a store. `store` reads, lists, creates and deletes objects, and repeats requests;
// most other modules add methods to its `Store`. `whole` and `stored_link` read files, and `copies`
// chooses the store that a file comes from.
pub(crate) mod clock;
pub(crate) mod copies;
pub(crate) mod head;
pub(crate) mod legible;
pub(crate) mod partial;
#[cfg(feature = "raw")]
pub(crate) mod raw;
pub(crate) mod runtime;
pub(crate) mod stop;
pub(crate) mod store;
pub(crate) mod stored_link;
pub(crate) mod traffic;
pub(crate) mod upload;
pub(crate) mod whole;

// Rules of chains that only need a `Store`.
pub(crate) mod attempt;
pub(crate) mod doctor;
pub(crate) mod documents;
pub(crate) mod lost;
pub(crate) mod table;
