//! A chain's objects as they are, for the tests, fuzzers and benchmarks of this workspace: what is written here passes none of
//! the checks of SPEC section 20.

use std::path::Path;

use deltachain::Result;
use deltachain::chain::{Listing, ObjectName};

use crate::access::store::{Store, StoredObject};
use crate::observer::Observer;

/// What a [`Store`] does for this crate.
#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "no part of the interface; the functions of `Store` say it"
)]
pub trait RawObjects {
    fn can_list(&self) -> bool;
    fn get(&self, name: ObjectName) -> Result<Option<Vec<u8>>>;
    fn get_all(&self, names: &[ObjectName]) -> Result<Vec<(ObjectName, Option<Vec<u8>>)>>;
    fn objects(&self) -> Result<Vec<StoredObject>>;
    fn listing(&self, from: u64) -> Result<Listing>;
    fn find(&self, name: ObjectName) -> Result<Option<StoredObject>>;
    fn put_if_absent(&self, name: ObjectName, content: &[u8]) -> Result<bool>;
    fn upload(&self, file: &Path, name: ObjectName, size: u64, observer: &dyn Observer) -> Result<()>;
    fn delete(&self, names: &[ObjectName]) -> Result<()>;
}

impl RawObjects for Store {
    fn can_list(&self) -> bool {
        self.can_list()
    }

    fn get(&self, name: ObjectName) -> Result<Option<Vec<u8>>> {
        self.get(name)
    }

    fn get_all(&self, names: &[ObjectName]) -> Result<Vec<(ObjectName, Option<Vec<u8>>)>> {
        self.get_all(names)
    }

    fn objects(&self) -> Result<Vec<StoredObject>> {
        self.objects()
    }

    fn listing(&self, from: u64) -> Result<Listing> {
        self.listing(from)
    }

    fn find(&self, name: ObjectName) -> Result<Option<StoredObject>> {
        self.find(name)
    }

    fn put_if_absent(&self, name: ObjectName, content: &[u8]) -> Result<bool> {
        self.put_if_absent(name, content)
    }

    fn upload(&self, file: &Path, name: ObjectName, size: u64, observer: &dyn Observer) -> Result<()> {
        self.upload(file, name, size, observer)
    }

    fn delete(&self, names: &[ObjectName]) -> Result<()> {
        self.delete(names)
    }
}
