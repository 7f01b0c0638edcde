//! Chains of links (SPEC part 2): names, documents, and which files lead to a version. Nothing here
//! reads or writes. A program with a store drives the [`Planner`], fetches the objects that it asks
//! for, and applies the links of its [`Plan`].
//!
//! ```
//! use std::collections::BTreeMap;
//! use deltachain::Limits;
//! use deltachain::chain::{ChainDocument, Commit, FileReference, Listing, ObjectName, Plan, Planner, Route};
//! use deltachain::tensor::Digest;
//!
//! # fn main() -> deltachain::Result<()> {
//! // A store of a chain with one version, which is reached by a snapshot.
//! let chain = ChainDocument::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef).to_bytes()?;
//! let state = Digest::of_empty_state();
//! let file = FileReference { digest: Digest::of_bytes(b"a link"), size: 6 };
//! let commit = Commit {
//!     version: 0,
//!     parent: Digest::of_bytes(&chain),
//!     state,
//!     shards: vec![state],
//!     routes: vec![Route { from: None, files: vec![file] }],
//!     assets: Vec::new(),
//!     metadata: BTreeMap::new(),
//! };
//! let names = ["chain.json", "commits/00000000000000000000.json"];
//! let store = BTreeMap::from([(names[0], chain), (names[1], commit.to_bytes()?)]);
//!
//! // The head is wanted, nothing is held.
//! let mut planner = Planner::new(None, None, None, &Limits::default());
//! let content = |name: ObjectName| (name, store.get(name.to_string().as_str()));
//! let fetch = |names: &[ObjectName], _| Ok(names.iter().copied().map(content).collect());
//! let plan: Plan = planner.plan_with(|_, _| Ok(Listing::new(names)), fetch)?;
//! assert_eq!((plan.version, plan.bytes), (0, 6));
//! assert_eq!(plan.hops[0].files, [file]);
//! # Ok(())
//! # }
//! ```

mod checks;
mod documents;
mod history;
mod layouts;
mod marks;
mod names;
mod path;
mod plan;
mod planner;
mod publishing;
mod received;
mod retention;
mod signatures;
mod signed_head;

pub use crate::unsigned::UnsignedVersion;
pub use checks::{check_base, check_held, check_target, check_union, union_of};
pub use documents::{
    Asset, ChainDocument, Commit, FileReference, Route, RoutesDocument, foreign_form,
};
pub use layouts::{LayoutProof, named_layouts};
pub use names::{ObjectName, version_name};
pub use plan::{Hop, Listing, Plan, SignatureCheck, VersionId};
pub use planner::Planner;
pub use signatures::{Note, Signer, SigningKey, Trust, TrustedKey, VerifierKey};

// For deltachain-store, which writes chains, and the conformance kit; not part of the stable
// interface.
#[doc(hidden)]
pub use history::{History, HistoryEntry};
#[doc(hidden)]
pub use publishing::{
    Parent, came_late, chain_lost, check_duration, check_folders, check_taken, head_after_gap,
    head_not_signed, note_taken, routes_taken, time_unknown,
};
#[doc(hidden)]
pub use retention::{base_lost, commits_missing, no_path_without, retain, unreachable};
