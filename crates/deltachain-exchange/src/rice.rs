//! Positions in PULSEPT1: gaps of 16 bits (version 1), Rice codes (version 2), and Rice codes by
//! the exponent of the old element (version 3). Readers refuse escapes of numbers that need none,
//! wrong padding, and trailing bytes.

use deltachain::Result;

use crate::refusal::malformed;
use crate::tensors::pairs;

/// Marks a gap that does not fit 16 bits.
const LONG_GAP: u16 = 0xffff;
/// Quotients from this one on are written in full.
const LONG_QUOTIENT: u64 = 32;
const MOST_PARAMETER: u32 = 31;
/// Size of a class's record in version 3, in bytes.
const RECORD_BYTES: usize = 10;

fn end_of_stream() -> deltachain::Error {
    malformed("a stream of positions ends early")
}

/// Reads four bytes as a number.
fn take_u32(bytes: &mut &[u8]) -> Result<u32> {
    let (four, rest) = bytes.split_first_chunk().ok_or_else(end_of_stream)?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*four))
}

/// Reads this many bytes.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or_else(end_of_stream)?;
    *bytes = rest;
    Ok(taken)
}

/// Converts a length to a number of the file; a length in memory never exceeds 64 bits.
fn number(length: usize) -> u64 {
    length as u64
}

/// Converts a number of the file, which must fit 32 bits.
pub(crate) fn short(value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| malformed(format!("{value} does not fit 32 bits")))
}

/// Writes positions for version 1: the first one in four bytes, then gaps.
pub(crate) fn write_gaps(places: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * places.len() + 4);
    bytes.extend(places.iter().take(1).flat_map(|first| first.to_le_bytes()));
    for pair in places.windows(2) {
        let gap = pair[1] - pair[0];
        match u16::try_from(gap) {
            Ok(short) if short != LONG_GAP => bytes.extend(short.to_le_bytes()),
            _ => {
                bytes.extend(LONG_GAP.to_le_bytes());
                bytes.extend(gap.to_le_bytes());
            }
        }
    }
    bytes
}

/// Reads `count` ascending positions below `elements`, of version 1.
pub(crate) fn read_gaps(mut bytes: &[u8], count: usize, elements: u64) -> Result<Vec<u32>> {
    let mut places = Vec::new();
    let mut last = 0_u64;
    for place in 0..count {
        if place == 0 {
            last = u64::from(take_u32(&mut bytes)?);
        } else {
            let (two, rest) = bytes.split_first_chunk().ok_or_else(end_of_stream)?;
            bytes = rest;
            let gap = match u16::from_le_bytes(*two) {
                LONG_GAP => {
                    let gap = take_u32(&mut bytes)?;
                    if gap < u32::from(LONG_GAP) {
                        return Err(malformed("a short gap is written as a long one"));
                    }
                    u64::from(gap)
                }
                0 => return Err(malformed("a gap is zero")),
                gap => u64::from(gap),
            };
            last += gap;
        }
        if last >= elements {
            return Err(malformed(format!(
                "position {last} is beyond the tensor's end"
            )));
        }
        places.push(short(last)?);
    }
    if bytes.is_empty() {
        Ok(places)
    } else {
        Err(malformed("bytes follow the positions"))
    }
}

/// A writer of bits, the most significant bit of a byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    /// Number of free bits in the last byte.
    free: u32,
}

impl Bits {
    fn put(&mut self, one: bool) {
        if self.free == 0 {
            self.bytes.push(0);
            self.free = 8;
        }
        self.free -= 1;
        if let (true, Some(last)) = (one, self.bytes.last_mut()) {
            *last |= 1 << self.free;
        }
    }
}

struct BitReader<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl BitReader<'_> {
    fn next(&mut self) -> Result<bool> {
        let byte = self.bytes.get(self.place / 8).ok_or_else(end_of_stream)?;
        let bit = byte >> (7 - self.place % 8) & 1;
        self.place += 1;
        Ok(bit == 1)
    }

    /// True if less than a byte is left, and only bits of this value.
    fn is_at_end(&mut self, padding: bool) -> bool {
        if self.place.div_ceil(8) != self.bytes.len() {
            return false;
        }
        while self.place < 8 * self.bytes.len() {
            if self.next().ok() != Some(padding) {
                return false;
            }
        }
        true
    }
}

