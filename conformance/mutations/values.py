"""Numbers, strings and bytes that are hard for readers."""

NUMBERS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 254, 255, 256, 257, 16383, 16384, 65535, 65536,
           65537, 2**24 - 1, 2**24, 2**24 + 1, 2**25, 2**25 + 1, 2**26 + 1, 2**30 + 1, 2**31, 2**32 - 1, 2**32, 2**40,
           2**54, 2**59, 2**60, 2**60 + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
BAD_VARINTS = [b"\x80\0", b"\x81\0", b"\xff\x80\0", b"\x80" * 9 + b"\0", b"\x80" * 9 + b"\2", b"\xff" * 9 + b"\1",
               b"\x80" * 10 + b"\0", b"\xff" * 9 + b"\x81\0", b"\xff" * 10, b"\x80", b"\xff\xff", b""]
BAD_STRINGS = [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\0", b"", b"\xef\xbf\xbf",
               b"\xf4\x8f\xbf\xbf", b"n" * 65535, b"n" * 65536, b"a", b"zzzz"]


def near(rng, value):
    return max(0, min(2**64 - 1, rng.choice([value - 1, value + 1, value * 2, value // 2, value + 127, value ^ 128,
                                            rng.choice(NUMBERS), rng.choice(NUMBERS)])))


def damage_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(8)
        if kind < 3 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 5 and at < len(data):
            data[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF, rng.randrange(256)])
        elif kind == 5:
            data[at:at + rng.choice([1, 1, 2, 4])] = b""
        elif kind == 6:
            data[at:at] = bytes(rng.choice([[0], [1], [255], [0x80, 0], [rng.randrange(256)], [0] * 4]))
        elif rng.random() < 0.5:
            del data[at:]
        else:
            data += rng.randbytes(rng.choice([1, 1, 3]))
    return bytes(data)
