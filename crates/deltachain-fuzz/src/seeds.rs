//! Seeds for fuzzers: the vectors of `conformance/`, excerpts of the checkpoints in `testdata/`,
//! and links between states that are made here.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use deltachain::files::{LAYOUT_KEY, SafetensorsState};
use deltachain::format::TensorEntry;
use deltachain::tensor::{Dtype, MemoryState, PIECE_BYTES, State};
use deltachain::{Limits, LinkReader, Profile};

use crate::archive::{Archive, COMMIT, HELD, SEALED};
use crate::exchange;
use crate::note;
use crate::raw::segment_inputs;
use crate::seal::Parts;
use crate::states::{CONTEXTS, DESCRIBED, FILE_BASES, MIXED, link};

/// Returns the maximum length of a target's seeds: long ones make a fuzzer slow. Chains hold
/// several links.
pub fn most_bytes(target: &str) -> usize {
    if target == "chain" { 4096 } else { 2048 }
}

/// Maximum number of lanes of each tensor in an excerpt of a checkpoint.
const EXCERPT: u64 = 48;

/// An input for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// The target's name.
    pub target: &'static str,
    /// The file or generator that it comes from.
    pub origin: String,
    /// The input.
    pub bytes: Vec<u8>,
}

/// Minimum number of seeds per target. Fewer mean that vectors or test data are missing, or that
/// this program no longer finds them.
const EXPECTED: &[(&str, usize)] = &[
    ("apply", 2000),
    ("arc2", 2),
    ("chain", 600),
    ("document", 180),
    ("header_index", 700),
    ("in_place", 64),
    ("layout", 40),
    ("link", 700),
    ("note", 12),
    ("pulsept1", 3),
    ("reseal", 700),
    ("reserialise", 700),
    ("roundtrip", 16),
    ("safetensors", 180),
    ("segment", 500),
    ("sequence", 16),
    ("slime", 3),
    ("store", 48),
    ("trl", 2),
];

impl Seed {
    /// Returns a file name that depends only on the input.
    pub fn name(&self) -> String {
        blake3::hash(&self.bytes).to_hex()[..20].to_owned()
    }
}

/// Compares the number of seeds of each target with the expected minimum.
///
/// # Errors
/// A message that names what is missing.
pub fn check_counts(seeds: &[Seed]) -> Result<(), String> {
    for &(target, expected) in EXPECTED {
        let names: BTreeSet<String> = seeds
            .iter()
            .filter(|seed| seed.target == target)
            .map(Seed::name)
            .collect();
        if names.len() < expected {
            return Err(format!(
                "{} different seeds for {target}, expected {expected} or more",
                names.len()
            ));
        }
    }
    Ok(())
}

/// Collects all seeds; `root` is the root of the repository.
///
/// # Errors
/// Errors of reading files.
pub fn collect(root: &Path) -> io::Result<Vec<Seed>> {
    crate::memory::single_threaded();
    let mut seeds = Seeds(Vec::new());
    for bytes in note::seeds() {
        seeds.add("note", "made here", bytes);
    }
    for path in files_below(&root.join("conformance/vectors/documents"))? {
        let origin = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .display()
            .to_string();
        seeds.add("document", &origin, fs::read(&path)?);
    }
    for path in files_below(&root.join("conformance/vectors"))? {
        let origin = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .display()
            .to_string();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("dcf") => seeds.add_link(&origin, &fs::read(&path)?),
            Some("safetensors") => seeds.add("safetensors", &origin, fs::read(&path)?),
            Some("tar") => seeds.add_chain(&origin, &fs::read(&path)?),
            _ => {}
        }
    }
    for names in [
        &["rl3e6_step0", "rl3e6_step1", "rl3e6_step2"][..],
        &["fp8_step0", "fp8_step1"],
        &["f32_step0", "f32_step1"],
    ] {
        let excerpts = names
            .iter()
            .map(|name| excerpt(&root.join("testdata").join(format!("{name}.safetensors"))))
            .collect::<deltachain::Result<Vec<_>>>()
            .map_err(io::Error::other)?;
        for (name, state) in names.iter().zip(&excerpts) {
            seeds.add("safetensors", name, safetensors_of(state));
            seeds.add_links(name, &MemoryState::new(), state);
        }
        for pair in excerpts.windows(2) {
            seeds.add_links(names[0], &pair[0], &pair[1]);
        }
    }
    for (name, (base, target)) in [
        ("mixed", &*MIXED),
        ("contexts", &*CONTEXTS),
        ("described", &*DESCRIBED),
    ] {
        seeds.add_links(name, base, target);
        seeds.add_links(name, &MemoryState::new(), base);
        let mut extended = Parts::of(&link(base, target, Profile::Compact))
            .ok_or_else(|| io::Error::other(name))?;
        extended.extension = b"of a later version".to_vec();
        seeds.add_link(name, &extended.join(false));
    }
    // A tensor of two pieces, whose digests are in the index.
    let mut long = MemoryState::new();
    let bytes = PIECE_BYTES + 1;
    let zeros = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    long.insert("t", Dtype::U8, &[bytes], zeros)
        .map_err(io::Error::other)?;
    seeds.add_links("pieces", &MemoryState::new(), &long);
    for json in [
        r#"{"files":[{"name":null,"metadata":null,"tensors":null}]}"#,
        r#"{"files":[{"name":"a.safetensors","metadata":{"format":"pt"},"tensors":["a","b"]},{"name":"b.safetensors","metadata":null,"tensors":["c"]}]}"#,
        r#"{"files":[{"name":"x.safetensors","metadata":{"k":"\u0000\n😀"},"tensors":null}]}"#,
    ] {
        seeds.add("layout", "text", format!("a b c\n{json}").into_bytes());
    }
    // Structured inputs can be made from any bytes.
    for (number, target) in
        (0..16).flat_map(|number| ["roundtrip", "sequence"].map(|target| (number, target)))
    {
        let mut bytes = vec![0; 64 << (number % 5)];
        fastrand::Rng::with_seed(number).fill(&mut bytes);
        seeds.add(target, "noise", bytes);
    }
    for number in 0..64 {
        let mut bytes = vec![0; 64 << (number % 5)];
        fastrand::Rng::with_seed(number).fill(&mut bytes);
        seeds.add("in_place", "noise", bytes);
    }
    for (target, bytes) in exchange::seeds() {
        seeds.add(target, "our writer", bytes);
    }
    for number in 0..48 {
        let mut bytes = vec![0; 128 << (number % 4)];
        fastrand::Rng::with_seed(number).fill(&mut bytes);
        seeds.add("store", "noise", bytes);
    }
    Ok(seeds.0)
}

