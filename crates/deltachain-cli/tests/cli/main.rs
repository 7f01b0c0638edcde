//! Tests of the tool from outside: they run the built program on real excerpts, and on files that
//! are wrong in every way that a user can meet. Each test runs in a directory of its own.

mod chains;
mod directories;
mod ending;
mod engines;
mod engines_drawn;
mod engines_truth;
mod explain;
mod fleet;
mod inputs;
mod machine;
mod mirror;
mod operation;
mod readiness;
mod refusals;
mod reports;
mod round_trips;
mod servers;
mod showing;
mod signatures;
mod strangers;
mod support;
