//! From files to files: makes links of models, and builds models from links, including layouts,
//! digests and staging.

use std::path::{Path, PathBuf};

use crate::codec::piece::Profile;
use crate::diff::{DiffOptions, DiffReport};
use crate::error::{Error, Result};
use crate::files::disk::{check_apart, is_same_file, refuse_existing};
use crate::files::file_source::FileSource;
use crate::files::{
    FileOptions, LAYOUT_KEY, Layout, OutputFile, SafetensorsState, StagedSafetensors,
};
use crate::link::LinkReader;
use crate::progress::Progress;
use crate::replay::Replay;
use crate::table::{StateTable, check_sequence};
use crate::tensor::{Digest, MemoryState, State, StateDigests, StateWriter, total_bytes};

/// The result of [`apply`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApplyReport {
    /// State digest of the base.
    pub base: Digest,
    /// Digests of the state that has been built.
    pub target: StateDigests,
    /// Bytes of its tensors.
    pub target_bytes: u64,
    /// Bytes that have been written to disk.
    pub written: u64,
    /// Names of the files that have been copied from the base's directory, since no link carries
    /// them.
    pub copied: Vec<String>,
}

/// Writes to `out` the link from one model to another. Each model is a safetensors file or a
/// directory of them. The link appears when it is complete and on disk. It states the target's
/// layout if that is needed (SPEC section 12), and does not contain other files of the directories.
///
/// # Errors
/// Same errors as [`SafetensorsState::open`], [`diff`](crate::diff()) and [`OutputFile`]; USAGE if
/// `out` is an input, or lies in an input.
pub fn diff(
    base: &Path,
    target: &Path,
    out: &Path,
    options: &FileOptions<'_>,
) -> Result<DiffReport> {
    diff_opened(
        Some(&SafetensorsState::open(base)?),
        &SafetensorsState::open(target)?,
        out,
        options,
    )
}

/// Writes to `out` a link that needs no base, and so contains a whole model. Otherwise works like
/// [`diff`].
///
/// # Errors
/// Same errors as [`diff`].
pub fn snapshot(state: &Path, out: &Path, options: &FileOptions<'_>) -> Result<DiffReport> {
    diff_opened(None, &SafetensorsState::open(state)?, out, options)
}

/// Works like [`diff`] on models that are already open; without a base, like [`snapshot`].
///
/// # Errors
/// Same errors as [`diff`].
pub fn diff_opened(
    base: Option<&SafetensorsState>,
    target: &SafetensorsState,
    out: &Path,
    options: &FileOptions<'_>,
) -> Result<DiffReport> {
    base.into_iter()
        .chain([target])
        .try_for_each(|input| input.check_apart(out))?;
    write_link(base, target, target.layout(), out, options)
}

/// Applies links one after another to a model, or to nothing, and writes the result to `out`. The
/// result is spread over files as the links say, or else like the base; other files of the base's
/// directory are copied. Everything that can be checked without decoding the links is checked
/// first, and the result appears when all of it has been proven and is on disk. Intermediate states
/// are not built.
///
/// # Errors
/// The first check that fails, in the order of SPEC section 10, with the link's file; USAGE if
/// there is no link, or if `out` is a link or part of the base, or contains a link; `out` may be
/// the base itself. Also errors of [`SafetensorsState::open`] and [`StagedSafetensors::create`].
pub fn apply(
    base: Option<&Path>,
    links: &[impl AsRef<Path>],
    out: &Path,
    options: &FileOptions<'_>,
) -> Result<ApplyReport> {
    refuse_existing(out, options.replace)?;
    let links = LinkSequence::open(links, out, options)?;
    let files = base.map(SafetensorsState::open).transpose()?;
    if let Some(files) = files
        .as_ref()
        .filter(|files| !is_same_file(files.path(), out))
    {
        files.check_apart(out)?;
    }
    let base = files.as_ref();
    let checked = links.check(base, options.progress)?;
    let tensors = checked.replay.tensors();
    let staged = StagedSafetensors::create(out, &tensors, &checked.layout, base, options.replace)?;
    let target = checked.build(base, &staged, options.progress)?;
    let copied = staged.copied_files();
    options.progress.advance(0)?;
    let written = staged.commit()?;
    Ok(ApplyReport {
        base: checked.base,
        target,
        target_bytes: total_bytes(&tensors),
        written,
        copied,
    })
}

/// The empty state that a snapshot starts from.
static NOTHING: MemoryState = MemoryState::new();

fn state_of(base: Option<&SafetensorsState>) -> &dyn State {
    base.map_or(&NOTHING, |files| files)
}

