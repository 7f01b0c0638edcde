"""Links whose extension area has data that are not sums (SPEC section 24.3): they are valid, but cannot be applied in
place."""
import struct

from blake3 import blake3

from .builder import MAGIC, REMOVE, SMALL, SPARSE
from .coding import Plan, link
from .frames import compressed
from .links_extension import AREA, record
from .links_valid_structure import ONE, ONE_CHANGED
from .model import EMPTY, State, tensor
from .primitives import u64
from .registry import makes_vectors
from .sums import BIT, CONTEXT, KIND, P, UNSUPPORTED, binding, data_of, flat, sums, vector, with_area, with_sums

BASE = State("in-place-none-base", {"a": tensor("BF16", [1, 2, 3, 4]), "b": tensor("BF16", [5, 6])})
TARGET = State("in-place-none-target", {"a": tensor("BF16", [1, 9, 3, 4]), "b": tensor("BF16", [5, 6], (2, 1))})


def plain():
    """A link with an entry that has a part and one that has none."""
    return link(BASE, TARGET, Plan(SPARSE, SMALL, [("a", 0)], widths=(4,)))


def none(id, file, reason, section="24.3"):
    return vector(f"sums/none-{id}", file, section, reason, UNSUPPORTED, found=None)


def area(id, content, reason, bits=BIT):
    return none(id, with_area(plain(), content, bits), reason)


def data(id, content, reason):
    return area(id, AREA + record(KIND, content), reason)


RIGHT = data_of(plain())
OWN = record(KIND, RIGHT)


@makes_vectors
def announced():
    yield vector("sums/right", with_sums(plain()), "24.3", "the link from which those without sums are made", None)
    yield area("bit", AREA + OWN, "the record is there, the bit is not", 0)
    yield area("other-bits", AREA + OWN, "the record is there; of the bits, all others are set", 2**32 - 2)
    yield area("record", b"", "the bit is set, the area is empty")
    yield area("record-of-others", AREA + record(0, RIGHT) + record(2, RIGHT), "the bit is set; the records are others'")
    yield area("record-in-area", AREA, "the bit is set, the area has no record")
    yield area("kind-big-endian", AREA + record(KIND << 24, RIGHT), "the kind is written from its other end")
    yield area("nested", AREA + record(2, AREA + OWN), "the record stands inside another one")


@makes_vectors
def areas():
    two = record(2, b"second")
    yield area("magic", OWN, "there is no magic")
    yield area("magic-of-links", MAGIC + OWN, "the magic is that of links")
    yield area("magic-cut", AREA[:7] + OWN, "one byte of the magic is missing")
    yield area("magic-late", b"\0" + AREA + OWN, "the magic stands at the second byte")
    yield area("twice", AREA + OWN + OWN, "the record is there twice")
    yield area("twice-others", AREA + OWN + two + two, "a record after it is there twice")
    yield area("descending", AREA + two + OWN, "a higher kind stands before it")
    yield area("descending-after", AREA + OWN + record(0, b"first"), "a lower kind stands after it")
    yield area("descending-others", AREA + OWN + record(9, b"") + two, "two records after it descend")
    for name, length in (("2-60", 2**60), ("2-63", 2**63), ("2-64", 2**64 - 1), ("longer", len(RIGHT) + 1),
                         ("shorter", len(RIGHT) - 1), ("0", 0), ("wraps", 2**64 - 16)):
        yield area(f"length-{name}", AREA + record(KIND, RIGHT, length=length),
                   f"the record has {len(RIGHT)} bytes, and says that it has {length}")
    yield area("length-after", AREA + OWN + record(2, b"x", length=2**60), "a record after it is cut")
    yield area("length-before", AREA + record(0, b"x", length=2**64 - 1) + OWN, "a record before it has no end")
    yield area("cut", AREA + OWN[:-1], "the last byte of the record is missing")
    yield area("cut-fields", AREA + OWN[:15], "a byte of the record's length is missing")
    yield area("foreign-byte", AREA + OWN + b"\0", "a byte that is no record stands at the end")
    yield area("crc", AREA + record(KIND, RIGHT, crc=0), "the CRC does not match")
    yield area("damaged", AREA + OWN[:-1] + bytes([OWN[-1] ^ 1]), "the last bit of the data is damaged")
    yield area("damaged-binding", AREA + OWN[:20] + bytes([OWN[20] ^ 0x80]) + OWN[21:], "the binding is damaged")


