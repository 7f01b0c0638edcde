//! Compares places with a simple model that has every lane of a tensor, one by one.

use proptest::prelude::*;

use super::*;
use crate::tensor::{DescribedDtype, Dtype, TensorInfo, find};

/// A random number generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }
}

/// Returns the minimum number of neighbouring elements that are whole lanes, and the number of
/// those lanes.
fn unit(dtype: Dtype) -> (u64, u64) {
    let lane_bits = 8 * dtype.lane_bytes() as u64;
    let elements = (1..=64)
        .find(|elements| (elements * dtype.bits()).is_multiple_of(lane_bits))
        .unwrap();
    (elements, elements * dtype.bits() / lane_bits)
}

/// Puts a box of a tensor in random places, from `first` in a row on. Returns the region, and for
/// each lane of the tensor its place, if the box contains it.
pub(crate) fn scattered(
    info: &TensorInfo,
    index: Vec<Range<u64>>,
    (row, first): (usize, u64),
    random: &mut Random,
) -> (Region, Vec<Option<u64>>) {
    let (elements, lanes) = unit(info.dtype());
    let whole = info.shape()[index.len()..].iter().map(|&length| 0..length);
    let mut ranges: Vec<Range<u64>> = index.iter().cloned().chain(whole).collect();
    let mut shape = info.shape().to_vec();
    // Converts the last dimension to lanes.
    if let (Some(range), Some(length)) = (ranges.last_mut(), shape.last_mut()) {
        (range.start, range.end) = (range.start / elements * lanes, range.end / elements * lanes);
        *length = *length / elements * lanes;
    }
    let given_shape: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
    let mut order: Vec<usize> = (0..shape.len()).collect();
    let is_in_a_row = random.below(2) == 0;
    if !is_in_a_row {
        (1..order.len())
            .for_each(|at| order.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap()));
    }
    let mut strides = vec![1; shape.len()];
    let mut reach = 1;
    for &dimension in order.iter().rev() {
        strides[dimension] = reach
            + if is_in_a_row {
                0
            } else {
                random.below(3) * random.below(2)
            };
        reach = strides[dimension] * given_shape[dimension].max(1);
    }
    let mut places = vec![Some(first)];
    for ((range, &length), &stride) in ranges.iter().zip(&shape).zip(&strides) {
        let next = |place: Option<u64>| {
            (0..length).map(move |at| {
                Some(place? + (at - range.start.min(at)) * stride).filter(|_| range.contains(&at))
            })
        };
        places = places.into_iter().flat_map(next).collect();
    }
    let strides = (!is_in_a_row || random.below(2) == 0).then_some(strides);
    (
        Region {
            name: info.name().to_owned(),
            row,
            first,
            shape: given_shape,
            strides,
            index,
        },
        places,
    )
}

fn dtypes() -> Vec<Dtype> {
    let odd = [("ODD", 24, 2), ("TWO", 64, 4), ("NINE", 9, 1)];
    let odd = odd.map(|(name, bits, lane)| {
        Dtype::Described(DescribedDtype::new(name, bits, lane, None).unwrap())
    });
    Dtype::all().chain(odd).collect()
}

/// Makes a tensor with up to four dimensions, and a box of it.
pub(crate) fn tensor_and_box(name: &str, random: &mut Random) -> (TensorInfo, Vec<Range<u64>>) {
    let dtypes = dtypes();
    let dtype = dtypes[usize::try_from(random.below(dtypes.len() as u64)).unwrap()];
    let rank = usize::try_from(random.below(5)).unwrap();
    // Only multiples of `unit` elements are whole lanes.
    let (unit, lanes) = unit(dtype);
    let rank = if (unit, lanes) == (1, 1) {
        rank
    } else {
        rank.max(1)
    };
    let length = |at: usize, random: &mut Random| {
        let length = if random.below(30) == 0 {
            0
        } else {
            1 + random.below(5)
        };
        if at + 1 == rank {
            length * unit
        } else {
            length
        }
    };
    let shape: Vec<u64> = (0..rank).map(|at| length(at, random)).collect();
    let divided = usize::try_from(random.below(rank as u64 + 1)).unwrap();
    let ranges = (0..divided).map(|at| {
        let unit = if at + 1 == rank { unit } else { 1 };
        let start = random.below(shape[at] / unit + 1);
        let end = start + random.below(shape[at] / unit - start + 1);
        if random.below(4) == 0 {
            0..shape[at]
        } else {
            start * unit..end * unit
        }
    });
    let index = ranges.collect();
    (TensorInfo::new(name, dtype, shape).unwrap(), index)
}

