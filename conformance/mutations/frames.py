"""zstd frames: strange ones, and those whose structure is damaged field by field."""
import zstandard

from deltachain_py.streams import write_stream

from .values import damage_bytes


def raw_blocks(raw, sizes):
    """The blocks of a frame, uncompressed."""
    out, pos = b"", 0
    for size in sizes:
        last = pos + size >= len(raw)
        out += (int(last) | size << 3).to_bytes(3, "little") + raw[pos:pos + size]
        pos += size
        if last:
            break
    return out


def strange_frame(rng, raw):
    """Returns a stored form that the other reader may treat differently. Some forms are valid if they are shorter than
    `raw`."""
    def compress(**options):
        return zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(
            rng.choice([1, 3, 9, 19]), **options)).compress(raw)

    if rng.random() < 0.6:
        return rng.choice([damage_structure, made_by_hand])(rng, raw)
    magic, good, kind = b"\x28\xb5\x2f\xfd", compress(), rng.randrange(22)
    if kind == 0:
        return compress(write_content_size=False)
    if kind == 1:
        return compress(write_checksum=True)
    if kind == 2:
        frame = bytearray(compress(write_checksum=True))
        frame[-rng.randrange(1, 5)] ^= 1 << rng.randrange(8)
        return bytes(frame)
    if kind == 3:  # another content size
        frame = bytearray(good)
        frame[5] ^= 1 << rng.randrange(8)
        return bytes(frame)
    if kind == 4:  # descriptor: dictionary flag, reserved bit, unused bit, single segment, size field
        frame = bytearray(good)
        frame[4] ^= 1 << rng.randrange(8)
        return bytes(frame)
    if kind == 5:  # a dictionary id of 0, in a frame that is otherwise right
        frame = compress(write_content_size=False)
        return frame[:4] + bytes([frame[4] | 1]) + frame[5:6] + b"\0" + frame[6:]
    if kind == 6:  # another window, with the blocks of a good frame
        frame = compress(write_content_size=False)
        return frame[:5] + bytes([rng.choice([0, 1, 8, 15 << 3, 15 << 3 | 1, 16 << 3, 17 << 3, 255])]) + frame[6:]
    if kind == 7:
        return good + rng.choice([b"\0", good, b"\x50\x2a\x4d\x18\0\0\0\0", magic])
    if kind == 8:
        return rng.choice([b"\x50\x2a\x4d\x18\0\0\0\0", b"\x5f\x2a\x4d\x18\1\0\0\0x"]) + good
    if kind == 9:
        return good[:rng.randrange(len(good))]
    if kind == 10:  # old magic numbers
        return bytes([rng.choice([0x1E, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27])]) + good[1:]
    if kind == 11:  # single segment with another content size of 8 bytes
        size = rng.choice([len(raw), 0, 2**25, 2**25 + 1, 2**32, 2**63, 2**64 - 2, 2**64 - 1])
        return magic + b"\xe0" + size.to_bytes(8, "little") + good[6:]
    if kind == 12:
        return magic + b"\0\x58" + raw_blocks(raw, [max(1, len(raw) // 2 + 1)] * 2)
    if kind == 13:  # empty blocks between; the last one empty
        return magic + b"\0\x58" + b"\0\0\0" * 3 + (len(raw) << 3).to_bytes(3, "little") + raw + b"\1\0\0"
    if kind == 14:  # RLE
        return magic + b"\0\x58" + (3 | len(raw) << 3).to_bytes(3, "little") + raw[:1]
    if kind == 15:  # a header that is cut off, with a window that is too large
        return (magic + b"\xc0\xff" + bytes(8))[:rng.randrange(4, 14)]
    if kind == 16:  # reserved block type
        return magic + b"\0\x58" + (7 | len(raw) << 3).to_bytes(3, "little") + raw[:1]
    if kind == 17:  # content sizes that libzstd's functions return for "unknown" and "error"
        return magic + b"\xc0\x58" + rng.choice([b"\xff", b"\xfe"]) + b"\xff" * 7 + good[6:]
    if kind == 18:
        return good[4:]
    if kind == 19:  # single segment without a content size of its own length
        return magic + b"\x20" + bytes([len(raw) & 0xFF]) + raw_blocks(raw, [len(raw)] if raw else [0])
    return damage_bytes(rng, good)


def made_by_hand(rng, raw):
    """Returns a frame of raw, RLE, empty and compressed blocks with any form of a header; most parts are right."""
    def odd(share=0.06):
        return rng.random() < share

    checksum = zstandard.ZstdCompressor(write_checksum=True).compress(raw)[-4:]
    blocks, at = [], 0
    if odd(0.3):  # compressed blocks need the previous ones, so they come first
        at = rng.randrange(len(raw) + 1)
        good = take_apart(zstandard.ZstdCompressor(level=rng.choice([1, 19])).compress(raw[:at]))[1]
        blocks = [tuple(block[1:]) for block in good]
    while at < len(raw):
        size = rng.choice([1, 2, 7, 100, 1024, 1025, 1 << 17, len(raw)])
        part = raw[at:at + min(size, 1 << 17)]
        alike = len(part) - len(part.lstrip(part[:1]))  # bytes that RLE can give
        kind = 1 if alike > 1 and odd(0.7) else 0
        part = part[:alike] if kind else part
        blocks.append((kind, len(part), part[:1] if kind else part))
        at += len(part)
    while odd(0.2) or not blocks:
        blocks.insert(rng.randrange(len(blocks) + 1), rng.choice([(0, 0, b""), (1, 0, rng.randbytes(1))]))
    width, single = rng.randrange(4), odd(0.5)
    size_bytes = (int(single), 2, 4, 8)[width]
    content = (len(raw) + odd() - 256 * (size_bytes == 2)) % (1 << 8 * size_bytes)
    window = bytes([rng.choice([0, 1, 0x38, 0x58, 0x70, 0x78] + [0x79, 0xFF] * odd())])
    checked = odd(0.5)
    descriptor = width << 6 | single << 5 | checked << 2 | 0x10 * odd(0.1) | 0x08 * odd() | odd()
    frame = b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + (b"" if single else window)
    frame += content.to_bytes(size_bytes, "little")
    for number, (kind, size, data) in enumerate(blocks, 1):
        last = int(number == len(blocks)) ^ odd(0.02)
        frame += (last | (3 if odd(0.01) else kind) << 1 | size << 3).to_bytes(3, "little") + data
    if checked:
        frame += bytes([checksum[0] ^ odd(0.2)]) + checksum[1:]
    skippable = b"\x50\x2a\x4d\x18\0\0\0\0"
    return skippable * odd() + frame + rng.choice([skippable, b"\0", frame]) * odd()


def stored_form(rng, raw, strange=0.06):
    if raw and rng.random() < strange:
        return strange_frame(rng, raw)
    return raw if rng.random() < 0.2 else write_stream(raw)


def take_apart(frame):
    """Returns the header (descriptor, window, content size) and the blocks [last, type, size, content] of a good
    frame."""
    descriptor = frame[4]
    single, size_bytes = descriptor >> 5 & 1, (descriptor >> 5 & 1, 2, 4, 8)[descriptor >> 6]
    at = 6 - single + size_bytes
    header, blocks = [descriptor, frame[5:6 - single], frame[6 - single:at]], []
    while not blocks or not blocks[-1][0]:
        number = int.from_bytes(frame[at:at + 3], "little")
        last, kind, size = number & 1, number >> 1 & 3, number >> 3
        length = 1 if kind == 1 else size
        blocks.append([last, kind, size, frame[at + 3:at + 3 + length]])
        at += 3 + length
    return header, blocks, frame[at:]


def damage_structure(rng, raw):
    """Returns a frame with some wrong fields: of its header, or of some blocks."""
    level, checksum, size = rng.choice([1, 3, 19]), rng.random() < 0.3, rng.random() < 0.7
    frame = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=size).compress(raw)
    if rng.random() < 0.4:  # plain blocks
        cuts = [rng.randrange(1, 2000) for _ in range(9)] + [len(raw)]
        frame = b"\x28\xb5\x2f\xfd\0\x58" + raw_blocks(raw, cuts)
    (descriptor, window, content), blocks, end = take_apart(frame)
    for _ in range(rng.choice([1, 1, 1, 2])):
        kind, block = rng.randrange(12), rng.choice(blocks)
        if kind == 0:
            descriptor ^= 1 << rng.randrange(8)
        elif kind == 1 and window:
            window = bytes([rng.choice([0, 1, 8, 0x38, 0x58, 0x78, 0x79, 0xFF])])
        elif kind == 2 and content:
            number = int.from_bytes(content, "little") + rng.choice([-1, 1, 256])
            content = number.to_bytes(9, "little")[:len(content)]
        elif kind == 3:
            block[0] ^= 1
        elif kind == 4:
            block[1] = rng.randrange(4)
        elif kind == 5:
            block[2] = max(0, block[2] + rng.choice([-1, 1, 2, 1000, 1 << 17, 1 << 20]))
        elif kind == 6:
            block[3] = damage_bytes(rng, block[3])
            block[2] = block[2] if block[1] == 1 else len(block[3])
        elif kind == 7:
            blocks.remove(block) if len(blocks) > 1 else None
        elif kind == 8:
            blocks.insert(rng.randrange(len(blocks) + 1), [0, rng.choice([0, 1]), *rng.choice([
                (0, b""), (0, b"x"), (1, b"x"), (1024, b"x"), (1025, b"x"), (1 << 17, b"x"), ((1 << 17) + 1, b"x")])])
        elif kind == 9:
            end = rng.choice([b"", b"\0", b"\0\0\0\0", end + b"\0", end + frame, end[:-1]])
        elif kind == 10:  # blocks of compressors are valid wherever the window is large enough
            size = rng.choice([1000, 1024, 1025, len(raw)])
            blocks = [list(b) for b in take_apart(b"\x28\xb5\x2f\xfd\0\x58" + raw_blocks(raw, [size] * 99))[1]]
        else:
            rng.shuffle(blocks)
    body = b"".join((last | kind << 1 | size % (1 << 21) << 3).to_bytes(3, "little") + content
                    for last, kind, size, content in blocks)
    return frame[:4] + bytes([descriptor]) + window + content + body + end
