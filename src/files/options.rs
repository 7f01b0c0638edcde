//! Options for writing links and models as files.

use std::collections::BTreeMap;

use crate::codec::piece::Profile;
use crate::limits::Limits;
use crate::progress::Progress;

crate::setters! {
    /// Options of the functions in this module that write files.
    #[derive(Debug, Clone)]
    pub struct FileOptions<'a> {
        /// Replace what exists at the output's path: a file, or a directory that holds only plain
        /// files. Default: refuse to.
        pub replace: bool = false,
        /// The profile of a link that is made.
        pub profile: Profile = Profile::default(),
        /// Free text in a link that is made: step number, run name. The key of the layout is always
        /// computed; a value for it here is ignored.
        pub metadata: BTreeMap<String, String> = BTreeMap::new(),
        /// Limits of what links that are read may ask for.
        pub limits: Limits = Limits::default(),
        /// Is called with the number of bytes to read or to build as soon as that is known, and
        /// then with the bytes that are done. The last call, with no bytes, comes before the output
        /// becomes visible.
        pub progress: &'a dyn Progress = &(),
    }
}
