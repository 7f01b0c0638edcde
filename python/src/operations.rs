//! Makes and applies links, for states in files, in mappings of tensors in memory, or both.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use deltachain::files::{self, FileOptions, LAYOUT_KEY, Layout, OutputFile};
use deltachain::tensor::{Digest, total_bytes};
use deltachain::{
    DiffOptions, DiffReport, Error, FileSource, Limits, LinkReader, Profile, Progress, Replay,
    Result, Source, StateTable, check_sequence,
};
use deltachain_store::Phase;
use pyo3::prelude::*;
use pyo3::{Borrowed, FromPyObject};

use crate::errors::{refused, usage};
use crate::forms::{TensorDigest, forms};
use crate::given::{GivenState, Readable};
use crate::link::{Link, LinkSource, OpenLink};
use crate::settings::Named;
use crate::tensors::TensorRoom;
use crate::work::{How, Threads, WorkPhase, run};

/// Parses a digest.
pub(crate) fn digest_of(py: Python<'_>, text: Option<&str>) -> PyResult<Option<Digest>> {
    let parse = |text| {
        Digest::from_hex(text).ok_or_else(|| usage(py, format!("{text:?} is not a digest"), None))
    };
    text.map(parse).transpose()
}

/// A profile, by its name.
pub(crate) struct ProfileName(pub(crate) Profile);

impl<'a, 'py> FromPyObject<'a, 'py> for ProfileName {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let is_named = |profile: &Profile| {
            object
                .extract::<String>()
                .is_ok_and(|name| name == profile.name())
        };
        let found = [Profile::Compact, Profile::Local, Profile::Direct]
            .into_iter()
            .find(is_named);
        found
            .map(Self)
            .ok_or_else(|| refused(&object, "profile= must be 'compact', 'local' or 'direct'"))
    }
}

/// Checks settings before an operation begins. The conversion of the arguments from Python does the
/// checks.
#[pyfunction]
pub(crate) fn check_settings(threads: Option<Threads>, profiles: Vec<ProfileName>) {
    drop((threads, profiles));
}

/// The figures of a link, with the field names of `deltachain.reports.DiffReport`.
#[derive(IntoPyObject)]
struct LinkFigures {
    base: String,
    target: String,
    bytes: u64,
    target_bytes: u64,
    elements: u64,
    changed: u64,
    tensors: usize,
}

impl LinkFigures {
    fn of(made: &DiffReport) -> Self {
        Self {
            base: made.base.to_string(),
            target: made.target.state.to_string(),
            bytes: made.bytes,
            target_bytes: made.target_bytes,
            elements: made.elements,
            changed: made.changed,
            tensors: made.tensors,
        }
    }
}

/// A new link.
#[derive(IntoPyObject)]
pub(crate) struct MadeLink {
    /// `None` if it was written to a file.
    link: Option<Link>,
    report: LinkFigures,
}

/// The settings of [`diff`].
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct DiffSettings {
    profile: ProfileName,
    metadata: BTreeMap<String, String>,
    /// True if a file may be replaced.
    replace: bool,
}

/// Makes a link between states of any kind: in the file `out`, or in memory if `out` is None.
#[pyfunction]
pub(crate) fn diff(
    py: Python<'_>,
    base: &Bound<'_, PyAny>,
    target: &Bound<'_, PyAny>,
    out: Option<PathBuf>,
    settings: Named<DiffSettings>,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
) -> PyResult<MadeLink> {
    let settings = settings.0;
    let base = GivenState::of(base)?;
    let target = GivenState::of(target)?;
    let how = How {
        threads,
        progress,
        ..How::default()
    };
    let (made, link) = run(py, &how, |watch| {
        let compare = watch.of(Phase::Compare);
        if let (Some(out), GivenState::Path(target)) = (&out, &target)
            && !matches!(base, GivenState::Tensors(_))
        {
            let made = diff_files(&base, target, out, settings, &compare)?;
            return Ok((made, None));
        }
        diff_states(
            &base.open()?,
            &target.open()?,
            out.as_deref(),
            settings,
            &compare,
        )
    })?;
    Ok(MadeLink {
        link: link.map(|link| Link::new(link, None)),
        report: LinkFigures::of(&made),
    })
}