@makes_vectors
def lengths():
    yield data("data", b"", "the record has no data")
    yield data("binding-alone", RIGHT[:32], "no numbers follow the binding")
    yield data("binding-cut", RIGHT[:31], "the binding is cut")
    yield data("pair-less", RIGHT[:-8], "the last pair is missing")
    yield data("number-less", RIGHT[:-4], "the last number is missing")
    yield data("byte-less", RIGHT[:-1], "the last byte is missing")
    yield data("byte-more", RIGHT + b"\0", "there is a byte more")
    yield data("pair-more", RIGHT + bytes(8), "there is a pair more: the coded lanes of a piece without a part")
    pairs = flat(sums(plain()))
    yield data("pair-first-missing", data_of(plain(), pairs[1:]), "the first pair is missing")
    base = State("in-place-removed-base", {"a": tensor("BF16", [1, 2]), "b": tensor("BF16", [3])})
    target = base.changed("in-place-removed-target", a=tensor("BF16", [1, 3]), b=None)
    file = link(base, target, Plan(SPARSE, SMALL))
    assert file.entries[1].operation == REMOVE
    yield none("pair-of-removal", with_area(file, AREA + record(KIND, data_of(file) + bytes(8))),
               "there is a pair for a tensor that is removed")
    file = link(ONE, ONE)
    yield none("empty-link", with_area(file, AREA + record(KIND, binding(file) + bytes(8))),
               "a link without entries, and a pair")


@makes_vectors
def numbers():
    pairs = flat(sums(plain()))
    names = ("piece", "coded lanes", "piece without a part")
    for place, name in enumerate(names):
        for k in (0, 1):
            for id, number in (("above", pairs[place][k] + P), ("p", P), ("most", 2**32 - 1)):
                wrong = [list(pair) for pair in pairs]
                wrong[place][k] = number
                yield data(f"number-{place}-{k}-{id}", data_of(plain(), wrong),
                           f"sum {k} of a {name} is {number}" + (", p more than it is" if id == "above" else ""))
    zeros = State("in-place-zeros", {"t": tensor("F32", [0, 0])})
    ones = State("in-place-ones", {"t": tensor("F32", [0, 7])})
    for id, place, k in (("piece", 0, 1), ("coded", 1, 0)):
        file = link(ones, zeros, Plan())
        wrong = [[0, 0], [0, 0]]
        assert wrong == flat(sums(file))
        wrong[place][k] = P
        yield none(f"zero-as-p-{id}", with_area(file, AREA + record(KIND, data_of(file, wrong))), "p stands for a sum of 0")


@makes_vectors
def bindings():
    file = plain()
    base, target, raw = file.base.digest(), file.target.digest(), file.index_raw()

    def bound(id, digest, reason):
        return data(f"binding-{id}", data_of(plain(), bound=digest), reason)

    def keyed(content, context=CONTEXT):
        return blake3(content, derive_key_context=context).digest()
    other = link(ONE, ONE_CHANGED, Plan())
    yield bound("foreign", binding(other), "the binding is that of another link")
    yield bound("zero", bytes(32), "the binding is zeros")
    yield bound("not-keyed", blake3(base + target + raw).digest(), "the binding is a plain hash")
    yield bound("other-context", keyed(base + target + raw, "deltachain 2026-11-25 sums v1"),
                "the binding is made with the context of the tables")
    yield bound("swapped", keyed(target + base + raw), "the binding has the target before the base")
    yield bound("without-base", keyed(target + raw), "the binding lacks the base")
    yield bound("without-index", keyed(base + target), "the binding lacks the index")
    yield bound("whole-header", keyed(file.encode()[:128] + raw), "the binding is over the whole header")
    yield bound("index-alone", keyed(raw), "the binding is over the index alone")
    yield bound("reversed", binding(file)[::-1], "the binding stands from its other end")
    file = link(BASE, TARGET, Plan(SPARSE, SMALL, [("a", 0)], widths=(4,)), metadata=[("step", "0")])
    yield bound("other-metadata", binding(file), "the binding is that of a link with other metadata")
    names = [f"tensor-{i:02}" for i in range(40)]
    file = link(*(State(f"in-place-stored-{label}", {name: tensor("BF16", [1, lane]) for name in names})
                  for label, lane in (("base", 2), ("target", 3))), Plan(SPARSE, SMALL))
    file.index_stored = compressed
    stored = compressed(file.index_raw())
    digest = keyed(file.base.digest() + file.target.digest() + stored)
    yield none("binding-stored-index", with_area(file, AREA + record(KIND, data_of(file, bound=digest))),
               "the binding is over the index as stored")
    file = link(EMPTY, EMPTY)
    yield none("smallest", with_area(file, AREA + record(KIND, struct.pack("<II", 0, 0) + u64(0) * 3)),
               "a link without anything, and 32 bytes that are not its binding")