/// Returns the numbers of elements between two positions.
fn distances(places: &[u32]) -> impl Iterator<Item = u64> + Clone {
    let ends = std::iter::once(0).chain(places.iter().map(|place| u64::from(*place) + 1));
    places
        .iter()
        .zip(ends)
        .map(|(place, end)| u64::from(*place) - end)
}

/// Returns the parameter with the shortest stream, of those near the optimum for elements that all
/// change with the same probability.
fn parameter(places: &[u32]) -> u32 {
    let Some(last) = places.last() else { return 0 };
    let middle = (u64::from(*last) / number(places.len())).max(1).ilog2();
    (middle.saturating_sub(4)..=(middle + 1).min(MOST_PARAMETER))
        .min_by_key(|parameter| cost(places, *parameter))
        .unwrap_or(middle)
}

/// Counts the bits of the codes with this parameter, less those that all parameters need.
fn cost(places: &[u32], parameter: u32) -> u64 {
    let bits = distances(places).map(|distance| match distance >> parameter {
        quotient if quotient < LONG_QUOTIENT => quotient,
        _ => 2 * LONG_QUOTIENT,
    });
    bits.sum::<u64>() + number(places.len()) * u64::from(parameter)
}

/// Writes positions for version 2: Rice codes of the distances, or nothing if there are no
/// positions.
pub(crate) fn write_rice(places: &[u32]) -> Result<Vec<u8>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let parameter = parameter(places);
    let mut unary = Bits::default();
    let mut rests = Bits::default();
    let mut long = Vec::new();
    for distance in distances(places) {
        let quotient = distance >> parameter;
        (0..quotient.min(LONG_QUOTIENT)).for_each(|_| unary.put(true));
        unary.put(false);
        (0..parameter)
            .rev()
            .for_each(|bit| rests.put(distance >> bit & 1 == 1));
        if quotient >= LONG_QUOTIENT {
            long.extend(short(quotient)?.to_le_bytes());
        }
    }
    while unary.free > 0 {
        unary.put(true);
    }
    let mut bytes = vec![u8::try_from(parameter).unwrap_or(0)];
    bytes.extend(short(number(unary.bytes.len()))?.to_le_bytes());
    bytes.extend([unary.bytes, rests.bytes, long].concat());
    Ok(bytes)
}

/// Reads `count` ascending positions below `elements`, of version 2.
pub(crate) fn read_rice(bytes: &[u8], count: usize, elements: u64) -> Result<Vec<u32>> {
    if count == 0 {
        return if bytes.is_empty() {
            Ok(Vec::new())
        } else {
            Err(malformed("bytes follow the positions"))
        };
    }
    let mut codes = RiceReader::open(bytes, count)?;
    let mut places = Vec::new();
    let mut end = 0_u64;
    for _ in 0..count {
        // A distance is below 2^63 and `end` is at most 2^32: the sum cannot overflow.
        let place = end + codes.next()?;
        if place >= elements {
            return Err(malformed(format!(
                "position {place} is beyond the tensor's end"
            )));
        }
        places.push(short(place)?);
        end = place + 1;
    }
    if codes.is_at_end() {
        Ok(places)
    } else {
        Err(malformed("a stream of positions ends at the wrong place"))
    }
}

/// Reads the Rice codes of distances.
struct RiceReader<'a> {
    parameter: u32,
    /// The quotients in unary.
    unary: BitReader<'a>,
    /// The lower bits of the distances.
    rests: BitReader<'a>,
    /// The long quotients.
    long: &'a [u8],
}

impl<'a> RiceReader<'a> {
    fn open(bytes: &'a [u8], count: usize) -> Result<Self> {
        let (parameter, mut rest) = bytes.split_first().ok_or_else(end_of_stream)?;
        let parameter = u32::from(*parameter);
        if parameter > MOST_PARAMETER {
            return Err(malformed(format!("the Rice parameter is {parameter}")));
        }
        let length = usize::try_from(take_u32(&mut rest)?).unwrap_or(usize::MAX);
        let unary = BitReader {
            bytes: take(&mut rest, length)?,
            place: 0,
        };
        let bits = number(count).saturating_mul(u64::from(parameter));
        let length = usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
        let rests = BitReader {
            bytes: take(&mut rest, length)?,
            place: 0,
        };
        Ok(Self {
            parameter,
            unary,
            rests,
            long: rest,
        })
    }

