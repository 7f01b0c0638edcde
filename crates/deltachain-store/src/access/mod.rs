//! Objects of a chain in a store: talking to it, names, documents, reading links where they are.

#[cfg(feature = "cloud")]
pub(crate) mod answer;
pub(crate) mod clock;
pub(crate) mod credentials;
pub(crate) mod doctor;
pub(crate) mod documents;
#[cfg(feature = "cloud")]
pub(crate) mod http;
pub(crate) mod legible;
pub(crate) mod opened;
pub(crate) mod options;
#[cfg(feature = "cloud")]
pub(crate) mod pace;
pub(crate) mod partial;
#[cfg(feature = "cloud")]
pub(crate) mod provider;
pub(crate) mod read;
#[cfg(feature = "cloud")]
pub(crate) mod sender;
#[cfg(feature = "cloud")]
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod stored_link;
pub(crate) mod table;
pub(crate) mod url;
pub(crate) mod whole;