struct Seeds(Vec<Seed>);

impl Seeds {
    fn add(&mut self, target: &'static str, origin: &str, bytes: Vec<u8>) {
        if bytes.len() <= most_bytes(target) {
            self.0.push(Seed {
                target,
                origin: origin.to_owned(),
                bytes,
            });
        }
    }

    fn add_links(&mut self, origin: &str, base: &MemoryState, target: &MemoryState) {
        for profile in [Profile::Compact, Profile::Direct] {
            self.add_link(origin, &link(base, target, profile));
        }
    }

    /// Adds a chain for a reader that holds nothing, with links as they are and sealed, and for a
    /// reader that holds the second commit.
    fn add_chain(&mut self, origin: &str, tar: &[u8]) {
        let mut archive = Archive::of(unpacked(tar));
        self.add("chain", origin, archive.to_bytes());
        archive.flags = SEALED;
        self.add("chain", origin, archive.to_bytes());
        if let Some(held) = archive
            .objects
            .iter()
            .filter(|object| object.kind == COMMIT)
            .nth(1)
        {
            (archive.flags, archive.held) = (HELD, held.version);
            self.add("chain", origin, archive.to_bytes());
        }
    }

    /// Adds a link, good or bad, to the seeds of several targets.
    fn add_link(&mut self, origin: &str, file: &[u8]) {
        for target in ["header_index", "link", "reseal"] {
            self.add(target, origin, file.to_vec());
        }
        for base in 0..u8::try_from(FILE_BASES).unwrap_or(u8::MAX) {
            self.add("apply", origin, [&[base], file].concat());
        }
        if let Some(parts) = Parts::of(file) {
            self.add(
                "reserialise",
                origin,
                [&parts.header[..], &parts.index].concat(),
            );
        }
        for input in segment_inputs(file) {
            self.add("segment", origin, input);
        }
        let Ok(link) = LinkReader::open(file, &Limits::default()) else {
            return;
        };
        if let Some(layout) = link.index().metadata.get(LAYOUT_KEY) {
            let names: Vec<&str> = link.index().tensors.iter().map(TensorEntry::name).collect();
            self.add(
                "layout",
                origin,
                format!("{}\n{layout}", names.join(" ")).into_bytes(),
            );
        }
    }
}

/// Reads the files of a plain tar archive.
pub(crate) fn unpacked(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes)
            .trim_end_matches(['\0', ' '])
            .to_owned()
    };
    let mut files = Vec::new();
    let mut rest = archive;
    while let Some((header, content)) = rest.split_first_chunk::<512>() {
        let size = usize::from_str_radix(&text(&header[124..136]), 8)
            .unwrap_or(0)
            .min(content.len());
        if matches!(header[156], 0 | b'0') && header[0] != 0 {
            files.push((text(&header[..100]), content[..size].to_vec()));
        }
        rest = content
            .get(size.next_multiple_of(512)..)
            .unwrap_or_default();
    }
    files
}

/// Lists all files below a folder, in order.
///
/// # Errors
/// Errors of reading folders.
pub fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files_below(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads the first lanes of each tensor of a checkpoint.
fn excerpt(path: &Path) -> deltachain::Result<MemoryState> {
    let whole = SafetensorsState::open(path)?;
    let mut state = MemoryState::new();
    for (number, info) in whole.tensors().iter().enumerate() {
        let lanes = info.lanes().min(EXCERPT);
        let mut data = vec![0; usize::try_from(lanes).unwrap_or(0) * info.dtype().lane_bytes()];
        whole.read(number, 0, &mut data)?;
        state.insert(info.name(), info.dtype(), &[lanes], data)?;
    }
    Ok(state)
}

fn safetensors_of(state: &MemoryState) -> Vec<u8> {
    let views = state.iter().map(|(info, data)| {
        let dtype = safetensors_dtype(info.dtype());
        let shape = info
            .shape()
            .iter()
            .map(|&dimension| usize::try_from(dimension).unwrap_or(0))
            .collect();
        (
            info.name(),
            safetensors::tensor::TensorView::new(dtype, shape, data)
                .expect("the data fits its shape"),
        )
    });
    safetensors::serialize(views, None).expect("a state can be written")
}

fn safetensors_dtype(dtype: Dtype) -> safetensors::Dtype {
    match dtype {
        Dtype::BF16 => safetensors::Dtype::BF16,
        Dtype::F8_E4M3 => safetensors::Dtype::F8_E4M3,
        _ => safetensors::Dtype::F32,
    }
}