fn compare(part: &TensorPart, places: &[Option<u64>], random: &mut Random) {
    let lanes = places.len() as u64;
    let here: Vec<u64> = places.iter().copied().flatten().collect();
    assert_eq!(
        part.range(),
        *here.iter().min().unwrap()..here.iter().max().unwrap() + 1
    );
    assert_eq!(part.count(), here.len() as u64);
    let first = here[0];
    let is_whole = (first..)
        .zip(places)
        .all(|(expected, place)| *place == Some(expected));
    assert_eq!(part.whole(), is_whole.then_some(first));
    for all in [true, false] {
        let begin = if all { 0 } else { random.below(lanes + 1) };
        let end = if all {
            lanes
        } else {
            begin + random.below(lanes - begin + 1)
        };
        let mut found = vec![None; places.len()];
        let mut last = begin;
        for one in part.stretches(begin..end) {
            assert!(one.count > 0 && one.lane >= last && one.lane + one.count <= end);
            last = one.lane + one.count;
            for at in 0..one.count {
                found[usize::try_from(one.lane + at).unwrap()] = Some(one.place + at * one.step);
            }
        }
        let is_asked = |lane: usize| (begin..end).contains(&(lane as u64));
        let expected: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(lane, place)| place.filter(|_| is_asked(lane)))
            .collect();
        assert_eq!(found, expected);
        // Some lane numbers, counted from `begin`.
        let sparse = 1 + random.below(6);
        let numbers: Vec<u32> = (0..u32::try_from(end - begin).unwrap())
            .filter(|_| all || random.below(sparse) == 0)
            .collect();
        let place = |number: u32| places[usize::try_from(begin + u64::from(number)).unwrap()];
        let expected = (0_u32..)
            .zip(&numbers)
            .filter_map(|(at, &number)| Some((at, place(number)?)))
            .unzip();
        assert_eq!(part.find(begin, numbers), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_lane_is_found_where_it_is(seed: u64) {
        let random = &mut Random::new(seed);
        let (info, index) = tensor_and_box("t", random);
        let at = (usize::try_from(random.below(3)).unwrap(), random.below(2) * random.below(1 << 40));
        let (given, places) = scattered(&info, index, at, random);
        let found = Places::new(vec![info.clone()], std::slice::from_ref(&given)).unwrap();
        let parts = found.parts(0);
        if places.iter().all(Option::is_none) {
            prop_assert!(parts.is_empty());
            return Ok(());
        }
        let [part] = parts else { panic!("{parts:?}") };
        let mut elements = given.index.clone();
        elements.extend(info.shape()[elements.len()..].iter().map(|&length| 0..length));
        prop_assert_eq!((part.row(), part.elements()), (at.0, &*elements));
        // The dimensions describe the same lanes as the stretches.
        let lengths: u64 = part.dimensions().map(|(length, ..)| length).product();
        prop_assert_eq!(lengths, places.len() as u64);
        compare(part, &places, random);
        // A part that is the whole tensor is independent; any other part needs the others.
        let is_all = places.iter().all(Option::is_some);
        prop_assert_eq!(found.joins(0, 0).ok(), is_all.then_some(None));
        // Spans describe the same places.
        let here: Vec<u64> = places.iter().copied().flatten().collect();
        let spans = Span::at(3, &here);
        let of_spans = spans.iter().flat_map(|span| {
            assert!(span.row == 3 && span.places.as_ref().unwrap().len() == span.count);
            span.places.as_ref().unwrap().iter().map(|&above| span.first + u64::from(above))
        });
        prop_assert_eq!(of_spans.collect::<Vec<_>>(), here);
        if is_all {
            prop_assert!(Region::whole(&info, 0).strides.is_none());
            let whole = Places::new(vec![info.clone()], &[Region::whole(&info, 5)]).unwrap();
            prop_assert_eq!((whole.parts(0)[0].whole(), whole.parts(0)[0].row()), (Some(0), 5));
        }
    }

    #[test]
    fn covers_have_every_element_once_and_every_part(seed: u64) {
        let random = &mut Random::new(seed);
        let info = TensorInfo::new("t", Dtype::F32, [2 + random.below(5), 1 + random.below(4)]).unwrap();
        let shape = info.shape().to_vec();
        let ranks = 1 + usize::try_from(random.below(4)).unwrap();
        let mut all: Vec<Vec<Vec<Elements>>> = vec![vec![Vec::new()]; ranks];
        // The blocks of a grid, each with some copies.
        let cuts: Vec<Vec<Range<u64>>> = shape.iter().map(|&length| {
            let cut = random.below(length);
            [0..cut, cut..length].into_iter().filter(|range| !range.is_empty()).collect()
        }).collect();
        let mut blocks: Vec<Elements> = Vec::new();
        for rows in &cuts[0] {
            blocks.extend(cuts[1].iter().map(|columns| [rows.clone(), columns.clone()].into()));
        }
        for block in &blocks {
            for _ in 0..=random.below(3) {
                let rank = usize::try_from(random.below(ranks as u64)).unwrap();
                all[rank][0].push(block.clone());
            }
        }
        // Sometimes one process has the whole tensor.
        if random.below(3) == 0 {
            let rank = usize::try_from(random.below(ranks as u64)).unwrap();
            all[rank][0].push(shape.iter().map(|&end| 0..end).collect());
        }
        let places = |rank: usize| {
            let given: Vec<Region> = (0..).zip(&all[rank][0]).map(|(row, part)| Region {
                name: "t".to_owned(),
                row,
                first: 0,
                shape: part.iter().map(|range| range.end - range.start).collect(),
                strides: None,
                index: part.to_vec(),
            }).collect();
            Places::new(vec![info.clone()], &given).unwrap()
        };
        let mut own: Vec<Places> = (0..ranks).map(places).collect();
        for (rank, places) in own.iter_mut().enumerate() {
            let elements: Vec<Elements> = places.parts(0).iter().map(|part| part.elements().into()).collect();
            prop_assert_eq!(&elements, &all[rank][0]);
            places.divide(rank, &all, |_| true).unwrap();
        }
        let count = own[0].covers(0);
        let mut held = vec![vec![0; usize::try_from(shape[0] * shape[1]).unwrap()]; count];
        for places in &own {
            prop_assert_eq!(places.covers(0), count);
            for (number, part) in places.parts(0).iter().enumerate() {
                let covers = places.joins(0, number).unwrap();
                let is_all = part.elements().iter().zip(&shape).all(|(range, &length)| *range == (0..length));
                prop_assert_eq!(covers.is_none(), is_all);
                for &cover in covers.unwrap_or_default() {
                    for row in part.elements()[0].clone() {
                        for column in part.elements()[1].clone() {
                            held[cover][usize::try_from(row * shape[1] + column).unwrap()] += 1;
                        }
                    }
                }
            }
        }
        prop_assert!(held.iter().flatten().all(|&times| times == 1), "{:?}", held);
        // A block is missing, or overlaps another one.
        let is_part = |part: &Elements| part.iter().zip(&shape).any(|(range, &length)| *range != (0..length));
        if blocks.len() > 1 {
            let block = &blocks[usize::try_from(random.below(blocks.len() as u64)).unwrap()];
            let mut without = all.clone();
            without.iter_mut().for_each(|rank| rank[0].retain(|part| part != block));
            let error = own[0].clone().divide(0, &without, |_| true).unwrap_err();
            prop_assert_eq!((error.class(), error.tensor()), (ErrorClass::Usage, Some("t")));
            let mut larger = all.clone();
            let part = larger.iter_mut().flat_map(|rank| &mut rank[0]).find(|part| is_part(part)).unwrap();
            let at = part.iter().zip(&shape).position(|(range, &length)| *range != (0..length)).unwrap();
            if part[at].start > 0 { part[at].start -= 1 } else { part[at].end += 1 }
            // A part that has become the whole tensor is independent, and its old block may have a
            // copy.
            if is_part(part) {
                prop_assert_eq!(own[0].clone().divide(0, &larger, |_| true).unwrap_err().class(), ErrorClass::Usage);
            }
        }
        // No process has a part.
        let none = vec![vec![Vec::new()]; ranks];
        prop_assert!(own[0].clone().divide(0, &none, |_| true).is_err());
        prop_assert!(own[0].clone().divide(0, &none, |name| name != "t").is_ok());
    }
}

fn info(dtype: Dtype, shape: &[u64]) -> TensorInfo {
    TensorInfo::new("t", dtype, shape).unwrap()
}

/// Makes a region of a tensor with 4 times 6 elements.
fn given(shape: &[u64], strides: Option<&[u64]>, index: &[(u64, u64)]) -> Region {
    Region {
        name: "t".to_owned(),
        row: 0,
        first: 7,
        shape: shape.to_vec(),
        strides: strides.map(<[u64]>::to_vec),
        index: index.iter().map(|&(start, end)| start..end).collect(),
    }
}

fn refused(dtype: Dtype, shape: &[u64], given: Region) -> Error {
    Places::new(vec![info(dtype, shape)], &[given]).unwrap_err()
}

#[test]
fn what_is_not_that_part_is_refused() {
    let wrong = [
        given(&[6, 4], None, &[]),
        given(&[24], None, &[]),
        given(&[4, 6, 1], None, &[]),
        given(&[4, 6], Some(&[6]), &[]),
        given(&[2, 6], None, &[]),
        given(&[2, 6], None, &[(2, 5)]),
        given(&[2, 6], None, &[(3, 5)]),
        given(&[1, 6], None, &[(3, 2)]),
        given(&[1, 6], None, &[(2, 2)]),
        given(&[4, 6], None, &[(0, 4), (0, 6), (0, 1)]),
        // Sizes that overflow.
        given(&[4, 6], Some(&[u64::MAX, 1]), &[]),
        given(&[u64::MAX, u64::MAX], None, &[]),
        given(&[0, u64::MAX, u64::MAX], None, &[]),
        // Several lanes in the same place.
        given(&[4, 6], Some(&[0, 1]), &[]),
        given(&[4, 6], Some(&[1, 1]), &[]),
        given(&[4, 6], Some(&[5, 1]), &[]),
    ];
    for given in wrong {
        let error = refused(Dtype::BF16, &[4, 6], given.clone());
        assert_eq!(
            (error.class(), error.tensor()),
            (ErrorClass::Usage, Some("t")),
            "{given:?}"
        );
    }
    let other = Region {
        name: "u".to_owned(),
        ..given(&[4, 6], None, &[])
    };
    assert_eq!(refused(Dtype::BF16, &[4, 6], other).tensor(), Some("u"));
    let named = |name: &str| TensorInfo::new(name, Dtype::BF16, [4, 6]).unwrap();
    assert_eq!(
        Places::new(vec![named("b"), named("a")], &[])
            .unwrap_err()
            .tensor(),
        Some("a")
    );
    assert_eq!(
        Places::new(vec![named("a"), named("a")], &[])
            .unwrap_err()
            .tensor(),
        Some("a")
    );
}

#[test]
fn elements_that_are_no_whole_lanes_are_joined() {
    // Elements have six bits: a byte has bits of two rows, but two rows are three bytes.
    let parts = |shape: &[u64], given: Region| {
        let places = Places::new(vec![info(Dtype::F6_E2M3, shape)], &[given]).unwrap();
        places.parts(0)[0]
            .stretches(0..u64::MAX)
            .map(|one| (one.lane, one.place, one.count))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        parts(&[3, 2, 2], given(&[2, 3], Some(&[5, 1]), &[(1, 3)])),
        [(3, 7, 3), (6, 12, 3)]
    );
    assert_eq!(parts(&[3, 2, 2], given(&[3, 3], None, &[])), [(0, 7, 9)]);
    // The dimensions of the whole tensor are joined to one of three lanes.
    assert_eq!(parts(&[2, 2], given(&[3], None, &[])), [(0, 7, 3)]);
    let error = refused(
        Dtype::F6_E2M3,
        &[3, 2, 2],
        given(&[3, 1], None, &[(0, 3), (0, 1)]),
    );
    assert_eq!(
        (error.class(), error.tensor()),
        (ErrorClass::Unsupported, Some("t"))
    );
    assert_eq!(
        refused(Dtype::F6_E2M3, &[2, 2], given(&[3], Some(&[2, 1]), &[])).class(),
        ErrorClass::Usage
    );
    for (dtype, shape, expected) in [
        (Dtype::F4, &[3, 2, 1][..], &[3, 1][..]),
        (Dtype::F6_E3M2, &[5, 2, 2], &[5, 3]),
        (Dtype::F4, &[3, 4], &[3, 2]),
        (Dtype::BF16, &[], &[]),
        (Dtype::F64, &[0, 3], &[0, 3]),
    ] {
        let info = info(dtype, shape);
        let whole = Region::whole(&info, 0);
        assert_eq!(whole.shape, expected);
        let places = Places::new(vec![info.clone()], &[whole]).unwrap();
        assert!(places.parts(0).iter().all(|part| part.whole() == Some(0)));
        assert_eq!(places.parts(0).is_empty(), info.bytes() == 0);
    }
}

#[test]
fn tensors_in_the_same_memory_are_tied() {
    let named = |name: &str, given: &Region| Region {
        name: name.to_owned(),
        ..given.clone()
    };
    let infos: Vec<TensorInfo> = ["a", "b", "c"]
        .iter()
        .map(|name| TensorInfo::new(*name, Dtype::BF16, [4, 6]).unwrap())
        .collect();
    let whole = given(&[4, 6], None, &[]);
    let halves = [
        given(&[2, 6], None, &[(0, 2)]),
        Region {
            first: 19,
            ..given(&[2, 6], None, &[(2, 4)])
        },
    ];
    let elsewhere = Region {
        row: 1,
        ..whole.clone()
    };

    let all = [
        named("a", &elsewhere),
        named("b", &whole),
        named("c", &whole),
    ];
    let places = Places::new(infos.clone(), &all).unwrap();
    assert_eq!(
        [0, 1, 2].map(|tensor| places.tied(tensor)),
        [None, None, Some(1)]
    );
    assert_eq!(
        [find(places.tensors(), "c"), find(places.tensors(), "d")],
        [Some(2), None]
    );
    places.check_ties(|_| Some(1)).unwrap();
    places
        .check_ties(|name| (name == "a").then_some(1))
        .unwrap();
    let error = places.check_ties(|name| Some(name.to_owned())).unwrap_err();
    assert_eq!(
        (error.class(), error.tensor()),
        (ErrorClass::Usage, Some("c"))
    );
    let error = places
        .check_ties(|name| (name != "c").then_some(1))
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage);

    let parts = |name: &str| {
        halves
            .iter()
            .map(|half| named(name, half))
            .collect::<Vec<_>>()
    };
    let all = [parts("a"), parts("c")].concat();
    let places = Places::new(infos.clone(), &all).unwrap();
    assert_eq!(
        [0, 1, 2].map(|tensor| places.tied(tensor)),
        [None, None, Some(0)]
    );
    // Overlaps that are not ties: half of a tensor, another order of dimensions, one copy of two,
    // another dtype, and a tensor that is twice in the same place.
    let transposed = given(&[4, 6], Some(&[1, 4]), &[]);
    for (others, own) in [
        (parts("a"), vec![named("b", &halves[0])]),
        (vec![named("a", &halves[0])], parts("b")),
        (vec![named("a", &whole)], vec![named("b", &transposed)]),
        (
            vec![named("a", &whole), named("b", &whole)],
            vec![named("b", &elsewhere)],
        ),
    ] {
        let error = Places::new(infos.clone(), &[others, own].concat()).unwrap_err();
        assert_eq!(
            (error.class(), error.tensor()),
            (ErrorClass::Usage, Some("b"))
        );
    }
    let mut other = infos.clone();
    other[1] = TensorInfo::new("b", Dtype::F16, [4, 6]).unwrap();
    assert!(Places::new(other, &[named("a", &whole), named("b", &whole)]).is_err());
    assert!(Places::new(infos, &[named("a", &whole), named("a", &whole)]).is_err());
}

