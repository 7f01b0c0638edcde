"""In place (SPEC section 24): sums, the sums of a link, and applying links to memory."""
import struct
from operator import mul

from blake3 import blake3

from . import codings, link as dcf
from .errors import DcfError, Limits, check
from .index import ABSOLUTE, PATCH, SPARSE
from .model import Tensor, from_lanes, piece_count, piece_range, table_of, to_lanes
from .primitives import crc32

P = 2**31 - 1
UNITS, ROWS = 4096, 2048  # per row; per piece
NOTHING = (0, 0)          # the sums of no bytes

AREA = b"\x89DCX\r\n\x1a\n"
BIT, KIND = 1, 1  # the compatible feature and the record


# --- Sums (24.2): pairs of numbers ---

def _numbers():
    """Returns L0, L1, H0, H1, one after another."""
    output = blake3(derive_key_context="deltachain 2026-11-25 sums v1").digest(length=4 * 12300)
    numbers = [number & P for number, in struct.iter_unpack("<I", output)]
    return [number for number in numbers if number not in (0, P)][:2 * UNITS + 2 * ROWS]


NUMBERS = _numbers()
L = NUMBERS[:UNITS], NUMBERS[UNITS:2 * UNITS]
H = NUMBERS[2 * UNITS:-ROWS], NUMBERS[-ROWS:]


def sums_of(data, place=0):
    """Computes the sums of contiguous bytes, the first of which is at this place of the piece."""
    data = bytes(place % 2) + data  # zeros change nothing
    units = to_lanes(data + bytes(len(data) % 2), 2)
    total, done = NOTHING, 0
    while done < len(units):
        row, column = divmod(place // 2 + done, UNITS)
        run = units[done:done + UNITS - column]
        total = plus(total, [sum(map(mul, run, L[k][column:])) * H[k][row] for k in (0, 1)])
        done += len(run)
    return total


def sums_of_lanes(lanes, lane_bytes):
    """Computes the sums of some lanes: (number in the piece, value)."""
    total = NOTHING
    for lane, value in lanes:
        total = plus(total, sums_of(value.to_bytes(lane_bytes, "little"), lane * lane_bytes))
    return total


def plus(one, other):
    return (one[0] + other[0]) % P, (one[1] + other[1]) % P


def minus(one, other):
    return (one[0] - other[0]) % P, (one[1] - other[1]) % P


# --- The record (24.3) ---

def record(area, kind):
    """Returns the data of the record of a kind in an extension area (section 4.2); None if there is none."""
    found, last, at = None, -1, len(AREA)
    if area[:at] != AREA:
        return None
    while at < len(area):
        if len(area) - at < 16:
            return None
        own, crc, length = struct.unpack_from("<IIQ", area, at)
        data = area[at + 16:at + 16 + length]
        if own <= last or len(data) != length:
            return None
        if own == kind and crc32(data) == crc:
            found = data
        last, at = own, at + 16 + length
    return found


def link_sums(link):
    """Returns {(tensor name, piece): (sums of the piece, sums of its coded lanes)}, with None for the latter if the
    piece has no part. Returns None if the link has no sums."""
    header = link.header
    data = record(link.data[len(link.data) - header.extension_length:], KIND) if header.compatible & BIT else None
    wanted = [(entry.name, piece, number > 0) for entry in link.index.tensors
              for piece, number in enumerate(entry.segments)]
    if data is None or len(data) != 32 + sum(8 + 8 * has_part for _, _, has_part in wanted):
        return None
    pairs = list(struct.iter_unpack("<II", data[32:]))
    if data[:32] != _binding(header, link.index_raw) or max(map(max, pairs), default=0) >= P:
        return None
    pairs = iter(pairs)
    return {(name, piece): (next(pairs), next(pairs) if has_part else None) for name, piece, has_part in wanted}


def _binding(header, index_raw):
    return blake3(header.base + header.target + index_raw,
                  derive_key_context="deltachain 2026-11-25 sums of a link v1").digest()


def area(header, index_raw, pairs):
    """Returns an extension area with only the record of a link."""
    data = _binding(header, index_raw) + b"".join(struct.pack("<II", *pair) for pair in pairs)
    return AREA + struct.pack("<IIQ", KIND, crc32(data), len(data)) + data


# --- The operation (24.6) ---

def is_local(part):
    """Section 24.5. Without a base, only parts of segments with one context are decoded: segments with more have
    none."""
    return part is not None and (part.coding.values == ABSOLUTE or part.coding.positions == SPARSE)


def in_place(files, memory, limits=Limits()):
    """Returns the memory after the links, or raises an error. Here memory is a state like others. It is hashed as the
    first link's base (R-APP-01), so its sums may be computed from it (R-SUM-02)."""
    links, _ = dcf.promised(files, table_of(memory), limits)
    coded = [{(part.entry.name, part.piece): (part, lanes) for part, lanes in dcf.decode(link)} for link in links]
    sums = [link_sums(link) for link in links]
    for link, parts, own in zip(links, coded, sums):
        refuse(own is None, "a link has no sums")
        for entry in link.index.tensors:
            refuse(entry.operation != PATCH, f"{entry.name!r} is set or removed")
            for piece, number in enumerate(entry.segments):
                part, _ = parts.get((entry.name, piece), (None, []))
                refuse(number > 0 and not is_local(part), f"a part of {entry.name!r} is not local")

    known = {(name, piece): sums_of(tensor.data[slice(*piece_range(len(tensor.data), piece))])
             for name, tensor in memory.items() for piece in range(piece_count(len(tensor.data)))}
    new = {name: bytearray(tensor.data) for name, tensor in memory.items()}
    target = dict(memory)
    for link, parts, own in zip(links, coded, sums):
        for entry in link.index.tensors:
            for piece in range(len(entry.segments)):
                start, end = piece_range(entry.byte_length, piece)
                lanes = list(to_lanes(new[entry.name][start:end], entry.dtype.lane_bytes))
                part, values = parts.get((entry.name, piece), (None, []))
                before = [(lane, lanes[lane]) for lane, _ in values]
                for lane, value in values:
                    absolute = part.coding.values == ABSOLUTE
                    lanes[lane] = value if absolute else codings.add_difference(entry.dtype, lanes[lane], value)
                after = [(lane, lanes[lane]) for lane, _ in values]

                of_piece, of_coded = own[entry.name, piece]
                old, now = (sums_of_lanes(some, entry.dtype.lane_bytes) for some in (before, after))
                where = f"piece {piece} of {entry.name!r}"
                check(now == (of_coded or NOTHING), "R-SUM-03", "new values have other sums", where)
                check(plus(minus(known[entry.name, piece], old), now) == of_piece, "R-SUM-04",
                      "the piece has other sums", where)
                known[entry.name, piece] = of_piece
                new[entry.name][start:end] = from_lanes(lanes, entry.dtype.lane_bytes)
            target[entry.name] = Tensor(entry.dtype, entry.shape, b"")
    return {name: Tensor(tensor.dtype, tensor.shape, bytes(new[name])) for name, tensor in target.items()}


def refuse(condition, message):
    if condition:
        raise DcfError("UNSUPPORTED", None, message)
