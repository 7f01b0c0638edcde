//! The structure of a zstd frame as SPEC section 5 requires it: a parser that was written from that
//! text and shares no code with the library's.

/// Size of the largest window, in bytes.
const MOST_WINDOW: u64 = 1 << 25;
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Result of the walk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Structure {
    /// The rule that is broken first.
    Wrong(&'static str),
    /// The structure is right; `content` is the frame's content if no block is compressed.
    Right { content: Option<Vec<u8>> },
}

/// Walks over a frame whose content should have `raw_length` bytes.
pub(crate) fn of(frame: &[u8], raw_length: u64) -> Structure {
    walk(frame, raw_length).unwrap_or_else(Structure::Wrong)
}

fn walk(frame: &[u8], raw_length: u64) -> Result<Structure, &'static str> {
    let mut rest = frame;
    let mut take = |count: u64| -> Result<&[u8], &'static str> {
        let (taken, others) = usize::try_from(count)
            .ok()
            .and_then(|count| rest.split_at_checked(count))
            .ok_or("R-STR-02")?;
        rest = others;
        Ok(taken)
    };
    require(take(4)? == MAGIC)?;
    let descriptor = take(1)?[0];
    require(descriptor & 3 == 0)?;
    let single_segment = descriptor >> 5 & 1 == 1;
    let window_byte = if single_segment {
        None
    } else {
        Some(take(1)?[0])
    };
    let size = match (descriptor >> 6, single_segment) {
        (0, false) => None,
        (0, true) => Some(number(take(1)?)),
        (1, _) => Some(number(take(2)?) + 256),
        (2, _) => Some(number(take(4)?)),
        _ => Some(number(take(8)?)),
    };
    let window = match window_byte {
        Some(byte) => (1_u64 << (10 + (byte >> 3))) / 8 * (8 + u64::from(byte & 7)),
        None => size.unwrap_or(0),
    };
    if window > MOST_WINDOW {
        return Err("R-STR-03");
    }
    require(descriptor >> 3 & 1 == 0)?;
    require(size.is_none_or(|size| size == raw_length))?;
    let most = window.min(1 << 17);
    let mut content = Vec::new();
    let mut compressed = 0_u64;
    let mut last = false;
    while !last {
        let header = number(take(3)?);
        last = header & 1 == 1;
        let size = header >> 3;
        require(header >> 1 & 3 != 3 && size <= most)?;
        match header >> 1 & 3 {
            0 => content.extend_from_slice(take(size)?),
            1 => content.extend(std::iter::repeat_n(
                take(1)?[0],
                usize::try_from(size).unwrap(),
            )),
            _ => {
                take(size)?;
                compressed += 1;
            }
        }
        let found = content.len() as u64;
        require(found <= raw_length)?;
    }
    // Compressed blocks cannot yield more; without them, the length must be exact.
    require(raw_length <= content.len() as u64 + compressed * most)?;
    if descriptor >> 2 & 1 == 1 {
        take(4)?;
    }
    require(rest.is_empty())?;
    Ok(Structure::Right {
        content: (compressed == 0).then_some(content),
    })
}

fn require(holds: bool) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err("R-STR-02") }
}

/// Reads a little-endian number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}
