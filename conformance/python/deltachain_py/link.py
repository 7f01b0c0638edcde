"""A link file: parse, decode, check, apply (sections 9 and 10)."""
from dataclasses import dataclass

from . import codings
from .errors import DcfError, Limits, check
from .header import SIZE, Header, parse_header
from .index import ABSOLUTE, PATCH, REMOVE, Index, parse_index
from .model import Tensor, from_lanes, state_digest, to_lanes
from .primitives import crc32
from .segment import decode_segment
from .streams import read_stream


@dataclass
class Link:
    data: bytes
    header: Header
    index: Index

    @property
    def profile(self):
        return "direct" if all(s.coding.values == ABSOLUTE for s in self.index.segments) else "compact"

    def stored_segments(self):
        """(number, entry, stored bytes) of each segment."""
        pos = SIZE + self.header.index_stored
        for number, entry in enumerate(self.index.segments):
            yield number, entry, self.data[pos:pos + entry.stored_length]
            pos += entry.stored_length


def parse(data, limits=Limits()):
    """Steps 1 to 6: header and index."""
    header = parse_header(data, limits)
    stored = data[SIZE:SIZE + header.index_stored]
    check(crc32(stored) == header.index_crc, "R-IDX-01", "index CRC", "index")
    raw = read_stream(stored, header.index_raw, "index")
    return Link(data, header, parse_index(raw, header, limits))


def check_base(link, base):
    """Step 7."""
    digest = state_digest(base)
    check(digest == link.header.base, "R-APP-01", f"base is {digest.hex()}, not {link.header.base.hex()}")
    for entry in link.index.tensors:
        old = base.get(entry.name)
        if entry.operation == PATCH:
            fits = old is not None and old.dtype == entry.dtype and len(old.data) == entry.byte_length
            check(fits, "R-APP-02", f"base has no such tensor {entry.name!r}")


def decode(link, base=None):
    """Step 8: yields (part, [(lane, value)]) with sorted lanes, value being the new lane or the difference.

    Without the base, nothing is yielded for segments with more than one context.
    """
    def base_lanes(part):
        return to_lanes(base[part.entry.name].data[slice(*part.range)], part.entry.dtype.lane_bytes)

    for number, entry, stored in link.stored_segments():
        where = f"segment {number}"
        segment = decode_segment(stored, entry, where)
        if segment.table.contexts == 1 or base is not None:
            yield from zip(entry.parts, codings.resolve(segment, base_lanes, where))


def patches(link):
    """For a direct link: {(tensor name, piece): [(lane, new value)]}, without any base. Lanes count in the piece."""
    if link.profile != "direct":
        raise DcfError("UNSUPPORTED", None, "relative values need the base (section 14, direct reader)")
    return {(part.entry.name, part.piece): coded for part, coded in decode(link)}


def check_link(data, limits=Limits()):
    """The operation *check* of section 10: steps 1 to 6 and 8, without a base."""
    link = parse(data, limits)
    for _ in decode(link):
        pass
    return link


def apply(data, base, limits=Limits()):
    """The operation *apply*: the target state, or an error; the base is never changed."""
    return apply_link(parse(data, limits), base)


def apply_chain(files, base, limits=Limits()):
    """Apply links one after another; R-APP-06 is checked for all of them before the first is applied."""
    links = [parse(data, limits) for data in files]
    for number, (one, two) in enumerate(zip(links, links[1:]), 1):
        check(two.header.base == one.header.target, "R-APP-06", f"link {number} does not continue the one before")
    for link in links:
        base = apply_link(link, base)
    return base


def apply_link(link, base):
    """Steps 7 to 9 for a link that was parsed."""
    check_base(link, base)
    target = build(link, base)
    for entry in link.index.tensors:
        if entry.operation != REMOVE:
            check(target[entry.name].digest() == entry.digest, "R-APP-04", f"tensor digest of {entry.name!r}")
    check(state_digest(target) == link.header.target, "R-APP-05", "state digest of the result")
    return target


def build(link, base):
    """Step 8 with the base, and the state that comes of it; nothing was compared with a digest yet."""
    buffers = {entry.name: bytearray(base[entry.name].data if entry.operation == PATCH else entry.byte_length)
               for entry in link.index.tensors if entry.operation != REMOVE}
    for part, coded in decode(link, base):
        dtype, (start, end) = part.entry.dtype, part.range
        buffer = buffers[part.entry.name]
        lanes = list(to_lanes(buffer[start:end], dtype.lane_bytes))
        for lane, value in coded:
            absolute = part.coding.values == ABSOLUTE
            lanes[lane] = value if absolute else codings.add_difference(dtype, lanes[lane], value)
        buffer[start:end] = from_lanes(lanes, dtype.lane_bytes)

    target = dict(base)
    for entry in link.index.tensors:
        target.pop(entry.name, None)  # an entry that removes may name a tensor that the base does not have
        if entry.operation != REMOVE:
            target[entry.name] = Tensor(entry.dtype, entry.shape, bytes(buffers[entry.name]))
    return target
