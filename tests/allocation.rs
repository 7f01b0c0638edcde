//! Sizes in a file are claims: whatever a small file says, reading it allocates no more than a bound that follows from its
//! length and the caller's limits. Measured with a counting allocator, hence a program of its own with a single test.

use std::ops::Range;

use deltachain::tensor::{Dtype, MemoryState, State};
use deltachain::{DiffOptions, ErrorClass, Limits, LinkReader, Profile, apply, diff};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// For each segment of a good file, whose index is stored as it is: where its checksum stands, and its bytes.
fn segments(file: &[u8]) -> Vec<(usize, Range<usize>)> {
    let link = LinkReader::open(file, &Limits::default()).unwrap();
    assert_eq!(link.header().index_stored, link.header().index_raw);
    // No metadata, then the number of segments, both of one byte.
    let mut entry = 128 + 2;
    let mut begin = 128 + usize::try_from(link.header().index_stored).unwrap();
    let mut found = Vec::new();
    for segment in &link.index().segments {
        let length = usize::try_from(segment.stored_length).unwrap();
        // Coding, length as a varint, checksum.
        let checksum = entry + 1 + if length < 128 { 1 } else { 2 };
        assert_eq!(file[checksum..checksum + 4], segment.crc.to_le_bytes());
        found.push((checksum, begin..begin + length));
        entry = checksum + 4;
        begin += length;
    }
    found
}

/// Puts right checksums on a changed file, as far as its index still is where it was.
fn reseal(file: &mut [u8], segments: &[(usize, Range<usize>)], changed: usize) {
    for (checksum, bytes) in segments {
        if bytes.contains(&changed) {
            let crc = crc32fast::hash(&file[bytes.clone()]);
            file[*checksum..*checksum + 4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let stored = usize::try_from(u64::from_le_bytes(file[88..96].try_into().unwrap())).unwrap_or(usize::MAX);
    if let Some(bytes) = file.get(128..128_usize.saturating_add(stored)) {
        let crc = crc32fast::hash(bytes);
        file[120..124].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32fast::hash(&file[..124]);
    file[124..128].copy_from_slice(&crc.to_le_bytes());
}

/// Peak of the heap above what is allocated already, while `work` runs.
fn peak(work: impl FnOnce()) -> usize {
    let before = dhat::HeapStats::get();
    let profiled_max = before.max_bytes;
    work();
    let after = dhat::HeapStats::get();
    // The counter only knows the peak since the start; no call before may have gone higher.
    if after.max_bytes > profiled_max { after.max_bytes - before.curr_bytes } else { 0 }
}

#[test]
fn small_files_cannot_ask_for_much() {
    let (mut base, mut target) = (MemoryState::new(), MemoryState::new());
    for (name, dtype, length) in [("a", Dtype::BF16, 64), ("b", Dtype::U8, 40), ("c", Dtype::F32, 32)] {
        let old: Vec<u8> = (0..length).collect();
        let new: Vec<u8> = old.iter().map(|byte| byte ^ u8::from(byte % 5 == 0)).collect();
        let elements = u64::from(length) / dtype.lane_bytes() as u64;
        base.insert(name, dtype, &[elements], old).unwrap();
        target.insert(name, dtype, &[elements], new).unwrap();
    }
    let mut files = Vec::new();
    for (from, profile) in [(&base, Profile::Compact), (&base, Profile::Direct), (&MemoryState::new(), Profile::Direct)]
    {
        let mut file = Vec::new();
        diff(from, &target, &DiffOptions { profile, ..DiffOptions::default() }, &mut file).unwrap();
        files.push(((*from).clone(), file));
    }
    let mut limits = Limits::default();
    (limits.index_bytes, limits.set_bytes) = (1 << 16, 1 << 16);
    // The result may have as many bytes as the limit for new tensors, twice while it is compared; the rest is small.
    let bound = 256 << 10;

    let _profiler = dhat::Profiler::builder().testing().build();
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
                worst = worst.max(peak(|| {
                    let result = LinkReader::open(&changed, &limits).and_then(|link| apply(from, &link));
                    refused += u32::from(result.is_err());
                    beyond_checksums += u32::from(result.is_err_and(|error| error.class() != ErrorClass::Corrupt));
                }));
            }
        }
    }
    println!(
        "peak {worst} bytes, bound {bound}; {refused} files refused, {beyond_checksums} of them behind good checksums"
    );
    assert!(refused > 1000 && beyond_checksums > 1000, "{refused} {beyond_checksums}");
    assert!(worst < bound, "a small file made the reader allocate {worst} bytes");
}
