//! Damage: every flipped bit and every truncation of small links is refused with a class and
//! without a panic, and the base does not change. Broken content behind valid checksums is refused,
//! too.

use crate::states::{PROFILES, link, noise, open, special_pair};
use deltachain::tensor::{Dtype, MemoryState};
use deltachain::{Error, ErrorClass, Limits, LinkReader, Profile, Replay, StateTable, apply};

/// Opens, checks and applies a link; returns the result or the refusal.
fn verdict(base: &MemoryState, file: &[u8]) -> Result<MemoryState, Error> {
    apply(base, &LinkReader::open(file, &Limits::default())?)
}

fn small_links() -> Vec<(MemoryState, Vec<u8>)> {
    let (base, target) = special_pair();
    let mut links: Vec<_> = PROFILES
        .iter()
        .map(|&profile| (base.clone(), link(&base, &target, profile)))
        .collect();
    links.push((
        MemoryState::new(),
        link(&MemoryState::new(), &target, Profile::Direct),
    ));
    links.push((base.clone(), link(&base, &base, Profile::Compact)));
    links
}

#[test]
fn every_flipped_bit_is_refused() {
    for (base, file) in small_links() {
        let before = base.clone();
        for bit in 0..8 * file.len() {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = verdict(&base, &damaged).unwrap_err();
            let expected = match bit / 8 {
                0..8 => ErrorClass::NotDcf,
                _ => ErrorClass::Corrupt,
            };
            assert_eq!(error.class(), expected, "bit {bit}: {error}");
            assert!(
                error.rule().is_some() && error.offset().is_some(),
                "bit {bit}: {error}"
            );
        }
        assert_eq!(base, before);
    }
}

#[test]
fn every_truncation_and_extension_is_refused() {
    for (base, file) in small_links() {
        for length in 0..file.len() {
            let error = verdict(&base, &file[..length]).unwrap_err();
            assert_eq!(
                error.class(),
                ErrorClass::Truncated,
                "{length} bytes: {error}"
            );
        }
        let longer = [file.as_slice(), &[0]].concat();
        assert_eq!(
            verdict(&base, &longer).unwrap_err().rule(),
            Some("R-HDR-10")
        );
    }
}

#[test]
fn of_several_bad_segments_the_first_in_the_file_is_told() {
    let mut target = MemoryState::new();
    target.insert("a", Dtype::I64, &[2], noise(1, 16)).unwrap();
    target.insert("b", Dtype::U8, &[9], noise(2, 9)).unwrap();
    target.insert("c", Dtype::BF16, &[9], noise(3, 18)).unwrap();
    let whole = link(&MemoryState::new(), &target, Profile::Direct);
    let reader = open(&whole);
    let first_of = |number: usize| reader.parts(number)[0].entry;
    assert_eq!(
        [0, 1, 2].map(first_of),
        [1, 2, 0],
        "the order of tensors and segments has changed"
    );
    let end = whole.len();
    let lengths: Vec<usize> = reader
        .index()
        .segments
        .iter()
        .map(|segment| usize::try_from(segment.stored_length).unwrap())
        .collect();
    let begins = [
        end - lengths[0] - lengths[1] - lengths[2],
        end - lengths[1] - lengths[2],
        end - lengths[2],
    ];
    for (damaged, reported) in [
        (&[2][..], 2),
        (&[1], 1),
        (&[0, 2], 0),
        (&[1, 2], 1),
        (&[0, 1, 2], 0),
    ] {
        let mut file = whole.clone();
        damaged.iter().for_each(|&number| file[begins[number]] ^= 1);
        let reader = open(&file);
        let mut patches = reader.patches(|_| true, None);
        let error = patches.find_map(Result::err).unwrap();
        assert_eq!(
            (error.rule(), error.section()),
            (Some("R-SEG-01"), Some(format!("segment {reported}")))
        );
        assert!(patches.next().is_none());
        // If only one tensor is selected, only its segment counts.
        let error = reader
            .patches(|name| name == "a", None)
            .find_map(Result::err);
        let expected = damaged.contains(&2).then(|| "segment 2".to_owned());
        assert_eq!(error.and_then(|error| error.section()), expected);
    }
}

