//! The records that `follow` keeps of its work beside a directory, and the health of a directory by
//! these records.

pub(crate) mod health;
pub(crate) mod records;
pub(crate) mod time;
