//! How links and models are written as files.

use std::collections::BTreeMap;
use std::fmt;

use crate::codec::piece::Profile;
use crate::limits::Limits;
use crate::progress::Progress;

/// How the functions of this module that write files do it.
#[derive(Clone)]
#[non_exhaustive]
pub struct FileOptions<'a> {
    /// Replace what exists at the output's path: a file, or a directory that holds only plain files. Default: refuse
    /// to.
    pub replace: bool,
    /// Of a link that is made.
    pub profile: Profile,
    /// Free text in a link that is made: step number, run name. The key of the layout is always computed; a value for
    /// it here is ignored.
    pub metadata: BTreeMap<String, String>,
    /// What links that are read may ask for.
    pub limits: Limits,
    /// Is called with the number of bytes to read or to build as soon as that is known, and then with the bytes that
    /// are done. The last call, with no bytes, comes before the output becomes visible.
    pub progress: &'a dyn Progress,
}

impl Default for FileOptions<'_> {
    fn default() -> Self {
        let (profile, limits) = (Profile::default(), Limits::default());
        Self { replace: false, profile, metadata: BTreeMap::new(), limits, progress: &() }
    }
}

impl<'a> FileOptions<'a> {
    crate::setters! {
        replace: bool,
        profile: Profile,
        metadata: BTreeMap<String, String>,
        limits: Limits,
        progress: &'a dyn Progress,
    }
}

impl fmt::Debug for FileOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replace, profile, metadata, limits, .. } = self;
        let mut options = f.debug_struct("FileOptions");
        options.field("replace", replace).field("profile", profile).field("metadata", metadata);
        options.field("limits", limits).finish_non_exhaustive()
    }
}
