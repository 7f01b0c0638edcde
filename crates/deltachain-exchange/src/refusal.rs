//! Refusals of foreign files, in the error classes of the library.

use deltachain::{Error, ErrorClass};

/// The bytes are damaged.
pub(crate) fn corrupt(message: impl Into<String>) -> Error {
    Error::refused(ErrorClass::Corrupt, message)
}

/// The file does not follow its layout.
pub(crate) fn malformed(message: impl Into<String>) -> Error {
    Error::refused(ErrorClass::Malformed, message)
}

/// This kind of file is not supported.
pub(crate) fn unsupported(message: impl Into<String>) -> Error {
    Error::refused(ErrorClass::Unsupported, message)
}

/// The file was made from another base.
pub(crate) fn wrong_base(message: impl Into<String>) -> Error {
    Error::refused(ErrorClass::WrongBase, message)
}

/// The result has another checksum. These layouts cannot tell a damaged file from a wrong base.
pub(crate) fn mismatch(name: &str) -> Error {
    Error::refused(
        ErrorClass::StateMismatch,
        format!(
            "the result does not have the {name} that the file names: the file is damaged, or was \
             made from another base"
        ),
    )
}
