//! What is somebody else's in a directory that the program keeps.

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

/// Puts it there. The directory has been opened once, so that it is known as ours.
pub(crate) fn put(directory: &Path) {
    for name in THINGS {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

/// Compares every byte of it.
pub(crate) fn check(directory: &Path) {
    for name in THINGS {
        assert_eq!(
            fs::read_to_string(directory.join(name)).ok().as_deref(),
            Some(*name)
        );
    }
}