    /// Reads a distance.
    fn next(&mut self) -> Result<u64> {
        let mut quotient = 0;
        while self.unary.next()? {
            quotient += 1;
            if quotient > LONG_QUOTIENT {
                return Err(malformed("a quotient is longer than any"));
            }
        }
        if quotient == LONG_QUOTIENT {
            quotient = u64::from(take_u32(&mut self.long)?);
            if quotient < LONG_QUOTIENT {
                return Err(malformed("a short quotient is written as a long one"));
            }
        }
        let mut distance = quotient;
        for _ in 0..self.parameter {
            distance = distance << 1 | u64::from(self.rests.next()?);
        }
        Ok(distance)
    }

    fn is_at_end(&mut self) -> bool {
        self.unary.is_at_end(true) && self.rests.is_at_end(false) && self.long.is_empty()
    }
}

/// The class of an element of BF16: its exponent.
fn class_of(bits: u16) -> usize {
    usize::from(bits >> 7 & 0xff)
}

/// A class of version 3: the ranks of its changed elements, or of its unchanged ones if those are
/// fewer.
struct Class {
    ranks: Vec<u32>,
    complement: bool,
}

/// Writes positions for version 3: Rice codes of ranks, by the exponent of the old element.
pub(crate) fn write_classes(places: &[u32], old: &[u8]) -> Result<Vec<u8>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut sizes = [0_u32; 256];
    let mut ranks = vec![Vec::new(); 256];
    let mut next = places.iter().copied().peekable();
    for (place, bits) in (0_u32..).zip(pairs(old)) {
        let class = class_of(bits);
        if next.next_if_eq(&place).is_some() {
            ranks[class].push(sizes[class]);
        }
        sizes[class] += 1;
    }
    let (mut records, mut blocks) = (Vec::new(), Vec::new());
    let mut classes = 0_u16;
    for ((class, size), changed) in (0_u8..=255)
        .zip(sizes)
        .zip(ranks)
        .filter(|(_, changed)| !changed.is_empty())
    {
        let complement = 2 * number(changed.len()) > u64::from(size);
        let ranks = if complement {
            others(&changed, size)
        } else {
            changed
        };
        let block = write_rice(&ranks)?;
        records.extend([class, u8::from(complement)]);
        records.extend(short(number(ranks.len()))?.to_le_bytes());
        records.extend(short(number(block.len()))?.to_le_bytes());
        blocks.extend(block);
        classes += 1;
    }
    Ok([&classes.to_le_bytes()[..], &records, &blocks].concat())
}

/// Returns the numbers below `size` that are not among these.
fn others(ranks: &[u32], size: u32) -> Vec<u32> {
    let mut among = ranks.iter().peekable();
    (0..size)
        .filter(|rank| among.next_if_eq(&rank).is_none())
        .collect()
}

/// Reads `count` ascending positions of version 3.
pub(crate) fn read_classes(mut bytes: &[u8], count: usize, old: &[u8]) -> Result<Vec<u32>> {
    if count == 0 {
        return if bytes.is_empty() {
            Ok(Vec::new())
        } else {
            Err(malformed("bytes follow the positions"))
        };
    }
    let (classes, rest) = bytes.split_first_chunk().ok_or_else(end_of_stream)?;
    bytes = rest;
    let classes = usize::from(u16::from_le_bytes(*classes));
    if classes > 256 {
        return Err(malformed(format!("{classes} classes of exponents")));
    }
    let mut sizes = [0_u64; 256];
    pairs(old).for_each(|bits| sizes[class_of(bits)] += 1);
    let records = take(&mut bytes, classes * RECORD_BYTES)?;
    let mut known: Vec<Option<Class>> = (0..256).map(|_| None).collect();
    let mut last = None;
    let mut total = 0;
    for record in records.as_chunks::<RECORD_BYTES>().0 {
        let record = Record::parse(record)?;
        if last >= Some(record.exponent) || record.flags > 1 {
            return Err(malformed(
                "classes of exponents are not ascending, or have unknown flags",
            ));
        }
        last = Some(record.exponent);
        let class = usize::from(record.exponent);
        total += record.changed(sizes[class])?;
        known[class] = Some(record.read_class(&mut bytes, sizes[class])?);
    }
    if !bytes.is_empty() || total != number(count) {
        return Err(malformed(format!(
            "the classes have {total} positions of {count}, or bytes follow them"
        )));
    }
    changed_places(&known, count, old)
}

