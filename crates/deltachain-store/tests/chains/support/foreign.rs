//! Foreign files in a managed directory.

use std::fs;
use std::path::Path;

const THINGS: &[&str] = &[
    "notes.txt",
    ".tmp-x/f",
    ".tmp-deltachain-0123456789ab/f",
    "versions/3.11/python",
    "versions/00000000000000000009-0123456789abcdef/f",
    "cache/notes.txt",
    "cache/.tmp-xyz",
];

/// Adds the foreign files. The directory was opened before, so that it is known as managed.
pub(crate) fn put(directory: &Path) {
    for name in THINGS {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

/// Checks that the foreign files are unchanged.
pub(crate) fn check(directory: &Path) {
    for name in THINGS {
        assert_eq!(
            fs::read_to_string(directory.join(name)).ok().as_deref(),
            Some(*name)
        );
    }
}
