//! The parts that `follow` needs to be run as a service: the user's command, metrics, readiness,
//! and word to systemd.

pub(crate) mod command;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod mirroring;
pub(crate) mod readiness;
pub(crate) mod service;