/// Makes a link to files, from files or from the empty state. The link has the layout of the files,
/// as with the command-line tool.
fn diff_files(
    base: &GivenState,
    target: &Path,
    out: &Path,
    settings: DiffSettings,
    compare: &WorkPhase<'_>,
) -> Result<DiffReport> {
    let options = FileOptions::default()
        .profile(settings.profile.0)
        .metadata(settings.metadata)
        .replace(settings.replace)
        .progress(compare);
    if let GivenState::Path(base) = base {
        files::diff(base, target, out, &options)
    } else {
        files::snapshot(target, out, &options)
    }
}

/// Makes a link between states: in the file `out`, or in memory if `out` is `None`.
fn diff_states(
    base: &Readable<'_>,
    target: &Readable<'_>,
    out: Option<&Path>,
    settings: DiffSettings,
    compare: &WorkPhase<'_>,
) -> Result<(DiffReport, Option<LinkReader<LinkSource>>)> {
    let mut metadata = settings.metadata;
    metadata.remove(LAYOUT_KEY);
    // A target in memory has no files, so the result of the link is divided into files like the
    // base.
    if let Some(layout) = target.layout()
        && let Some(text) = Layout::metadata_value(layout, base.layout(), target.state().tensors())
    {
        metadata.insert(LAYOUT_KEY.to_owned(), text);
    }
    compare.expect(total_bytes(base.state().tensors()) + total_bytes(target.state().tensors()));
    let options = DiffOptions::default()
        .profile(settings.profile.0)
        .metadata(metadata)
        .progress(compare);
    let Some(out) = out else {
        let mut bytes = Vec::new();
        let made = deltachain::diff(base.state(), target.state(), &options, &mut bytes)?;
        let link = LinkReader::open(LinkSource(Box::new(bytes)), &Limits::default())?;
        return Ok((made, Some(link)));
    };
    base.check_apart(out)?;
    target.check_apart(out)?;
    let mut file = OutputFile::create(out, settings.replace)?;
    let made = deltachain::diff(base.state(), target.state(), &options, &mut file)
        .map_err(|error| error.in_file(out))?;
    compare.advance(0)?;
    file.commit()?;
    Ok((made, None))
}

/// The figures of an apply to files, with the field names of `deltachain.reports.ApplyReport`.
#[derive(IntoPyObject)]
pub(crate) struct ApplyFigures {
    base: String,
    target: String,
    target_bytes: u64,
    written: u64,
    copied: Vec<String>,
}

/// Applies links in files to a state in files, and writes the result to files, like the
/// command-line tool.
#[pyfunction]
pub(crate) fn apply_files(
    py: Python<'_>,
    base: Option<PathBuf>,
    links: Vec<PathBuf>,
    out: PathBuf,
    replace: bool,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
) -> PyResult<ApplyFigures> {
    let built = run(
        py,
        &How {
            threads,
            progress,
            ..How::default()
        },
        |watch| {
            let build = watch.of(Phase::Build);
            let options = FileOptions::default().replace(replace).progress(&build);
            files::apply(base.as_deref(), &links, &out, &options)
        },
    )?;
    Ok(ApplyFigures {
        base: built.base.to_string(),
        target: built.target.state.to_string(),
        target_bytes: built.target_bytes,
        written: built.written,
        copied: built.copied,
    })
}

