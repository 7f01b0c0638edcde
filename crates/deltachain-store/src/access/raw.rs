//! A chain's objects as they are, for the tests, fuzzers and benchmarks of this workspace: what is
//! written here passes none of the checks of SPEC section 20.

use std::path::Path;

use deltachain::Result;
use deltachain::chain::{Listing, ObjectName};

use crate::access::store::{Store, StoredObject};
use crate::observer::Observer;

macro_rules! forwarded {
    ($($name:ident($($given:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The operations on objects that a [`Store`] does for this crate.
        #[expect(
            missing_docs,
            clippy::missing_errors_doc,
            reason = "no part of the interface; the functions of `Store` say it"
        )]
        pub trait RawObjects {
            $(fn $name(&self, $($given: $type),*) -> $result;)*
        }

        impl RawObjects for Store {
            $(fn $name(&self, $($given: $type),*) -> $result {
                self.$name($($given),*)
            })*
        }
    };
}

forwarded! {
    can_list() -> bool;
    get(name: ObjectName) -> Result<Option<Vec<u8>>>;
    get_all(names: &[ObjectName]) -> Result<Vec<(ObjectName, Option<Vec<u8>>)>>;
    objects() -> Result<Vec<StoredObject>>;
    listing(from: u64) -> Result<Listing>;
    head(known: Option<u64>) -> Result<Option<u64>>;
    find(name: ObjectName) -> Result<Option<StoredObject>>;
    put_if_absent(name: ObjectName, content: &[u8]) -> Result<bool>;
    upload(file: &Path, name: ObjectName, size: u64, observer: &dyn Observer) -> Result<()>;
    delete(names: &[ObjectName]) -> Result<()>;
}
