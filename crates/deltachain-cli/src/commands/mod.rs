//! The commands, one file each or two alike. `run` parses nothing and prints; what does the work
//! returns a report.

pub(crate) mod apply;
pub(crate) mod chain;
pub(crate) mod demo;
mod demo_chain;
pub(crate) mod diff;
pub(crate) mod digest;
pub(crate) mod explain;
pub(crate) mod inspect;
mod inspect_html;
pub(crate) mod key;
pub(crate) mod verify;
