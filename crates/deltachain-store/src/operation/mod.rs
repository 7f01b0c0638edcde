//! What `follow` writes down of its work beside a directory, and how a directory is by that.

pub(crate) mod health;
pub(crate) mod records;
pub(crate) mod time;
