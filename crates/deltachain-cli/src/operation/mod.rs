//! Operation of `follow` and `mirror` as services: the user's command, metrics, readiness, and
//! notifications to systemd.

pub(crate) mod command;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod mirroring;
pub(crate) mod readiness;
pub(crate) mod service;
