"""Links that break a rule of positions and values (SPEC section 8)."""
from .links import copy_of, refused
from .primitives import varint
from .registry import makes_vectors


def spoiled(id, rule, reason, twin, section="8.1", check=True, parts=None, **streams):
    """`streams` are raw bytes by name, with _ in place of a space; `parts` replaces those of the table."""
    link = copy_of(twin)
    segment = link.segments[0]
    if parts is not None:
        segment.table.parts = parts
    for name, raw in streams.items():
        segment.set_raw(name.replace("_", " "), raw)
    return refused(f"codings/{id}", link, rule, reason, twin, section, check=check)


@makes_vectors
def ranks_beyond_the_part():
    """A reader finds these faults without the base."""
    yield spoiled("rank-at-lanes", "R-POS-01", "rank 8 of eight lanes", "one-lane", gap_high=b"\x08")
    yield spoiled("rank-second", "R-POS-01", "two lanes, the second of which is one too far", "nan-payload-sparse",
                  gap_high=b"\2\1")
    yield spoiled("rank-by-low-bits", "R-POS-01", "low bits that lead beyond the part", "gap-shift-23",
                  gap_low=b"\xff" * 14 + b"\x07")
    yield spoiled("rank-by-escape", "R-POS-01", "an escape that leads beyond the part", "gap-256",
                  gap_escape=varint(200))
    # Several escapes together may have as many bytes as one large escape.
    forty, right = "escapes-compressed", varint(44)
    yield spoiled("rank-2-28", "R-POS-01", "the greatest escape of four bytes", "gap-256", gap_escape=varint(2**28 - 1))
    yield spoiled("rank-2-64", "R-POS-01", "an escape of 2^64 - 1", forty, gap_escape=right * 39 + varint(2**64 - 1))
    yield spoiled("rank-wraps-2-64", "R-POS-01", "ranks that are right again modulo 2^64", forty,
                  gap_escape=right * 37 + varint(2**64 - 1) + varint(89) + right)
    yield spoiled("rank-wraps-2-32", "R-POS-01", "a gap of 2^32 and more, right again modulo 2^32", forty,
                  gap_escape=right * 39 + varint(2**32 + 44))
    shifted = "gap-escapes-shifted"
    yield spoiled("rank-shift-wraps", "R-POS-01", "a high part that a shift pushes out of 64 bits", shifted,
                  gap_escape=varint(1) * 2 + varint(2**60 + 1))
    yield spoiled("rank-shift-wraps-32", "R-POS-01", "a high part that a shift pushes out of 32 bits", shifted,
                  gap_escape=varint(1) * 2 + varint(2**28 + 1))
    yield spoiled("rank-of-69-bits", "R-POS-01", "an escape of 2^64 - 1 and four low bits", shifted,
                  gap_escape=varint(1) * 2 + varint(2**64 - 1))
    yield spoiled("rank-of-context", "R-POS-01", "a rank beyond the part in the second context", "worked-contexts",
                  gap_high=b"\1\6")
    yield spoiled("rank-of-second-part", "R-POS-01",
                  "ranks begin at 0 in each part, so a rank good for both together is not",
                  "gap-restarts", gap_escape=varint(44) + varint(45) + varint(44))


@makes_vectors
def ranks_beyond_the_members():
    """A reader finds these faults only with the base."""
    yield spoiled("rank-at-members", "R-POS-01", "rank 4 of four members; the part has eight lanes", "worked-contexts",
                  check=False, gap_high=b"\1\2")
    yield spoiled("rank-in-empty-context", "R-POS-01", "rank 0 of a context without members",
                  "contexts-thresholds-0-gaps",
                  check=False, parts=[([0], [1, 1])], gap_high=b"\0\0", sign=b"\0\0", magnitude=b"\0\0")
    yield spoiled("rank-last-lane", "R-POS-01", "rank 7, the greatest of eight lanes, of four members",
                  "worked-contexts",
                  check=False, gap_high=b"\1\5")


@makes_vectors
def counts_and_members():
    yield spoiled("members-dense", "R-POS-02", "counts 3 and 5 for four and four members", "dense-two-contexts",
                  check=False, parts=[([1], [3, 5])])
    yield spoiled("members-dense-none", "R-POS-02", "all lanes counted in the first of two contexts",
                  "dense-two-contexts",
                  check=False, parts=[([1], [8, 0])])
    yield spoiled("members-dense-swapped-parts", "R-POS-02", "sums are right in each part and of each context",
                  "dense-two-contexts-two-parts", check=False, parts=[([1], [3, 1]), ([1], [1, 3])])
    yield spoiled("members-bitmap-less", "R-POS-02", "a bitmap of three bits for four members", "worked-contexts",
                  check=False, parts=[([1], [3, 2])])
    yield spoiled("members-bitmap-more", "R-POS-02", "a bitmap of five bits for four members", "worked-contexts",
                  check=False, parts=[([1], [5, 2])])
    yield spoiled("members-bitmap-coded", "R-POS-02", "a bitmap whose bit 4 codes the fifth of four members",
                  "worked-contexts", check=False, parts=[([1], [5, 2])], bitmap=b"\x14")


@makes_vectors
def zero_differences():
    yield spoiled("zero-only", "R-VAL-01", "the only coded lane does not change", "one-lane-planes", "8.4",
                  plane_0=b"\0")
    yield spoiled("zero-among-others", "R-VAL-01", "one of eight coded lanes does not change", "signs-sparse-planes",
                  "8.4",
                  plane_0=b"\1\1\2\0\1\1\1\1", plane_1=bytes(8))
    yield spoiled("zero-in-second-context", "R-VAL-01", "a lane of the last context does not change",
                  "parts-dtypes-planes", "8.4", plane_0=b"\1" * 8 + b"\0", plane_1=bytes(9))


@makes_vectors
def magnitudes_beyond():
    half = 2**15
    for id, twin, sign, value, reason in (
            ("positive-16", "worked-contexts", 0, half - 1 - 1, "m = 2^15 - 1 for a positive difference"),
            ("negative-16", "worked-contexts", 2, half - 1, "m = 2^15 for a negative difference"),
            ("2-16", "worked-contexts", 2, 2**16 + 1, "m = 2^16 + 2, which is right again modulo 2^16")):
        yield spoiled(f"magnitude-{id}", "R-VAL-02", reason, twin, "8.5", sign=bytes([sign, 2]),
                      magnitude_escape=varint(value))
    yield spoiled("magnitude-positive-8", "R-VAL-02", "m = 127 for a positive difference of bytes, without an escape",
                  "magnitude-u8", "8.5", sign=b"\0", magnitude=bytes([127]))
    yield spoiled("magnitude-negative-8", "R-VAL-02", "m = 128 for a negative difference of bytes, without an escape",
                  "magnitude-u8", "8.5", sign=b"\1", magnitude=bytes([128]))
    yield spoiled("magnitude-2-64", "R-VAL-02", "m = 2^64, which is 0 in 64 bits", "magnitudes-u64", "8.5",
                  magnitude_escape=varint(2**64 - 1) + varint(8) * 3)
    for id, sign, value, reason in (("positive-64", 0, 2**63 - 1 - 1, "m = 2^63 - 1 for a positive difference"),
                                    ("negative-64", 1, 2**63 - 1, "m = 2^63 for a negative difference")):
        yield spoiled(f"magnitude-{id}", "R-VAL-02", reason, "magnitude-u64", "8.5", sign=bytes([sign]),
                      magnitude_escape=varint(value))
