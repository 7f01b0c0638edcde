//! Makes frames, with libzstd or from blocks, and then damages their structure or their compressed
//! blocks.

use std::io::Write as _;

use fastrand::Rng;
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder;

pub(crate) const RAW: u32 = 0;
pub(crate) const RLE: u32 = 1;
pub(crate) const COMPRESSED: u32 = 2;
const RESERVED: u32 = 3;
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const CHECKSUM: u8 = 1 << 2;
const SINGLE_SEGMENT: u8 = 1 << 5;

/// A frame taken apart; its fields may contradict each other.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    magic: [u8; 4],
    descriptor: u8,
    window: Vec<u8>,
    size: Vec<u8>,
    blocks: Vec<Block>,
    checksum: Vec<u8>,
    after: Vec<u8>,
    /// True if the content of compressed blocks may break RFC 8878. It cannot if they are as
    /// libzstd made them, in their order, with none missing before them.
    pub(crate) is_doubtful: bool,
}

#[derive(Debug, Clone)]
struct Block {
    last: bool,
    kind: u32,
    size: u32,
    content: Vec<u8>,
}

impl Block {
    /// Makes a block of uncompressed bytes, or of one byte that is repeated.
    fn plain(rng: &mut Rng, size: u32) -> Self {
        let kind = if size < 40 && rng.bool() { RAW } else { RLE };
        let bytes = if kind == RAW { size } else { 1 };
        Self {
            last: false,
            kind,
            size,
            content: (0..bytes).map(|_| rng.u8(..)).collect(),
        }
    }
}

