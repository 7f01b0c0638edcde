//! Directories on this machine that the program manages: how it recognises them, what it may
//! remove, and the versions of a model in them.

pub(crate) mod held;
pub(crate) mod lock;
pub(crate) mod marker;
pub(crate) mod model_directory;
pub(crate) mod names;
pub(crate) mod own;
pub(crate) mod room;
pub(crate) mod scratch;
pub(crate) mod status;
pub(crate) mod trust_record;
pub(crate) mod unfinished;
pub(crate) mod versions;
