//! Objects of a chain in a store: talking to it, names, documents, reading links where they are.

pub(crate) mod documents;
pub(crate) mod options;
pub(crate) mod partial;
pub(crate) mod read;
pub(crate) mod store;
pub(crate) mod stored_link;
pub(crate) mod table;
pub(crate) mod url;
pub(crate) mod whole;