impl Frame {
    /// Takes a whole frame apart.
    fn of(bytes: &[u8]) -> Self {
        let mut rest = &bytes[4..];
        let mut take = |count: usize| -> Vec<u8> {
            let (taken, others) = rest.split_at(count);
            rest = others;
            taken.to_vec()
        };
        let descriptor = take(1)[0];
        let single_segment = descriptor & SINGLE_SEGMENT != 0;
        let window = take(usize::from(!single_segment));
        let size = take(match descriptor >> 6 {
            0 => usize::from(single_segment),
            flag => 1 << flag,
        });
        let mut blocks = Vec::new();
        while blocks.last().is_none_or(|block: &Block| !block.last) {
            let header = take(3);
            let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
            let last = header & 1 == 1;
            let kind = header >> 1 & 3;
            let size = header >> 3;
            let content = take(if kind == RLE { 1 } else { size as usize });
            blocks.push(Block {
                last,
                kind,
                size,
                content,
            });
        }
        let checksum = take(if descriptor & CHECKSUM == 0 { 0 } else { 4 });
        Self {
            magic: MAGIC,
            descriptor,
            window,
            size,
            blocks,
            checksum,
            after: rest.to_vec(),
            is_doubtful: false,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = [
            &self.magic[..],
            &[self.descriptor],
            &self.window,
            &self.size,
        ]
        .concat();
        for block in &self.blocks {
            let header = u32::from(block.last) | block.kind << 1 | block.size << 3;
            bytes.extend_from_slice(&header.to_le_bytes()[..3]);
            bytes.extend_from_slice(&block.content);
        }
        [bytes, self.checksum.clone(), self.after.clone()].concat()
    }

    /// Sets or removes the content size, and adds a window if the frame then needs one.
    fn set_size(&mut self, size: Option<u64>, rng: &mut Rng) {
        self.descriptor &= 0b0001_1111;
        self.size.clear();
        if let Some(size) = size {
            // The forms that can hold the size; the one-byte form requires a single segment.
            let forms = [
                (0_u8, 0, 1 << 8),
                (1, 256, (1 << 16) + 256),
                (2, 0, 1 << 32),
                (3, 0, u64::MAX),
            ];
            let forms: Vec<_> = forms
                .into_iter()
                .filter(|(_, least, end)| (*least..*end).contains(&size))
                .collect();
            let (flag, least, _) = forms[rng.usize(..forms.len())];
            self.descriptor |= flag << 6;
            if flag == 0 || rng.bool() {
                self.descriptor |= SINGLE_SEGMENT;
            }
            self.size = (size - least).to_le_bytes()[..1 << flag].to_vec();
        }
        if self.descriptor & SINGLE_SEGMENT != 0 {
            self.window.clear();
        } else if self.window.is_empty() {
            self.window = vec![rng.u8(0x58..=0x78)];
        }
    }

    /// Changes one thing about the frame.
    pub(crate) fn damage(&mut self, rng: &mut Rng) {
        let compressed: Vec<usize> = (0..self.blocks.len())
            .filter(|&at| self.blocks[at].kind == COMPRESSED)
            .collect();
        if !compressed.is_empty() && rng.u32(..10) < 6 {
            let block = &mut self.blocks[compressed[rng.usize(..compressed.len())]];
            damage_inside(&mut block.content, rng);
            self.is_doubtful = true;
            block.size = u32::try_from(block.content.len()).unwrap();
        } else if !self.blocks.is_empty() && rng.bool() {
            self.damage_blocks(rng);
        } else {
            self.damage_around(rng);
        }
    }

    fn damage_blocks(&mut self, rng: &mut Rng) {
        let at = rng.usize(..self.blocks.len());
        let block = &mut self.blocks[at];
        let way = rng.u32(..9);
        self.is_doubtful |= !matches!(way, 0 | 6);
        match way {
            0 => block.last = !block.last,
            1 => block.kind = rng.u32(RAW..=RESERVED),
            2 => {
                block.size = if rng.bool() {
                    block.size.saturating_sub(1)
                } else {
                    block.size + 1
                }
            }
            3 => {
                block.size = [
                    0,
                    1,
                    1 << 10,
                    (1 << 10) + 1,
                    1 << 17,
                    (1 << 17) + 1,
                    (1 << 21) - 1,
                ][rng.usize(..7)];
            }
            4 => drop(self.blocks.remove(at)),
            5 => {
                let copy = self.blocks[at].clone();
                self.blocks.insert(
                    at,
                    Block {
                        last: false,
                        ..copy
                    },
                );
            }
            6 => {
                let size = [0, 1, 17, 1000, 1 << 17, (1 << 17) + 1][rng.usize(..6)];
                self.blocks.insert(at, Block::plain(rng, size));
            }
            7 => block.content.truncate(rng.usize(..=block.content.len())),
            _ => block.content.push(rng.u8(..)),
        }
    }

    fn damage_around(&mut self, rng: &mut Rng) {
        let way = rng.u32(..10);
        self.is_doubtful |= matches!(way, 1 | 2);
        match way {
            0 => self.magic[rng.usize(..4)] ^= 1 << rng.u32(..8),
            1 => self.descriptor ^= 1 << rng.u32(..8),
            2 => {
                self.window =
                    vec![[0, 7, 0x38, 0x77, 0x78, 0x79, 0xF8, rng.u8(..)][rng.usize(..8)]];
            }
            3 => self.set_size(
                Some([0, 1, 255, 256, 5000, 1 << 25, (1 << 25) + 1, u64::MAX - 1][rng.usize(..8)]),
                rng,
            ),
            4 => {
                if let Some(byte) = self.size.first_mut() {
                    *byte ^= 1 << rng.u32(..8);
                }
            }
            // The reserved bit and the unused bit.
            5 => self.descriptor ^= [1 << 3, 1 << 4][rng.usize(..2)],
            6 => self.checksum = (0..rng.usize(..=4)).map(|_| rng.u8(..)).collect(),
            7 => {
                self.descriptor |= CHECKSUM;
                self.checksum = vec![rng.u8(..); 4];
            }
            8 => {
                self.after = if rng.bool() {
                    vec![rng.u8(..)]
                } else {
                    self.bytes()
                }
            }
            _ => self.descriptor = (self.descriptor & 0b1111_1100) | rng.u8(1..=3),
        }
    }
}

/// Makes a good frame; also returns its content if it is known, which it is not with added blocks.
pub(crate) fn frame(rng: &mut Rng) -> (Frame, Option<Vec<u8>>) {
    // Few frames are longer than a block.
    let length = if rng.u32(..50) == 0 {
        rng.usize(100_000..300_000)
    } else {
        rng.usize(20..4000)
    };
    let raw = data(length, rng);
    let mut frame = Frame::of(&compress(&raw, rng));
    if rng.u32(..3) > 0 {
        return (frame, Some(raw));
    }
    // Blocks added between those of libzstd do no harm: the next ones can still repeat earlier
    // offsets and tables.
    let mut length = raw.len() as u64;
    for _ in 0..rng.u32(1..4) {
        let size = [0, 1, 5, 300, 1023][rng.usize(..5)];
        frame
            .blocks
            .insert(rng.usize(..frame.blocks.len()), Block::plain(rng, size));
        length += u64::from(size);
    }
    if rng.u32(..4) == 0 {
        let dropped: u32 = frame
            .blocks
            .iter()
            .filter(|block| block.kind == COMPRESSED)
            .map(|block| block.size)
            .sum();
        frame.blocks.retain(|block| block.kind != COMPRESSED);
        if dropped > 0 {
            let size = rng.u32(1..1000);
            frame.blocks.push(Block::plain(rng, size));
        }
        length = frame.blocks.iter().map(|block| u64::from(block.size)).sum();
    }
    let last = frame.blocks.len() - 1;
    frame
        .blocks
        .iter_mut()
        .enumerate()
        .for_each(|(at, block)| block.last = at == last);
    frame.descriptor &= !CHECKSUM;
    frame.checksum.clear();
    // The window fits all blocks; a single segment is as large as the content.
    frame.window = vec![0x58];
    frame.set_size((length > 1100 && rng.bool()).then_some(length), rng);
    (frame, None)
}

fn compress(raw: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), rng.i32(-3..=12)).unwrap();
    encoder
        .set_parameter(CParameter::ChecksumFlag(rng.bool()))
        .unwrap();
    encoder
        .set_parameter(CParameter::WindowLog(rng.u32(10..=18)))
        .unwrap();
    if rng.bool() {
        encoder
            .set_pledged_src_size(Some(raw.len() as u64))
            .unwrap();
        encoder
            .set_parameter(CParameter::ContentSizeFlag(rng.bool()))
            .unwrap();
    }
    let mut rest = raw;
    while !rest.is_empty() {
        let (run, others) = rest.split_at(rng.usize(1..=rest.len()));
        encoder.write_all(run).unwrap();
        rest = others;
        if rng.bool() {
            encoder.flush().unwrap();
        }
    }
    encoder.finish().unwrap()
}

