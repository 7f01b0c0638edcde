//! Links being made: written to a temporary file, named by the digest of their bytes, and stored.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use deltachain::chain::FileReference;
use deltachain::files::{LAYOUT_KEY, Layout};
use deltachain::tensor::{Digest, MemoryState, total_bytes};
use deltachain::{DiffOptions, DiffReport, Error, Profile, Result, diff};
use tempfile::NamedTempFile;

use crate::access::store::Store;
use crate::directory::unfinished;
use crate::observer::{InPhase, Observer, Phase};
use crate::publishing::model::End;

/// A key of a link's metadata (SPEC section 20).
const NONCE_KEY: &str = "deltachain.nonce";

/// A link in a temporary file.
#[derive(Debug)]
pub(crate) struct NewLink {
    pub(crate) file: NamedTempFile,
    pub(crate) reference: FileReference,
    pub(crate) report: DiffReport,
}

impl NewLink {
    /// Makes the link from `base`, or from nothing, to `target`. The temporary file is made in `place`.
    pub(crate) fn make(
        base: Option<End<'_>>,
        target: End<'_>,
        profile: Profile,
        place: &Path,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let nothing = MemoryState::new();
        let base = base.unwrap_or(End { state: &nothing, layout: None, digests: None });
        let tensors = target.state.tensors();
        let single = Layout::single_file(tensors);
        let layout = Layout::metadata_value(target.layout.unwrap_or(&single), base.layout, tensors);
        let mut metadata: BTreeMap<_, _> = layout.into_iter().map(|layout| (LAYOUT_KEY.to_owned(), layout)).collect();
        // R-PUB-07: the same link is another file at every attempt.
        metadata.insert(NONCE_KEY.to_owned(), format!("{:032x}", rand::random::<u128>()));
        let work = total_bytes(base.state.tensors().iter().chain(tensors));
        let progress = InPhase::begin(observer, Phase::Compare, work);

        let file = unfinished::file(place);
        let file = file.map_err(|error| Error::io("creating a temporary file", error).in_file(place))?;
        let mut out = HashingWriter { file: BufWriter::new(file), hasher: blake3::Hasher::new() };
        let options = DiffOptions::default().profile(profile).metadata(metadata).progress(&progress);
        let report = diff(base.state, target.state, &options.base_digests(base.digests), &mut out)?;
        let digest = Digest(*out.hasher.finalize().as_bytes());
        let file = out.file.into_inner().map_err(|error| Error::io("writing a temporary file", error.into_error()))?;
        let reference = FileReference { digest, size: report.bytes };
        Ok(Self { file, reference, report })
    }

    /// Stores the link. The observer has been told of a phase of uploads; its end is the caller's to tell.
    pub(crate) fn upload(&self, store: &Store, observer: &dyn Observer) -> Result<()> {
        observer.begin(Phase::Upload, self.reference.size);
        store.upload(self.file.path(), self.reference.name(), self.reference.size, observer)
    }
}

/// Hashes the bytes that are written.
struct HashingWriter {
    file: BufWriter<NamedTempFile>,
    hasher: blake3::Hasher,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
