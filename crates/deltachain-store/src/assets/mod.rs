//! Files of a version that hold no tensors: which they are, storing them, downloading them.

pub(crate) mod excluded;
pub(crate) mod in_store;
pub(crate) mod other_files;
pub(crate) mod training_state;
