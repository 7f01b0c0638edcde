//! New links: written to a temporary file, named by the digest of their bytes, and stored.

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

/// The key of a link's nonce in its metadata (SPEC section 20).
const NONCE_KEY: &str = "deltachain.nonce";

/// Coding of the links of a route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteCoding {
    profile: Profile,
    sums: bool,
}

impl RouteCoding {
    /// Returns the coding of each profile.
    ///
    /// # Errors
    /// USAGE if there is no profile, or a duplicate one.
    pub(crate) fn of(profiles: &[Profile]) -> Result<Vec<Self>> {
        if profiles.is_empty() {
            return Err(Error::usage("no profile is given"));
        }
        if let Some(twice) = (1..)
            .zip(profiles)
            .find(|&(next, profile)| profiles[next..].contains(profile))
        {
            return Err(Error::usage(format!(
                "duplicate profile {}",
                twice.1.name()
            )));
        }
        let sums = profiles.contains(&Profile::Local);
        Ok(profiles
            .iter()
            .map(|&profile| Self { profile, sums })
            .collect())
    }
}

/// A link in a temporary file.
#[derive(Debug)]
pub(crate) struct NewLink {
    pub(crate) file: NamedTempFile,
    pub(crate) reference: FileReference,
    pub(crate) report: DiffReport,
    /// Whether it can be taken in place, as far as its profile says (SPEC section 24.5).
    pub(crate) is_in_place: bool,
    /// Digest of the target's layout.
    pub(crate) layout: Digest,
    /// Whether the target's layout differs from the one that follows from the base's.
    pub(crate) has_moved: bool,
}

impl NewLink {
    /// Makes the link from `base`, or from nothing, to `target`. The temporary file is made in
    /// `place`.
    pub(crate) fn make(
        base: Option<End<'_>>,
        target: End<'_>,
        RouteCoding { profile, sums }: RouteCoding,
        place: &Path,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let nothing = MemoryState::new();
        let is_snapshot = base.is_none();
        let base = base.unwrap_or(End {
            state: &nothing,
            layout: None,
            named: None,
            digests: None,
        });
        let tensors = target.state.tensors();
        // The layout of one file without a name. Its text is the same for all tensors.
        let single = Layout::single_file(tensors);
        let layout = target.layout.unwrap_or(&single);
        let moved = Layout::metadata_value(layout, base.layout, tensors);
        let has_moved = moved.is_some();
        let of_base = base.layout.unwrap_or(&single).digest();
        let follows = is_snapshot || base.named == Some(of_base);
        let stated = if follows {
            moved
        } else {
            Some(layout.to_json())
        };
        let mut metadata: BTreeMap<_, _> = stated
            .into_iter()
            .map(|layout| (LAYOUT_KEY.to_owned(), layout))
            .collect();
        // R-PUB-07: each attempt makes another file, even of the same link.
        metadata.insert(
            NONCE_KEY.to_owned(),
            format!("{:032x}", rand::random::<u128>()),
        );
        let work = total_bytes(base.state.tensors().iter().chain(tensors));
        let progress = InPhase::begin(observer, Phase::Compare, work);

        let file = unfinished::file(place);
        let file =
            file.map_err(|error| Error::io("creating a temporary file", error).in_file(place))?;
        let mut out = HashingWriter {
            file: BufWriter::new(file),
            hasher: blake3::Hasher::new(),
        };
        let options = DiffOptions::default()
            .profile(profile)
            .sums(sums)
            .metadata(metadata)
            .progress(&progress);
        let report = diff(
            base.state,
            target.state,
            &options.base_digests(base.digests),
            &mut out,
        )?;
        let digest = Digest(*out.hasher.finalize().as_bytes());
        let file = out
            .file
            .into_inner()
            .map_err(|error| Error::io("writing a temporary file", error.into_error()))?;
        let reference = FileReference {
            digest,
            size: report.bytes,
        };
        let is_in_place =
            sums && (profile == Profile::Local || report.is_direct) && report.patches_alone;
        Ok(Self {
            file,
            reference,
            report,
            is_in_place,
            layout: layout.digest(),
            has_moved,
        })
    }

    /// Stores the link. The caller begins and ends the observer's phase of uploads.
    pub(crate) fn upload(&self, store: &Store, observer: &dyn Observer) -> Result<()> {
        observer.begin(Phase::Upload, self.reference.size);
        store.upload(
            self.file.path(),
            self.reference.name(),
            self.reference.size,
            observer,
        )
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
