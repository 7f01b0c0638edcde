//! Adds versions to a chain: links are made and stored, and a commit makes them a version.

pub(crate) mod commit;
pub(crate) mod division;
pub(crate) mod finite;
pub(crate) mod job;
pub(crate) mod kept;
pub(crate) mod known_head;
pub(crate) mod model;
pub(crate) mod new_link;
pub(crate) mod once;
pub(crate) mod options;
pub(crate) mod part;
pub(crate) mod policy;
pub(crate) mod published;
pub(crate) mod publisher;
pub(crate) mod signing;