/// Makes bytes with more or less structure.
fn data(length: usize, rng: &mut Rng) -> Vec<u8> {
    let words: Vec<Vec<u8>> = (0..rng.usize(2..40))
        .map(|_| (0..rng.usize(1..30)).map(|_| rng.u8(..)).collect())
        .collect();
    let mut data = Vec::new();
    while data.len() < length {
        match rng.u32(..4) {
            // Symbols of which a few are frequent, as in the streams of links.
            0 => data.extend(
                (0..rng.usize(1..600)).map(|_| rng.u8(..).leading_zeros().to_le_bytes()[0]),
            ),
            1 => data.extend(std::iter::repeat_n(rng.u8(..), rng.usize(1..200))),
            2 => (0..rng.usize(1..40))
                .for_each(|_| data.extend_from_slice(&words[rng.usize(..words.len())])),
            _ => data.extend((0..rng.usize(1..30)).map(|_| rng.u8(..))),
        }
    }
    data.truncate(length);
    data
}

/// Changes the content of a compressed block: anywhere, or in a field on which decoders are known
/// to differ.
fn damage_inside(content: &mut Vec<u8>, rng: &mut Rng) {
    if content.is_empty() {
        return content.push(rng.u8(..));
    }
    let length = content.len();
    let literals = Literals::of(content);
    match (rng.u32(..10), literals) {
        (0, Some(literals)) => {
            literals.set(
                content,
                literals.regenerated.wrapping_add_signed(rng.i64(-2..=2)),
                literals.stored,
            );
        }
        (1, Some(literals)) => {
            literals.set(
                content,
                literals.regenerated,
                literals.stored.wrapping_add_signed(rng.i64(-2..=2)),
            );
        }
        // The end of a stream of literals moves by one byte.
        (2 | 3, Some(literals)) => {
            if let Some(byte) = literals
                .jump_table(content)
                .and_then(|at| content.get_mut(at + 2 * rng.usize(..3)))
            {
                *byte = byte.wrapping_add_signed([-1, 1][rng.usize(..2)]);
            }
        }
        // The number of sequences, or the modes of their symbols.
        (4 | 5, Some(literals)) => {
            let at = literals.end(content);
            match (rng.u32(..4), content.get(at).copied()) {
                (0, Some(count)) => {
                    content[at] = count.wrapping_add_signed([-1, 1][rng.usize(..2)]);
                }
                (1, Some(0)) => drop(content.splice(at..=at, [0x80, 0])),
                (_, Some(count)) => {
                    let at = at + [1, 2, 3][usize::from(count >= 128) + usize::from(count == 255)];
                    if let Some(modes) = content.get_mut(at) {
                        *modes ^= 1 << rng.u32(..8);
                    }
                }
                (_, None) => {}
            }
        }
        // Headers and tables are at the beginning; bit streams are read from the end.
        (6, _) => content[rng.usize(..length.min(16))] ^= 1 << rng.u32(..8),
        (7, _) => content[length - 1 - rng.usize(..length.min(4))] ^= 1 << rng.u32(..8),
        (8, _) => {
            let at = rng.usize(..=length);
            if rng.bool() || at == length {
                content.insert(at, rng.u8(..));
            } else {
                _ = content.remove(at);
            }
        }
        _ => content[rng.usize(..length)] ^= 1 << rng.u32(..8),
    }
}