/// The facts about a class, as version 3 writes them.
struct Record {
    exponent: u8,
    /// 1 if the ranks are those of the elements that do not change.
    flags: u8,
    /// Number of ranks.
    ranks: u32,
    /// Bytes of the ranks.
    length: u32,
}

impl Record {
    fn parse(record: &[u8; RECORD_BYTES]) -> Result<Self> {
        let [exponent, flags, lengths @ ..] = record;
        let mut lengths = lengths.as_slice();
        Ok(Self {
            exponent: *exponent,
            flags: *flags,
            ranks: take_u32(&mut lengths)?,
            length: take_u32(&mut lengths)?,
        })
    }

    fn complement(&self) -> bool {
        self.flags == 1
    }

    /// Returns the number of elements that change, in a class of `size`.
    fn changed(&self, size: u64) -> Result<u64> {
        let Self {
            exponent, ranks, ..
        } = self;
        let listed = u64::from(*ranks);
        let complement = self.complement();
        let changed = if complement {
            size.checked_sub(listed)
        } else {
            Some(listed)
        };
        let changed = changed
            .filter(|changed| (1..=size).contains(changed) && (2 * changed > size) == complement);
        changed.ok_or_else(|| {
            malformed(format!(
                "the class {exponent} lists {ranks} ranks of {size}"
            ))
        })
    }

    /// Reads the ranks of a class of `size` elements.
    fn read_class(&self, bytes: &mut &[u8], size: u64) -> Result<Class> {
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        let block = take(bytes, length)?;
        let count = usize::try_from(self.ranks).unwrap_or(usize::MAX);
        Ok(Class {
            ranks: read_rice(block, count, size)?,
            complement: self.complement(),
        })
    }
}

/// Computes the positions of the elements that change from their ranks in their classes.
fn changed_places(classes: &[Option<Class>], count: usize, old: &[u8]) -> Result<Vec<u32>> {
    // The elements of each class that have been met, and the ranks that were among them.
    let mut met = [0_u64; 256];
    let mut next = [0_usize; 256];
    let mut places = Vec::with_capacity(count);
    for (place, bits) in (0_u64..).zip(pairs(old)) {
        let number = class_of(bits);
        if let Some(class) = &classes[number] {
            let listed = class
                .ranks
                .get(next[number])
                .is_some_and(|rank| u64::from(*rank) == met[number]);
            next[number] += usize::from(listed);
            met[number] += 1;
            if listed != class.complement {
                places.push(short(place)?);
            }
        }
    }
    Ok(places)
}

/// Writes values for versions 2 and 3: by how much their bits go up or down, one difference for
/// each position.
pub(crate) fn write_steps(values: &[[u16; 2]]) -> Vec<u8> {
    let (mut bytes, mut long) = (Vec::with_capacity(values.len()), Vec::new());
    for [old, new] in values {
        let step = new.wrapping_sub(*old).cast_signed();
        let zigzag = ((step << 1) ^ (step >> 15)).cast_unsigned();
        match u8::try_from(zigzag) {
            Ok(short) if short != u8::MAX => bytes.push(short),
            _ => {
                bytes.push(u8::MAX);
                long.extend(zigzag.to_le_bytes());
            }
        }
    }
    bytes.extend(long);
    bytes
}

