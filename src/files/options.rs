//! Options for writing links and models as files.

use std::collections::BTreeMap;

use crate::codec::piece::Profile;
use crate::limits::Limits;
use crate::progress::Progress;

crate::setters! {
    /// Options of the functions in this module that write files.
    #[derive(Debug, Clone)]
    pub struct FileOptions<'a> {
        /// Whether to replace an existing output: a file, or a directory in which each file is a
        /// file of tensors or has a successor. Default: an existing output is refused.
        pub replace: bool = false,
        /// The profile of the link to write.
        pub profile: Profile = Profile::default(),
        /// Free text in the link to write: step number, run name. The value of the layout's key is
        /// always computed; a value given here is ignored.
        pub metadata: BTreeMap<String, String> = BTreeMap::new(),
        /// Limits for links that are read.
        pub limits: Limits = Limits::default(),
        /// Is called with the number of bytes to read or to build as soon as that is known, and
        /// then with the bytes that are done. The last call, with no bytes, comes before the output
        /// becomes visible.
        pub progress: &'a dyn Progress = &(),
    }
}
