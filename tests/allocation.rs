//! Sizes in a file are claims. Whatever a small file declares, a reader allocates no more than a
//! bound that follows from the file's length and the caller's limits; and changing memory in place
//! allocates nothing. A counting allocator measures this, so this is a program of its own with a
//! single test.

use std::ops::Range;
use std::time::Instant;

use deltachain::StateSums;
use deltachain::memory::{Alone, Changes, LentState};
use deltachain::tensor::{Dtype, MemoryState, State, StateDigests};
use deltachain::{
    DiffOptions, Error, ErrorClass, Limits, LinkReader, Profile, Replay, StateTable, apply, diff,
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs `work`; also returns the peak of the heap above what was allocated before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let result = work();
    (result, ALLOCATOR.peak_usage().saturating_sub(before) as u64)
}

#[test]
fn small_files_cannot_ask_for_much() {
    damaged_files_cannot();
    files_made_for_it_cannot();
    changing_memory_allocates_nothing();
    changing_memory_of_others_allocates_little();
}

/// Returns, for each segment of a good file with an uncompressed index, the position of its
/// checksum, and its bytes.
fn segments(file: &[u8]) -> Vec<(usize, Range<usize>)> {
    let link = LinkReader::open(file, &Limits::default()).unwrap();
    assert_eq!(link.header().index_stored, link.header().index_raw);
    // Skips the number of metadata entries, which is zero, and the number of segments, both of one
    // byte.
    let mut entry = 128 + 2;
    let mut begin = 128 + usize::try_from(link.header().index_stored).unwrap();
    let mut found = Vec::new();
    for segment in &link.index().segments {
        let length = usize::try_from(segment.stored_length).unwrap();
        // A segment entry: coding, length as a varint, checksum.
        let checksum = entry + 1 + if length < 128 { 1 } else { 2 };
        assert_eq!(file[checksum..checksum + 4], segment.crc.to_le_bytes());
        found.push((checksum, begin..begin + length));
        entry = checksum + 4;
        begin += length;
    }
    found
}

