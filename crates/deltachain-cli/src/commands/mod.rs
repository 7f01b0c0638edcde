//! The commands: one file for each, or for two similar ones. `run` gets parsed arguments and
//! prints. The functions that do the work return reports.

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