/// The header of a literals section (RFC 8878, 3.1.1.3.1.1).
#[derive(Debug, Clone, Copy)]
struct Literals {
    kind: u32,
    /// Length of the header in bytes.
    header: usize,
    /// Width of each of the two sizes in bits.
    bits: u32,
    regenerated: u64,
    /// Number of bytes after the header.
    stored: u64,
}

impl Literals {
    fn of(content: &[u8]) -> Option<Self> {
        let mut bytes = [0; 8];
        let available = content.len().min(5);
        bytes[..available].copy_from_slice(&content[..available]);
        let value = u64::from_le_bytes(bytes);
        let kind = u32::from(content.first()? & 3);
        let format = content[0] >> 2 & 3;
        let (header, bits) = match (kind < COMPRESSED, format) {
            (true, 0 | 2) => (1, 5),
            (true, 1) => (2, 12),
            (true, _) => (3, 20),
            (false, 0 | 1) => (3, 10),
            (false, 2) => (4, 14),
            (false, _) => (5, 18),
        };
        let from = if header == 1 { 3 } else { 4 };
        let regenerated = value >> from & ((1 << bits) - 1);
        let stored = match kind {
            RAW => regenerated,
            RLE => 1,
            _ => value >> (from + bits) & ((1 << bits) - 1),
        };
        (available >= header).then_some(Self {
            kind,
            header,
            bits,
            regenerated,
            stored,
        })
    }

    /// Writes other sizes into the header.
    fn set(self, content: &mut [u8], regenerated: u64, stored: u64) {
        let mask = (1_u64 << self.bits) - 1;
        let from = if self.header == 1 { 3 } else { 4 };
        let mut value = u64::from(content[0]) & ((1 << from) - 1) | (regenerated & mask) << from;
        if self.kind >= COMPRESSED {
            value |= (stored & mask) << (from + self.bits);
        }
        content[..self.header].copy_from_slice(&value.to_le_bytes()[..self.header]);
    }

    /// Returns the offset of the jump table, which has the sizes of the first three of four
    /// streams, if there are four.
    fn jump_table(self, content: &[u8]) -> Option<usize> {
        if self.kind < COMPRESSED || content[0] >> 2 & 3 == 0 {
            return None;
        }
        if self.kind > COMPRESSED {
            return Some(self.header);
        }
        let tree = usize::from(*content.get(self.header)?);
        Some(
            self.header
                + 1
                + if tree < 128 {
                    tree
                } else {
                    (tree - 127).div_ceil(2)
                },
        )
    }

    /// Returns the offset at which the sequences begin, or the length of a block that is too short.
    fn end(self, content: &[u8]) -> usize {
        usize::try_from(self.stored)
            .unwrap_or(usize::MAX)
            .saturating_add(self.header)
            .min(content.len())
    }
}