fn write_link(
    base: Option<&SafetensorsState>,
    target: &dyn State,
    layout: &Layout,
    out: &Path,
    options: &FileOptions<'_>,
) -> Result<DiffReport> {
    let mut metadata = options.metadata.clone();
    metadata.remove(LAYOUT_KEY);
    if let Some(text) =
        Layout::metadata_value(layout, base.map(SafetensorsState::layout), target.tensors())
    {
        metadata.insert(LAYOUT_KEY.to_owned(), text);
    }
    let mut file = OutputFile::create(out, options.replace)?;
    let bytes = [state_of(base), target].map(|state| total_bytes(state.tensors()));
    bytes
        .iter()
        .for_each(|&bytes| options.progress.expect(bytes));
    let link = DiffOptions::default()
        .profile(options.profile)
        .sums(options.profile == Profile::Local)
        .metadata(metadata)
        .progress(options.progress);
    // An error without a file name comes from writing: errors of reading name their file.
    let report = crate::diff::diff(state_of(base), target, &link, &mut file)
        .map_err(|error| error.in_file(out))?;
    options.progress.advance(0)?;
    file.commit()?;
    Ok(report)
}

/// Links to apply one after another.
struct LinkSequence {
    paths: Vec<PathBuf>,
    readers: Vec<LinkReader<FileSource>>,
}

/// Links that lead from a base to a target, according to their indexes.
struct CheckedLinks<'a> {
    links: &'a LinkSequence,
    replay: Replay<'a, FileSource>,
    base: Digest,
    /// The layout of the target.
    layout: Layout,
}

impl LinkSequence {
    /// Opens links for this output, which must not be one of them.
    fn open(paths: &[impl AsRef<Path>], out: &Path, options: &FileOptions<'_>) -> Result<Self> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        check_apart(out, paths.iter().map(PathBuf::as_path))?;
        let open = |path: &PathBuf| {
            let link =
                FileSource::open(path).and_then(|source| LinkReader::open(source, &options.limits));
            link.map_err(|error| error.in_file(path))
        };
        Ok(Self {
            readers: paths.iter().map(open).collect::<Result<_>>()?,
            paths,
        })
    }

