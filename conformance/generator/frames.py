"""zstd frames (RFC 8878). `frame` makes one by hand from raw and RLE blocks, whose bytes do not depend on a library;
`compressed` is the output of a real compressor."""
import zstandard

MAGIC = b"\x28\xb5\x2f\xfd"
RAW, RLE, COMPRESSED, RESERVED = 0, 1, 2, 3  # block types
LARGEST_BLOCK = 1 << 17
WINDOW_1K, WINDOW_2M, WINDOW_32M = 0x00, 0x58, 0x78  # window descriptors: exponent - 10 in the upper five bits


def block(kind, size, content, last=False):
    return (int(last) | kind << 1 | size << 3).to_bytes(3, "little") + content


def blocks(data, largest=LARGEST_BLOCK):
    return joined(divided(data, largest))


def joined(pieces):
    """Joins blocks of (type, size, content). The last one is marked as such."""
    return b"".join(block(*piece, last=number == len(pieces)) for number, piece in enumerate(pieces, 1))


def literals(data):
    """A compressed block without sequences: raw literals (RFC 8878, 3.1.1.3)."""
    content = (len(data) << 4 | 0b1100).to_bytes(3, "little") + data + b"\0"
    return COMPRESSED, len(content), content


def run(byte, length):
    """A compressed block without sequences: literals that are one byte, repeated."""
    return COMPRESSED, 5, (length << 4 | 0b1101).to_bytes(3, "little") + byte + b"\0"


def divided(data, largest=LARGEST_BLOCK):
    """The content of a frame: RLE blocks for runs of 16 equal bytes or more, raw blocks for the rest."""
    pieces, literal, position = [], bytearray(), 0

    def flush():
        for start in range(0, len(literal), largest):
            part = bytes(literal[start:start + largest])
            pieces.append((RAW, len(part), part))
        literal.clear()

    while position < len(data):
        run = run_length(data, position)
        if run < 16:
            literal.append(data[position])
            position += 1
            continue
        flush()
        for start in range(0, run, largest):
            pieces.append((RLE, min(largest, run - start), data[position:position + 1]))
        position += run
    flush()
    return pieces or [(RAW, 0, b"")]


def run_length(data, start):
    """Returns how many bytes from `start` on are equal to the first."""
    end, step = start + 1, 1
    while end < len(data):
        if data[end:end + step] == data[start:start + 1] * min(step, len(data) - end):
            end = min(end + step, len(data))
            step *= 2
        elif step > 1:
            step = max(1, step // 4)
        else:
            break
    return end - start


def header(content_size=None, size_bytes=None, window=WINDOW_2M, checksum=False, dictionary=b"", reserved=0, unused=0):
    """Magic and frame header. `window` None: a single segment. `size_bytes` 1, 2, 4 or 8: width of the content size."""
    single = window is None
    if content_size is None:
        flag, field = 0, b""
    else:
        if size_bytes is None:
            size_bytes = 1 if single and content_size < 256 else 4
        flag = {1: 0, 2: 1, 4: 2, 8: 3}[size_bytes]
        field = (content_size - (256 if size_bytes == 2 else 0)).to_bytes(size_bytes, "little")
    id_flag = {0: 0, 1: 1, 2: 2, 4: 3}[len(dictionary)]
    descriptor = flag << 6 | single << 5 | unused << 4 | reserved << 3 | checksum << 2 | id_flag
    return MAGIC + bytes([descriptor]) + (b"" if single else bytes([window])) + dictionary + field


def frame(data, sized=True, checksum=False, window=WINDOW_2M, size_bytes=None):
    """One valid frame that holds `data`."""
    largest = LARGEST_BLOCK
    if window is None:
        largest = min(largest, max(len(data), 1))
    elif window == WINDOW_1K:
        largest = 1024
    head = header(len(data) if sized else None, size_bytes, window, checksum)
    tail = (xxh64(data) & 0xFFFFFFFF).to_bytes(4, "little") if checksum else b""
    return head + blocks(data, largest) + tail


def compressed(data, level=19, checksum=False):
    """Returns the output of libzstd. Only this depends on the pinned version of the package."""
    return zstandard.ZstdCompressor(level=level, write_checksum=checksum, threads=0).compress(data)


def xxh64(data):
    """Returns XXH64 with seed 0: the content checksum of a frame is its low half."""
    p1, p2, p3, p4, p5 = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579,
                          2870177450012600261)
    mask = (1 << 64) - 1

    def rotate(value, by):
        return (value << by | value >> (64 - by)) & mask

    def round_of(accumulator, word):
        return rotate((accumulator + word * p2) & mask, 31) * p1 & mask

    def word_at(position, size):
        return int.from_bytes(data[position:position + size], "little")

    position = 0
    if len(data) >= 32:
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        while position + 32 <= len(data):
            lanes = [round_of(lane, word_at(position + 8 * i, 8)) for i, lane in enumerate(lanes)]
            position += 32
        value = sum(rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & mask
        for lane in lanes:
            value = ((value ^ round_of(0, lane)) * p1 + p4) & mask
    else:
        value = p5
    value = (value + len(data)) & mask
    while position + 8 <= len(data):
        value = (rotate(value ^ round_of(0, word_at(position, 8)), 27) * p1 + p4) & mask
        position += 8
    if position + 4 <= len(data):
        value = (rotate(value ^ word_at(position, 4) * p1 & mask, 23) * p2 + p3) & mask
        position += 4
    for byte in data[position:]:
        value = rotate(value ^ byte * p5 & mask, 11) * p1 & mask
    for shift, prime in ((33, p2), (29, p3)):
        value = (value ^ value >> shift) * prime & mask
    return value ^ value >> 32
