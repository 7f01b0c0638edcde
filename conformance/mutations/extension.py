"""Extension areas (SPEC section 4.2): with records, and damaged ones. No reader refuses a file because of its extension
area."""
from deltachain_py.primitives import crc32

from .values import damage_bytes

MAGIC = b"\x89DCX\r\n\x1a\n"


def extension_area(rng):
    """Returns records, mostly right."""
    if rng.random() < 0.15:
        return rng.randbytes(rng.choice([0, 1, 3, 7, 8, 200]))
    kinds = [rng.choice([0, 1, 2, 3, 255, 2**31, 2**32 - 1]) for _ in range(rng.choice([0, 1, 2, 3]))]
    area = rng.choice([MAGIC, MAGIC, MAGIC, b"\x89DCF\r\n\x1a\n", b""])
    for kind in sorted({*kinds}) if rng.random() < 0.8 else kinds:
        data = rng.randbytes(rng.choice([0, 1, 9, 300]))
        crc = crc32(data) ^ (rng.random() < 0.2)
        length = len(data) + rng.choice([0] * 9 + [1, -len(data), 2**32, 2**64 - 1 - len(data)])
        area += kind.to_bytes(4, "little") + crc.to_bytes(4, "little") + length.to_bytes(8, "little") + data
    return area if rng.random() < 0.8 else damage_bytes(rng, area)
