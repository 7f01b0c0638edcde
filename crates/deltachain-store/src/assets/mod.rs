//! Files of a version that hold no tensors: finding, storing and downloading them.

pub(crate) mod excluded;
pub(crate) mod in_store;
pub(crate) mod other_files;
pub(crate) mod training_state;