/// Corrects the checksums of a file with an uncompressed index whose content was changed.
fn reseal(file: &mut [u8]) {
    let stored =
        usize::try_from(u64::from_le_bytes(file[88..96].try_into().unwrap())).unwrap_or(usize::MAX);
    if let Some(index) = file.get(128..128_usize.saturating_add(stored)) {
        let crc = crc32fast::hash(index);
        file[120..124].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32fast::hash(&file[..124]);
    file[124..128].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn changed_content_behind_good_checksums_never_passes_as_right() {
    for (base, file) in small_links() {
        let target = verdict(&base, &file).unwrap();
        let mut accepted = 0;
        for at in 8..file.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut changed = file.clone();
                if changed[at] == value || (120..128).contains(&at) {
                    continue;
                }
                changed[at] = value;
                reseal(&mut changed);
                // A few changes only say the same in another way, for example by setting an empty
                // tensor instead of patching it: then the digests match.
                if let Ok(state) = verdict(&base, &changed) {
                    assert_eq!(state, target, "byte {at} = {value}");
                    accepted += 1;
                }
            }
        }
        // The four bytes of compatible features accept any of the values; otherwise almost nothing
        // may pass.
        assert!(accepted <= 4 * 5 + 5, "{accepted} changes passed");
    }
}

#[test]
fn a_wrong_base_is_refused_before_anything_is_written() {
    let (base, target) = special_pair();
    let file = link(&base, &target, Profile::Compact);
    let reader = open(&file);
    let error = Replay::new(StateTable::of(&target, &()).unwrap())
        .push(&reader)
        .unwrap_err();
    assert_eq!(
        (error.class(), error.rule()),
        (ErrorClass::WrongBase, Some("R-APP-01"))
    );
    // Applying the same link again is a wrong base, too.
    let error = apply(&apply(&base, &reader).unwrap(), &reader).unwrap_err();
    assert_eq!(error.class(), ErrorClass::WrongBase);
}

#[test]
fn unknown_features_and_versions_are_unsupported() {
    let (base, target) = special_pair();
    let file = link(&base, &target, Profile::Compact);
    for (at, rule) in [(8, "R-HDR-04"), (12, "R-HDR-05"), (15, "R-HDR-05")] {
        let mut changed = file.clone();
        changed[at] |= 0x40;
        reseal(&mut changed);
        let error = verdict(&base, &changed).unwrap_err();
        assert_eq!(
            (error.class(), error.rule()),
            (ErrorClass::Unsupported, Some(rule))
        );
    }
    let mut changed = file;
    changed[16] = 0xFF;
    reseal(&mut changed);
    assert_eq!(verdict(&base, &changed).unwrap(), target);
}

#[test]
fn limits_of_the_caller_hold() {
    let mut state = MemoryState::new();
    state
        .insert("zeros", Dtype::U8, &[1 << 22], vec![0; 1 << 22])
        .unwrap();
    state
        .insert("noise", Dtype::U8, &[100], noise(1, 100))
        .unwrap();
    let file = link(&MemoryState::new(), &state, Profile::Direct);
    assert!(file.len() < 500);
    let refused = |limits: Limits| {
        LinkReader::open(&file, &limits)
            .unwrap_err()
            .rule()
            .unwrap()
    };
    assert_eq!(
        refused(
            Limits::default()
                .index_bytes(10)
                .index_bytes_per_file_byte(0)
        ),
        "R-LIM-01"
    );
    assert_eq!(
        refused(
            Limits::default()
                .set_bytes(1 << 20)
                .set_bytes_per_file_byte(1024)
        ),
        "R-LIM-04"
    );
    assert_eq!(verdict(&MemoryState::new(), &file).unwrap(), state);
}