/// Reads the differences between the bits of `count` new values and old ones.
pub(crate) fn read_steps(bytes: &[u8], count: usize) -> Result<Vec<u16>> {
    let (short, long) = bytes
        .split_at_checked(count)
        .ok_or_else(|| malformed("a stream of values ends early"))?;
    let wrong = || malformed("a stream of values is not in its canonical form");
    let (long, rest) = long.as_chunks::<2>();
    let mut long = long.iter().map(|two| u16::from_le_bytes(*two));
    let mut steps = Vec::with_capacity(count);
    for byte in short {
        let zigzag = match byte {
            &u8::MAX => long
                .next()
                .filter(|value| *value >= u16::from(u8::MAX))
                .ok_or_else(wrong)?,
            0 => return Err(wrong()),
            byte => u16::from(*byte),
        };
        steps.push((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
    }
    if rest.is_empty() && long.next().is_none() {
        Ok(steps)
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes BF16 elements whose exponents are 0, 1, 2, 0, and so on.
    fn elements(count: u16) -> Vec<u8> {
        (0..count)
            .flat_map(|number| ((number % 3) << 7 | 5).to_le_bytes())
            .collect()
    }

    fn samples() -> Vec<Vec<u32>> {
        let all: Vec<u32> = (0..2000).collect();
        let third = all.iter().copied().filter(|place| place % 3 == 1).collect();
        let most = all.iter().copied().filter(|place| place % 5 != 1).collect();
        vec![
            vec![],
            vec![0],
            vec![1999],
            vec![0, 1, 2, 1999],
            all,
            third,
            most,
        ]
    }

    #[test]
    fn positions_come_back() {
        let old = elements(2000);
        for places in samples() {
            let count = places.len();
            assert_eq!(
                read_gaps(&write_gaps(&places), count, 2000).unwrap(),
                places
            );
            assert_eq!(
                read_rice(&write_rice(&places).unwrap(), count, 2000).unwrap(),
                places
            );
            assert_eq!(
                read_classes(&write_classes(&places, &old).unwrap(), count, &old).unwrap(),
                places
            );
        }
        // Long gaps, and long quotients.
        let far: Vec<u32> = (0..100)
            .chain([70_000, 70_001, 135_536, 135_536 + 65_535, u32::MAX - 1])
            .collect();
        assert_eq!(
            read_gaps(&write_gaps(&far), far.len(), 1 << 32).unwrap(),
            far
        );
        assert_eq!(
            read_rice(&write_rice(&far).unwrap(), far.len(), 1 << 32).unwrap(),
            far
        );
    }

    #[test]
    fn damaged_positions_are_refused_or_are_others() {
        let old = elements(2000);
        for places in samples().into_iter().skip(1) {
            let count = places.len();
            let streams = [
                write_gaps(&places),
                write_rice(&places).unwrap(),
                write_classes(&places, &old).unwrap(),
            ];
            for (kind, stream) in streams.iter().enumerate() {
                let read = |bytes: &[u8], count| match kind {
                    0 => read_gaps(bytes, count, 2000),
                    1 => read_rice(bytes, count, 2000),
                    _ => read_classes(bytes, count, &old),
                };
                assert!(read(&stream[..stream.len() - 1], count).is_err(), "{kind}");
                assert!(
                    read(&[&stream[..], &[0]].concat(), count).is_err(),
                    "{kind}"
                );
                assert!(
                    read(stream, count + 1).is_err() && read(stream, count - 1).is_err(),
                    "{kind}"
                );
                for place in 0..stream.len().min(64) {
                    for bit in 0..8 {
                        let mut damaged = stream.clone();
                        damaged[place] ^= 1 << bit;
                        assert_ne!(
                            read(&damaged, count).ok().as_ref(),
                            Some(&places),
                            "{kind} {place} {bit}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn values_come_back() {
        let values: Vec<[u16; 2]> = (0..=u16::MAX)
            .map(|old| [old, old.wrapping_mul(31) ^ 0x8001])
            .collect();
        let values: Vec<[u16; 2]> = values.into_iter().filter(|[old, new]| old != new).collect();
        let bytes = write_steps(&values);
        let steps = read_steps(&bytes, values.len()).unwrap();
        assert!(
            values
                .iter()
                .zip(steps)
                .all(|([old, new], step)| old.wrapping_add(step) == *new)
        );
        assert!(read_steps(&bytes[1..], values.len()).is_err());
        for wrong in [&[0][..], &[255, 254, 0], &[255, 0], &[255], &[1, 1]] {
            assert!(read_steps(wrong, 1).is_err(), "{wrong:?}");
        }
    }
}
