//! Chains of model versions in a bucket or a directory (SPEC part 2 of [`deltachain`]): publish, follow, compact, prune.

#![forbid(unsafe_code)]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout))]

mod cache;
mod compact;
mod documents;
mod download;
mod follow;
mod fsck;
mod held;
mod job;
mod kept;
mod links;
mod log;
mod model_directory;
mod new_link;
mod observer;
mod options;
mod other_files;
mod policy;
mod prover;
mod prune;
mod publisher;
mod read;
mod replay;
mod shard;
mod shards;
mod store;
mod stored_link;
mod subscriber;
mod url;

pub use compact::{CompactOptions, Compacted, compact};
pub use documents::init;
pub use follow::{FollowOptions, follow};
pub use fsck::{FsckOptions, FsckReport, fsck};
pub use log::{LogEntry, log, show};
pub use observer::{Observer, Phase};
pub use options::StoreOptions;
pub use policy::Snapshots;
pub use prune::{Keep, PrunePlan, Pruned, plan_prune, prune};
pub use publisher::{Base, PublishOptions, Published, PublishedRoute, Publisher};
pub use shards::{ShardPart, commit_shards, publish_shard};
pub use store::{Store, StoredObject};
pub use subscriber::{HeldVersion, Lag, PhaseTimes, Prepared, Subscriber, SubscriberOptions, Switched};
