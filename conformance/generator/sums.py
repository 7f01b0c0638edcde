"""Building blocks of vectors of links in place (spec/in-place.md): sums, the record of a link's sums, and vectors."""
import struct

from blake3 import blake3

from .builder import REMOVE
from .links import CLASSES, accepted, result_of, state_or_null
from .links_extension import AREA, record
from .model import PIECE
from .registry import Vector

P = 2**31 - 1
ROW = 8192  # bytes
BIT, KIND = 1, 1
CONTEXT = "deltachain 2026-11-25 sums of a link v1"


def numbers():
    """Returns all of L0, L1, H0, H1."""
    output, found, place = blake3(derive_key_context="deltachain 2026-11-25 sums v1"), [], 0
    while len(found) < 12288:
        number = int.from_bytes(output.digest(4, seek=place), "little") & P
        found += [number] * (0 < number < P)
        place += 4
    return found


NUMBERS = numbers()
L, H = (NUMBERS[:4096], NUMBERS[4096:8192]), (NUMBERS[8192:10240], NUMBERS[10240:])
assert blake3(struct.pack("<12288I", *NUMBERS)).hexdigest() == (
    "1a1e6625f0c2829efe4366cd8b5bba701c13faf8af36910e86cd07543989c75d")


def sums_of(data, place=0):
    """Computes sums by section 24.2, byte by byte."""
    total = [0, 0]
    for begin in range(0, len(data), ROW):
        some = data[begin:begin + ROW]
        if some.count(0) == len(some):
            continue
        for b, byte in enumerate(some, place + begin):
            for k in (0, 1):
                total[k] += byte * 256 ** (b % 2) * L[k][(b >> 1) % 4096] * H[k][b >> 13]
    return [number % P for number in total]


def sums_of_lanes(data, lanes, width):
    """Computes the sums of some lanes of a piece."""
    found = [sums_of(data[lane * width:(lane + 1) * width], lane * width) for lane in lanes]
    return [sum(some) % P for some in zip([0, 0], *found)]


def sums(link):
    """Returns the content of a right record: for each entry that is not a removal, for each piece,
    [its sums, those of its coded lanes or None]."""
    found = {}
    for entry in link.entries:
        if entry.operation == REMOVE:
            continue
        data, width = link.target.tensors[entry.name].data, entry.dtype.lane_bytes
        found[entry.name] = []
        for number, segment in enumerate(entry.segments):
            piece, first = data[number * PIECE:(number + 1) * PIECE], number * PIECE // width
            coded = [lane - first for lane in entry.coded if first <= lane < first + PIECE // width]
            every = len(coded) * width == len(piece)
            of_piece = sums_of(piece)
            of_coded = (of_piece if every else sums_of_lanes(piece, coded, width)) if segment else None
            found[entry.name].append([of_piece, of_coded])
    return found


def flat(found):
    """The pairs of numbers in the order of the record."""
    return [pair for pieces in found.values() for piece in pieces for pair in piece if pair is not None]


def binding(link):
    return blake3(link.base.digest() + link.target.digest() + link.index_raw(), derive_key_context=CONTEXT).digest()


def data_of(link, pairs=None, bound=None):
    """Returns the data of a record."""
    pairs = flat(sums(link)) if pairs is None else pairs
    return (binding(link) if bound is None else bound) + b"".join(struct.pack("<II", *pair) for pair in pairs)


def with_sums(link, found=None):
    """Returns the link with sums: the right ones, or those of `found`."""
    return with_area(link, AREA + record(KIND, data_of(link, None if found is None else flat(found))))


def with_area(link, area, bits=BIT):
    link.extension, link.header = area, {"compatible": bits}
    return link


def answer(found):
    """Returns the expected answer of the operation *sums*."""
    return {"sums": None if found is None else [
        {"name": name, "pieces": [{"piece": piece, "coded": coded} for piece, coded in pieces]}
        for name, pieces in found.items()]}


UNSUPPORTED = {"class": "UNSUPPORTED", "rule": None}


def vector(id, link, section, reason, in_place, rules=(), found=False, apply=True, twin=None, features=(), base=None,
           then=(), **members):
    """A vector of a link. `in_place`: the expected answer of that operation: a state, a rule, or UNSUPPORTED; `found`:
    the sums of the link, None for none; by default the right ones. `apply`: whether it is run; its result is the state,
    or that of the link. `then` has vectors of the links that follow."""
    expect = {"check": accepted(link)}
    last = then[-1].source.target if then else link.target
    if apply:
        expect["apply"] = result_of(last)
    expect["sums"] = answer(sums(link) if found is False else found)
    refusal = {"class": CLASSES[in_place], "rule": in_place} if isinstance(in_place, str) else in_place
    expect["in-place"] = refusal or result_of(last)
    used = {*link.features(), "in-place", *features}
    for other in then:
        used |= {*other.features, "sequence"}
    broken = [in_place] if isinstance(in_place, str) else []
    members = {"base": state_or_null(base or link.base), **({"then": [other.id for other in then]} if then else {})} | members
    return Vector(f"links/{id}", link.encode(), section, reason, expect, rules=[*rules, *broken], twin=twin, source=link,
                  features=sorted(used), members=members)


def wrong_lanes(link, other):
    """Returns the link with segments of another one, which code other lanes or values; index and sums still promise the
    right state."""
    assert [segment.parts for segment in link.segments] and len(link.segments) == len(other.segments)
    link.segments = other.segments
    return link
