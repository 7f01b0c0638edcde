"""Primitive types (SPEC section 1): varints, strings, packed bits, CRC-32. Any field can be replaced by `Raw` bytes."""
import zlib


class Raw(bytes):
    """Bytes that stand in place of a field's proper encoding."""


def varint(value):
    """Unsigned LEB128; `Raw` is passed through."""
    if isinstance(value, Raw):
        return bytes(value)
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F)
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def string(content):
    """Length and bytes of a str or of bytes (which need not be UTF-8); `Raw` is passed through."""
    if isinstance(content, Raw):
        return bytes(content)
    raw = text_bytes(content)
    return varint(len(raw)) + raw


def text_bytes(content):
    return content.encode("utf-8") if isinstance(content, str) else bytes(content)


def u8(value):
    return bytes(value) if isinstance(value, Raw) else bytes([value])


def u32(value):
    return value.to_bytes(4, "little")


def u64(value):
    return value.to_bytes(8, "little")


def crc32(data):
    return zlib.crc32(data)


def pack(items, width):
    """Packs items of `width` bits each, least significant bit first; the last byte is padded with zeros."""
    total = 0
    for position, item in enumerate(items):
        total |= item << (position * width)
    return total.to_bytes(ceil_div(len(items) * width, 8), "little")


def ceil_div(a, b):
    return -(-a // b)