/// Corrects the checksums of a changed file, as far as its index is still in its place.
fn reseal(file: &mut [u8], segments: &[(usize, Range<usize>)], changed: usize) {
    for (checksum, bytes) in segments {
        if bytes.contains(&changed) {
            let crc = crc32fast::hash(&file[bytes.clone()]);
            file[*checksum..*checksum + 4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let stored =
        usize::try_from(u64::from_le_bytes(file[88..96].try_into().unwrap())).unwrap_or(usize::MAX);
    if let Some(bytes) = file.get(128..128_usize.saturating_add(stored)) {
        let crc = crc32fast::hash(bytes);
        file[120..124].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32fast::hash(&file[..124]);
    file[124..128].copy_from_slice(&crc.to_le_bytes());
}

/// Replaces each byte of good files by bytes that are large numbers in some interpretation.
fn damaged_files_cannot() {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    for (name, dtype, length) in [
        ("a", Dtype::BF16, 64),
        ("b", Dtype::U8, 40),
        ("c", Dtype::F32, 32),
    ] {
        let old: Vec<u8> = (0..length).collect();
        let new: Vec<u8> = old
            .iter()
            .map(|byte| byte ^ u8::from(byte % 5 == 0))
            .collect();
        let elements = u64::from(length) / dtype.lane_bytes() as u64;
        base.insert(name, dtype, &[elements], old).unwrap();
        target.insert(name, dtype, &[elements], new).unwrap();
    }
    let mut files = Vec::new();
    for (from, profile) in [
        (&base, Profile::Compact),
        (&base, Profile::Direct),
        (&MemoryState::new(), Profile::Direct),
    ] {
        let mut file = Vec::new();
        diff(
            from,
            &target,
            &DiffOptions::default().profile(profile),
            &mut file,
        )
        .unwrap();
        files.push(((*from).clone(), file));
    }
    let limits = Limits::default().index_bytes(1 << 16).set_bytes(1 << 16);
    // The result may have as many bytes as the limit for new tensors, twice while it is compared;
    // everything else is small.
    let bound = 256 << 10;

    let mut worst = 0;
    let mut refused = 0;
    let mut beyond_checksums = 0;
    for (from, file) in &files {
        let segments = segments(file);
        assert!(file.len() < 600 && from.tensors().len() <= 3);
        for at in 8..file.len() {
            for patch in [
                &[0xFF][..],
                &[0x7F],
                &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F],
                &[0xFF; 8],
                &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01],
            ] {
                let mut changed = file.clone();
                let end = (at + patch.len()).min(changed.len());
                changed[at..end].copy_from_slice(&patch[..end - at]);
                reseal(&mut changed, &segments, at);
                let (result, peak) = peak_of(|| {
                    LinkReader::open(&changed, &limits).and_then(|link| apply(from, &link))
                });
                worst = worst.max(peak);
                refused += u32::from(result.is_err());
                beyond_checksums +=
                    u32::from(result.is_err_and(|error| error.class() != ErrorClass::Corrupt));
            }
        }
    }
    println!(
        "peak {worst} bytes, bound {bound}; {refused} files refused, {beyond_checksums} of them \
         behind good checksums"
    );
    assert!(
        refused > 1000 && beyond_checksums > 1000,
        "{refused} {beyond_checksums}"
    );
    assert!(
        worst < bound,
        "a small file made the reader allocate {worst} bytes"
    );
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7F).unwrap() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

/// Makes a stream: its raw and stored lengths, and its stored bytes.
fn stream(raw: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let frame = zstd::bulk::compress(raw, 1).unwrap();
    let stored = if frame.len() < raw.len() {
        frame
    } else {
        raw.to_vec()
    };
    (
        [varint(raw.len() as u64), varint(stored.len() as u64)].concat(),
        stored,
    )
}

fn segment(streams: &[&[u8]]) -> Vec<u8> {
    let (directory, stored): (Vec<_>, Vec<_>) = streams.iter().map(|raw| stream(raw)).unzip();
    [directory.concat(), stored.concat()].concat()
}

/// The entry, without its name, of a patch for a U8 tensor as long as all pieces of a segment may
/// be.
const PATCH_U8: [u8; 9] = [2, 5, 1, 0x80, 0x80, 0x80, 0x10, 0, 0];

/// Makes a link in which each of these segments patches a tensor of 2^25 bytes; `rest` ends the
/// index.
fn link(segments: &[(u8, Vec<u8>)], rest: &[u8]) -> Vec<u8> {
    let mut index = vec![0];
    index.extend(varint(segments.len() as u64));
    for (coding, bytes) in segments {
        index.push(*coding);
        index.extend(varint(bytes.len() as u64));
        index.extend(crc32fast::hash(bytes).to_le_bytes());
    }
    if rest.is_empty() {
        index.extend(varint(segments.len() as u64));
        for number in 1..=u8::try_from(segments.len()).unwrap() {
            let mut entry = PATCH_U8;
            (entry[7], entry[8]) = (number, number);
            index.extend([1, b'@' + number]);
            index.extend(entry);
        }
        // The digests: two pieces per tensor.
        index.resize(index.len() + 64 * segments.len(), 0);
    } else {
        index.extend(rest);
    }
    let (lengths, stored) = stream(&index);
    assert!(!lengths.is_empty());
    let segments: Vec<u8> = segments
        .iter()
        .flat_map(|(_, bytes)| bytes.clone())
        .collect();
    let mut file = b"\x89DCF\r\n\x1a\n".to_vec();
    file.resize(128, 0);
    file[8] = 1;
    for (at, length) in [(88, stored.len()), (96, index.len()), (104, segments.len())] {
        file[at..at + 8].copy_from_slice(&(length as u64).to_le_bytes());
    }
    file[120..124].copy_from_slice(&crc32fast::hash(&stored).to_le_bytes());
    let crc = crc32fast::hash(&file[..124]);
    file[124..].copy_from_slice(&crc.to_le_bytes());
    [file, stored, segments].concat()
}

/// Checks files that are as greedy as the format allows, with default limits, against the bound of
/// memory that `Limits` documents; prints the time of each.
fn files_made_for_it_cannot() {
    const LANES: usize = 1 << 25;
    const SPARSE_ABSOLUTE: u8 = 0b100;
    const SPARSE_SMALL: u8 = 0b1_0100;
    let table = |coding: u8, parameter: u8, count: u64| {
        let widths: &[u8] = if coding == SPARSE_SMALL { &[8] } else { &[] };
        // One context, two pieces.
        [&[1, parameter][..], widths, &varint(count), &varint(count)].concat()
    };
    let half = LANES as u64 / 2;
    let zeros = vec![0; LANES];
    let ones = vec![0xFF; LANES];
    // Every gap is escaped, with escapes as long as the limit allows.
    let gap_escapes = [0xFF, 0xFF, 0xFF, 1].repeat(LANES);
    let bitmap = segment(&[
        &table(SPARSE_ABSOLUTE, 32, half),
        &ones[..LANES / 8],
        &[],
        &[],
        &[],
        &zeros,
    ]);
    let gaps = segment(&[
        &table(SPARSE_ABSOLUTE, 0, half),
        &[],
        &[],
        &zeros,
        &[],
        &zeros,
    ]);
    let no_gaps = segment(&[&table(SPARSE_ABSOLUTE, 0, half), &[], &[], &[], &[], &[]]);
    let escapes = segment(&[
        &table(SPARSE_ABSOLUTE, 23, half),
        &[],
        &vec![0; LANES / 8 * 23],
        &ones,
        &gap_escapes,
        &[],
    ]);
    let small = segment(&[
        &table(SPARSE_SMALL, 32, half),
        &ones[..LANES / 8],
        &[],
        &[],
        &[],
        &zeros[..LANES / 8],
        &ones,
        &vec![0x7F; LANES],
    ]);
    // A patch of 2^60 bytes, 2^24 pieces of which name no segment; and tensor entries that do not
    // exist.
    let huge_tensor = [
        &[1, 1, b'a', 2, 5, 1][..],
        &varint(1 << 60),
        &vec![0; 1 << 24],
    ]
    .concat();
    let many_tensors = [&varint(1 << 24)[..], &vec![0; 1 << 25]].concat();
    let removals: Vec<u8> = (0..1_u32 << 20)
        .flat_map(|n| [&[5][..], format!("{n:05x}").as_bytes(), &[0]].concat())
        .collect();
    let removals = [varint(1 << 20), removals].concat();
    // Tensors with entries as short as possible: scalars that no segment changes, without digests.
    // Then tensors that each have another dtype, and a piece in a segment that they share.
    let numbers = || {
        (0..1_u32 << 20)
            .map(|n| [7, 14, 21].map(|bits| u8::try_from(n >> (21 - bits) & 0x7F).unwrap()))
    };
    let scalars: Vec<u8> = numbers()
        .flat_map(|name| [&[3][..], &name, &[1, 5, 0, 0]].concat())
        .collect();
    let scalars = [varint(1 << 20), scalars].concat();
    let dtypes = (0..1_u32 << 16).zip(numbers()).flat_map(|(n, name)| {
        let [low, high, ..] = n.to_le_bytes();
        let description = [
            255,
            2,
            b'A' + high % 16,
            b'A' + high / 16,
            low.max(1),
            1,
            0,
            0,
        ];
        [&[3][..], &name, &[2], &description, &[1, 8, 1]].concat()
    });
    let dtypes = [varint(1 << 16), dtypes.collect()].concat();

    let files = [
        (
            "bitmap of ones",
            link(&[(SPARSE_ABSOLUTE, bitmap.clone())], &[]),
        ),
        (
            "four such bitmaps",
            link(&vec![(SPARSE_ABSOLUTE, bitmap); 4], &[]),
        ),
        ("all lanes by gaps", link(&[(SPARSE_ABSOLUTE, gaps)], &[])),
        (
            "gaps that are not there, 50 times",
            link(&vec![(SPARSE_ABSOLUTE, no_gaps); 50], &[]),
        ),
        ("gap escapes", link(&[(SPARSE_ABSOLUTE, escapes)], &[])),
        ("magnitude escapes", link(&[(SPARSE_SMALL, small)], &[])),
        ("a tensor of 2^60 bytes", link(&[], &huge_tensor)),
        ("2^24 tensors", link(&[], &many_tensors)),
        ("2^20 removals", link(&[], &removals)),
        ("2^20 scalars", link(&[], &scalars)),
        ("2^16 dtypes", link(&[(0, Vec::new())], &dtypes)),
    ];
    let limits = Limits::default();
    let threads = rayon::current_num_threads() as u64;
    for (name, file) in files {
        let length = file.len() as u64;
        let start = Instant::now();
        let (result, peak) =
            peak_of(|| -> Result<(), Error> { LinkReader::open(&file, &limits)?.verify(&()) });
        let time = start.elapsed();
        let bound = limits.memory_to_decode(length, threads);
        let verdict = result.map_or_else(
            |error| error.rule().unwrap_or_default().to_owned(),
            |()| "valid".to_owned(),
        );
        println!(
            "{name:34} {length:8} bytes: {verdict:9} peak {:5} MiB, bound {:6} MiB, {time:?}",
            peak >> 20,
            bound >> 20
        );
        assert!(
            peak <= bound,
            "{name}: {length} bytes made the reader allocate {peak}, at most {bound}"
        );
        assert!(
            length > 1024 || peak < 1 << 30,
            "{name}: {length} bytes made the reader allocate {peak}"
        );
    }
}

/// Prepared patches are exchanged without the allocator, which could fail while serving is paused.
fn changing_memory_allocates_nothing() {
    let state = |number: u8, own: &str| {
        let mut state = MemoryState::new();
        let sparse = (0..1 << 16)
            .map(|byte| if byte % 400 == 0 { number } else { 0 })
            .collect();
        state
            .insert("sparse", Dtype::BF16, &[1 << 15], sparse)
            .unwrap();
        state
            .insert("dense", Dtype::F32, &[1 << 12], vec![number; 1 << 14])
            .unwrap();
        state
            .insert(own, Dtype::U8, &[1 << 12], vec![number; 1 << 12])
            .unwrap();
        state
    };
    let base = state(1, "removed");
    let target = state(2, "new");
    let mut file = Vec::new();
    diff(&base, &target, &DiffOptions::default(), &mut file).unwrap();
    let link = LinkReader::open(&file, &Limits::default()).unwrap();
    let digests = StateDigests::of(&base, &()).unwrap();
    let mut replay = Replay::new(StateTable {
        tensors: base.tensors().to_vec(),
        digests,
    });
    replay.push(&link).unwrap();
    let mut set = replay.patches(&base, &base, u64::MAX, &()).unwrap();
    assert!(set.runs().len() == 2 && set.whole_tensors().count() == 1);

    let mut memory = base.clone();
    let mut ready = set.stage(&mut memory).unwrap();
    let ((), peak) = peak_of(|| {
        ready.write().unwrap();
        ready.put_back().unwrap();
        ready.write().unwrap();
    });
    assert_eq!((peak, memory), (0, target));
}

/// Verified changes of caller-provided memory are written with room for a few lanes, however many
/// there are, and undone without any.
fn changing_memory_of_others_allocates_little() {
    let state = |number: u8| {
        let mut state = MemoryState::new();
        let sparse = (0..1 << 23)
            .map(|byte| if byte % 40 == 0 { number } else { 0 })
            .collect();
        state
            .insert("sparse", Dtype::BF16, &[1 << 22], sparse)
            .unwrap();
        state
            .insert("dense", Dtype::F32, &[1 << 20], vec![number; 1 << 22])
            .unwrap();
        state
    };
    let base = state(1);
    let target = state(2);
    let mut file = Vec::new();
    diff(
        &base,
        &target,
        &DiffOptions::default().profile(Profile::Local).sums(true),
        &mut file,
    )
    .unwrap();
    let link = LinkReader::open(&file, &Limits::default()).unwrap();
    let (table, sums) = StateSums::hashed(&base, &()).unwrap();
    let mut replay = Replay::new(table).with_sums(sums);
    replay.push(&link).unwrap();
    let mut own: Vec<_> = base
        .iter()
        .map(|(info, data)| (info.clone(), data.to_vec()))
        .collect();
    let mut memory = LentState::new(
        own.iter_mut()
            .map(|(info, data)| (info.clone(), data.as_mut_slice())),
    )
    .unwrap();
    let mut changes = Changes::new(u64::MAX);
    replay
        .in_place(&mut memory, &mut changes, &Alone, &())
        .unwrap();
    assert!(changes.lanes() > 1 << 20);
    let ((), written) = peak_of(|| changes.write(&mut memory).unwrap());
    assert_eq!(MemoryState::copy_of(&memory).unwrap(), target);
    let ((), undone) = peak_of(|| changes.put_back(&mut memory).unwrap());
    assert_eq!(MemoryState::copy_of(&memory).unwrap(), base);
    assert!(written <= 16 << 10 && undone == 0, "{written} {undone}");
}
