"""Primitive types (section 1): varint, string, fixed integers, packed bits, CRC-32."""
from zlib import crc32  # noqa: F401

from .errors import check, fail


def ceil_div(a, b):
    return -(-a // b)


class Reader:
    """Reads fields one after another from one structure and never past its end (R-INT-03)."""

    def __init__(self, data, where):
        self.data, self.where, self.pos = data, where, 0

    def fail(self, rule, message):
        fail(rule, message, f"{self.where} at byte {self.pos}")

    def check(self, condition, rule, message):
        if not condition:
            self.fail(rule, message)

    def left(self):
        return len(self.data) - self.pos

    def bytes(self, count):
        self.check(count <= self.left(), "R-INT-03", f"{count} bytes wanted, {self.left()} left")
        self.pos += count
        return bytes(self.data[self.pos - count:self.pos])

    def u8(self):
        return self.bytes(1)[0]

    def varint(self):
        value = 0
        for i in range(10):
            byte = self.u8()  # R-INT-03
            self.check(i < 9 or byte <= 1, "R-INT-02", "varint above 2^64 - 1")
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                self.check(i == 0 or byte != 0, "R-INT-01", "varint longer than necessary")
                return value
        raise AssertionError("unreachable: the tenth byte is 0 or 1")

    def limited(self, limit, what):
        """Reads a varint that R-LIM-01 bounds."""
        value = self.varint()
        self.check(value <= limit, "R-LIM-01", f"{what} {value} above the limit {limit}")
        return value

    def string(self, limit, what):
        raw = self.bytes(self.limited(limit, what + " length"))
        try:
            return raw.decode("utf-8")  # Python refuses surrogates and overlong forms
        except UnicodeDecodeError:
            self.fail("R-INT-04", f"{what} is not UTF-8")


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text):
    raw = text.encode("utf-8")
    return varint(len(raw)) + raw


def pack(items, width):
    """Packs a list of integers of `width` bits, LSB first; the last byte is padded with zero bits."""
    bits = "".join(f"{item:0{width}b}" for item in reversed(items)) if width else ""
    return int(bits or "0", 2).to_bytes(ceil_div(len(bits), 8), "little")


def unpack(data, width, count, where):
    """The inverse of `pack`; `data` has exactly the needed length. Checks the padding (R-STR-05)."""
    bits = f"{int.from_bytes(data, 'little'):0{8 * len(data)}b}"[::-1]
    check("1" not in bits[count * width:], "R-STR-05", "padding bits are not 0", where)
    return [int(bits[i * width:(i + 1) * width][::-1] or "0", 2) for i in range(count)]