    /// Checks everything that can be checked before anything is decoded: that the links follow one
    /// another, then link by link step 7 of SPEC section 10 and the layout.
    fn check(
        &self,
        base: Option<&SafetensorsState>,
        progress: &dyn Progress,
    ) -> Result<CheckedLinks<'_>> {
        if self.readers.is_empty() {
            return Err(Error::usage("no link to apply"));
        }
        check_sequence(&self.readers.iter().collect::<Vec<_>>())
            .map_err(|error| self.named(error))?;
        progress.expect(total_bytes(state_of(base).tensors()));
        let table = StateTable::of(state_of(base), progress)?;
        let digest = table.digests.state;
        let mut replay =
            Replay::new(table).with_layout(base.map(SafetensorsState::layout).cloned());
        for (link, path) in self.readers.iter().zip(&self.paths) {
            replay.push(link).map_err(|error| error.in_file(path))?;
        }
        let layout = replay
            .layout()
            .cloned()
            .unwrap_or_else(|| Layout::single_file(&[]));
        Ok(CheckedLinks {
            links: self,
            replay,
            base: digest,
            layout,
        })
    }

    /// Names the file of the link that an error is about.
    fn named(&self, error: Error) -> Error {
        match error.link().and_then(|link| self.paths.get(link)) {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

impl CheckedLinks<'_> {
    fn build(
        &self,
        base: Option<&SafetensorsState>,
        out: &impl StateWriter,
        progress: &dyn Progress,
    ) -> Result<StateDigests> {
        progress.expect(self.replay.work());
        self.replay
            .run(state_of(base), out, progress)
            .map_err(|error| self.links.named(error))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::codec::piece::Profile;
    use crate::files::header::file_of;

    /// A directory of two files and a configuration; `byte` is what changes.
    fn model(folder: &Path, name: &str, byte: u8) -> PathBuf {
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        let header = |tensor: &str| {
            format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}}   "#)
        };
        fs::write(
            path.join("a.safetensors"),
            file_of(&header("a"), &[1, byte]),
        )
        .unwrap();
        fs::write(path.join("b.safetensors"), file_of(&header("b"), &[2, 2])).unwrap();
        fs::write(path.join("config.json"), "{}").unwrap();
        path
    }

    fn assert_same(left: &Path, right: &Path, names: &[&str]) {
        for name in names {
            assert_eq!(
                fs::read(left.join(name)).unwrap(),
                fs::read(right.join(name)).unwrap(),
                "{name}"
            );
        }
    }

    /// Counts the work to do, and the work that is done.
    #[derive(Default)]
    struct Count(AtomicU64, AtomicU64);

    impl Progress for Count {
        fn advance(&self, bytes: u64) -> Result<()> {
            self.1.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        }

        fn expect(&self, bytes: u64) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn models_come_back_with_layout_and_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let states = [7, 8, 9].map(|byte| model(folder.path(), &format!("step {byte}"), byte));
        let weights = ["a.safetensors", "b.safetensors"];
        let (count, options) = (Count::default(), FileOptions::default());
        let counted = options.clone().progress(&count);
        let whole = snapshot(&states[0], &at("0"), &counted).unwrap();
        let first = diff(&states[0], &states[1], &at("1"), &counted).unwrap();
        let second = diff(&states[1], &states[2], &at("2"), &counted).unwrap();
        assert_eq!((whole.target_bytes, first.changed), (4, 1));
        assert_eq!(
            (whole.target.state, first.target.state),
            (first.base, second.base)
        );

        let built = apply(None, &["0", "1", "2"].map(at), &at("built"), &counted).unwrap();
        assert_eq!(
            (built.target, built.target_bytes, built.copied.len()),
            (second.target.clone(), 4, 0)
        );
        assert_same(&at("built"), &states[2], &weights);
        let built = apply(
            Some(&states[0]),
            &["1", "2"].map(at),
            &at("copied"),
            &counted,
        )
        .unwrap();
        assert_eq!(
            (built.base, &built.copied[..]),
            (first.base, &["config.json".to_owned()][..])
        );
        assert_same(
            &at("copied"),
            &states[2],
            &[weights[0], weights[1], "config.json"],
        );
        // Headers, tensors, index and configuration: each once.
        let files = fs::read_dir(at("copied"))
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(built.written, files.sum::<u64>());
        assert_eq!(count.0.into_inner(), count.1.into_inner());
    }

    #[test]
    fn the_link_at_fault_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let states = [7, 8, 9].map(|byte| model(folder.path(), &format!("step {byte}"), byte));
        let options = FileOptions::default().profile(Profile::Direct);
        diff(&states[0], &states[1], &at("1"), &options).unwrap();
        diff(&states[1], &states[2], &at("2"), &options).unwrap();
        let refused = |links: &[&str], rule, file: &str| {
            let links: Vec<PathBuf> = links.iter().map(|link| at(link)).collect();
            let error = apply(Some(&states[0]), &links, &at("out"), &options).unwrap_err();
            assert_eq!(
                (error.rule(), error.file()),
                (rule, at(file).to_str()),
                "{error}"
            );
            assert!(!at("out").exists());
        };
        refused(&["2"], Some("R-APP-01"), "2");
        refused(&["1", "1"], Some("R-APP-06"), "1");
        refused(&["1", "2", "1"], Some("R-APP-06"), "1");
        let mut bytes = fs::read(at("2")).unwrap();
        let end = bytes.len() - 1;
        bytes[end] ^= 1;
        fs::write(at("damaged"), bytes).unwrap();
        refused(&["1", "damaged"], Some("R-SEG-01"), "damaged");
        refused(&["1", "missing"], None, "missing");
        assert!(apply(Some(&states[0]), &[] as &[&Path], &at("out"), &options).is_err());
    }

    #[test]
    fn outputs_are_replaced_only_where_that_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let state = model(folder.path(), "state", 1);
        let out = folder.path().join("out");
        fs::write(&out, "precious").unwrap();
        let options = FileOptions::default();
        let error = snapshot(&state, &out, &options).unwrap_err();
        assert_eq!(
            (error.message(), error.file()),
            ("the output exists", out.to_str())
        );
        assert!(
            apply(None, &[&out], &out, &options)
                .unwrap_err()
                .message()
                .contains("exists")
        );
        assert_eq!(fs::read(&out).unwrap(), b"precious");
        let options = options.replace(true);
        snapshot(&state, &out, &options).unwrap();
        // A file that gets no successor is not removed.
        let error = apply(None, &[&out], &state, &options).unwrap_err();
        assert!(error.message().contains("\"config.json\""), "{error}");
        fs::remove_file(state.join("config.json")).unwrap();
        apply(None, &[&out], &state, &options).unwrap();
        // An observer of the progress can stop all of it, even at the very end.
        let stop = |bytes| {
            if bytes == 0 {
                Err(Error::usage("stopped"))
            } else {
                Ok(())
            }
        };
        let before = fs::read(&out).unwrap();
        let stopped = snapshot(
            &state,
            &out,
            &options.clone().profile(Profile::Direct).progress(&stop),
        )
        .unwrap_err();
        assert_eq!(
            (stopped.message(), fs::read(&out).unwrap()),
            ("stopped", before)
        );
    }
}
