//! Directories of this machine that the program keeps: how it recognises its own, and what it may remove.

pub(crate) mod lock;
pub(crate) mod marker;
pub(crate) mod names;
pub(crate) mod own;
pub(crate) mod room;
pub(crate) mod scratch;
pub(crate) mod unfinished;