#[test]
fn tensors_take_other_shapes_where_all_of_them_is_here() {
    let infos = |shape: &[u64]| vec![info(Dtype::BF16, shape)];
    let mut whole = Places::new(infos(&[4, 6]), &[given(&[4, 6], None, &[])]).unwrap();
    whole.describe(&infos(&[24])).unwrap();
    let [range] = whole.parts(0)[0].elements() else {
        panic!("{:?}", whole.parts(0))
    };
    assert_eq!((whole.tensors(), range), (&*infos(&[24]), &(0..24)));
    assert!(whole.describe(&infos(&[25])).is_err());
    assert!(whole.describe(&[]).is_err());
    let mut half = Places::new(infos(&[4, 6]), &[given(&[2, 6], None, &[(0, 2)])]).unwrap();
    half.describe(&infos(&[4, 6])).unwrap();
    assert_eq!(
        half.describe(&infos(&[24])).unwrap_err().tensor(),
        Some("t")
    );
    assert_eq!(half.tensors(), infos(&[4, 6]));
}

#[test]
fn spans_reach_as_far_as_numbers_do() {
    let far = REACH - 1;
    let places = [0, far, REACH, REACH + 5, 3 * REACH, 2];
    let spans = Span::at(0, &places);
    let found: Vec<_> = spans
        .iter()
        .map(|span| (span.first, span.places.clone().unwrap()))
        .collect();
    let last = u32::try_from(far).unwrap();
    assert_eq!(
        found,
        [
            (0, vec![0, last]),
            (REACH, vec![0, 5]),
            (3 * REACH, vec![0]),
            (0, vec![2])
        ]
    );
}
