//! Chains of model versions in a bucket or a directory (SPEC part 2 of [`deltachain`]): publish,
//! follow, compact, prune.
//!
//! All functions block and run tokio inside, so none of them may be called from asynchronous code.
//!
//! ```
//! use deltachain::files::SafetensorsState;
//! use deltachain_store::{
//!     Base, Follower, FollowerOptions, PublishOptions, Publisher, Store, StoreOptions, init,
//! };
//!
//! # fn main() -> deltachain::Result<()> {
//! # let place = tempfile::tempdir().unwrap();
//! # let (url, model) = (place.path().join("chain"), place.path().join("model.safetensors"));
//! # let url = url.to_str().unwrap();
//! # std::fs::write(
//! #     &model,
//! #     b"\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}   \x07",
//! # )
//! # .unwrap();
//! // `url` may be a directory, or s3://BUCKET/PREFIX.
//! let store = Store::create(url, StoreOptions::default())?;
//! init(&store)?;
//! let mut publisher = Publisher::open(store.clone(), PublishOptions::default())?;
//! let published = publisher.publish(&SafetensorsState::open(&model)?, Base::Nothing, &())?;
//!
//! let directory = place.path().join("follower");
//! let mut follower = Follower::in_directory(store, &directory, FollowerOptions::default())?;
//! if let Some(prepared) = follower.prepare(None, &())? {
//!     // Everything that can fail is done. Now `current` in the directory is switched.
//!     let switched = follower.apply(prepared)?;
//!     assert_eq!((switched.version, switched.state), (0, published.state));
//! }
//! assert_eq!(std::fs::read(directory.join("current/model.safetensors")).unwrap(), std::fs::read(&model).unwrap());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout
    )
)]

mod access;
mod advice;
mod assets;
mod directory;
mod fallback;
mod fetching;
mod following;
mod maintenance;
mod observer;
mod operation;
mod publishing;
mod retention;
mod text;
mod there;

pub use access::credentials::{CredentialSource, Credentials};
pub use access::doctor::{Finding, doctor};
pub use access::documents::{chain_digest, init, read_documents};
pub use access::options::StoreOptions;
#[cfg(feature = "raw")]
pub use access::raw::RawObjects;
pub use access::stop::Stop;
#[cfg(feature = "raw")]
pub use access::store::StoredObject;
pub use access::store::{Store, Trouble};
pub use advice::{Face, Problem, advice, advice_by_rule};
pub use assets::other_files::OtherFiles;
pub use directory::held::HeldVersion;
pub use directory::scratch::Scratch;
pub use directory::status::{TrustStatus, find_version, followed_directory, is_managed};
pub use fallback::Fallback;
pub use following::directory::Directory;
pub use following::follower::{Follower, FollowerOptions, Place};
pub use following::in_place::InPlace;
pub use following::memory::Memory;
pub use following::polling::{FollowEvent, FollowOptions, OnEvent, Poller, lag, stored};
pub use following::reach::PreparedVersion;
pub use following::switched::{Lag, PhaseTimes, SwitchReport};
pub use maintenance::check_directory::{DirectoryReport, check_directory};
pub use maintenance::compact::{CompactOptions, CompactReport, compact};
pub use maintenance::fsck::{FsckOptions, FsckReport, fsck};
pub use maintenance::log::{LogEntry, LogRoute, VersionDigests, log, show, version_digests};
pub use maintenance::mirror::{Mirror, MirrorOptions, MirrorReport, PromotedVersion};
pub use maintenance::signers::{ClaimedSigner, SignedVersion, Signers};
pub use observer::{Observer, Phase};
pub use operation::health::{CommandHealth, Health, MaxLag, unready};
pub use operation::records::{
    CommandStatus, Failure, FollowStatus, Ran, Records, ServerRecord, ServersRecord, StoreRecord,
};
pub use operation::time::Time;
pub use publishing::division::divide;
pub use publishing::model::Model;
pub use publishing::once::SkippedStep;
pub use publishing::options::{Base, PublishOptions};
pub use publishing::part::ShardPart;
pub use publishing::policy::Snapshots;
pub use publishing::published::{Head, PublishReport, PublishedRoute};
pub use publishing::publisher::Publisher;
pub use publishing::signing::sign;
pub use retention::{Keep, PrunePlan, PruneReport, plan_prune, prune, undo_prune};
pub use text::date;

/// The Rust examples of README.md, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