/// Applies links to a state in memory or in files. `allocate` gets name, dtype and shape of the
/// target's tensors, and returns a mapping of new tensors of zeros. The target is built into these
/// tensors, and the mapping is returned. Only a returned result is verified; after an error, the
/// tensors may hold anything.
#[pyfunction]
pub(crate) fn apply_tensors<'py>(
    py: Python<'py>,
    base: &Bound<'py, PyAny>,
    links: Vec<Bound<'py, Link>>,
    allocate: &Bound<'py, PyAny>,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if links.is_empty() {
        return Err(usage(py, "no link to apply", None));
    }
    let given = GivenState::of(base)?;
    let links = links
        .iter()
        .map(|link| link.get().opened(py))
        .collect::<PyResult<Vec<OpenLink>>>()?;
    let how = How {
        threads,
        progress,
        ..How::default()
    };
    let (base, table, tensors) = {
        let links = &links;
        run(py, &how, |watch| {
            check_sequence(&links.iter().map(|link| &**link).collect::<Vec<_>>())?;
            let hash = watch.of(Phase::Hash);
            let base = given.open()?;
            hash.expect(total_bytes(base.state().tensors()));
            let table = StateTable::of(base.state(), &hash)?;
            let replay = pushed(table.clone(), links)?;
            let tensors = replay.tensors();
            Ok((base, table, tensors))
        })?
    };
    let made = allocate.call1((forms(&tensors),))?;
    let mut room = TensorRoom::of(&made)?;
    if room.tensors() != tensors {
        return Err(usage(
            py,
            "the tensors that were allocated are not those of the target",
            None,
        ));
    }
    run(py, &how, |watch| {
        let replay = pushed(table, &links)?;
        let build = watch.of(Phase::Build);
        build.expect(replay.work());
        replay.run(base.state(), &room.writer(), &build).map(|_| ())
    })?;
    Ok(made)
}

fn pushed(table: StateTable, links: &[OpenLink]) -> Result<Replay<'_, LinkSource>> {
    let mut replay = Replay::new(table);
    for link in links {
        replay.push(link)?;
    }
    Ok(replay)
}

/// The digest of a state, and the digests of its tensors.
#[derive(IntoPyObject)]
pub(crate) struct DigestedState {
    digest: String,
    tensors: Vec<TensorDigest>,
}

/// Computes the digest of a state of any kind, and the digests of its tensors.
#[pyfunction]
pub(crate) fn digest<'py>(
    py: Python<'py>,
    state: &Bound<'py, PyAny>,
    threads: Option<Threads>,
    progress: Option<Py<PyAny>>,
) -> PyResult<DigestedState> {
    let state = GivenState::of(state)?;
    let table = run(
        py,
        &How {
            threads,
            progress,
            ..How::default()
        },
        |watch| {
            let state = state.open()?;
            let hash = watch.of(Phase::Hash);
            hash.expect(total_bytes(state.state().tensors()));
            StateTable::of(state.state(), &hash)
        },
    )?;
    let digests = table.digests.tensors.iter().copied();
    let tensors = table.tensors.iter().zip(digests);
    Ok(DigestedState {
        digest: table.digests.state.to_string(),
        tensors: tensors
            .map(|(info, digest)| TensorDigest::of(info, digest))
            .collect(),
    })
}

/// Opens a link in the file at `path`, or in `bytes`, which are copied.
#[pyfunction]
pub(crate) fn open_link(
    py: Python<'_>,
    path: Option<PathBuf>,
    bytes: Option<Vec<u8>>,
) -> PyResult<Link> {
    let link = run(py, &How::default(), |_| {
        let open = |source| LinkReader::open(LinkSource(source), &Limits::default());
        let Some(path) = &path else {
            return open(Box::new(bytes.unwrap_or_default()));
        };
        FileSource::open(path)
            .and_then(|source| open(Box::new(source)))
            .map_err(|error| error.in_file(path))
    })?;
    Ok(Link::new(link, path))
}

/// Writes a link to a file, which appears only when it is complete.
#[pyfunction]
pub(crate) fn write_file(
    py: Python<'_>,
    path: PathBuf,
    link: &Bound<'_, Link>,
    replace: bool,
) -> PyResult<()> {
    let link = link.get().opened(py)?;
    run(py, &How::default(), |_| {
        let mut file = OutputFile::create(&path, replace)?;
        let mut buffer = vec![0; 1 << 20];
        let (mut offset, length) = (0, link.header().file_length());
        while offset < length {
            let part = usize::try_from(length - offset)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            link.source().read_at(offset, &mut buffer[..part])?;
            file.write_all(&buffer[..part])
                .map_err(|error| Error::io("writing", error).in_file(&path))?;
            offset += part as u64;
        }
        file.commit()
    })
}
