//! What `follow` needs to be run as a service: its records, the user's command, metrics, readiness, and word to systemd.

pub(crate) mod command;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod readiness;
pub(crate) mod records;
pub(crate) mod service;
pub(crate) mod time;
