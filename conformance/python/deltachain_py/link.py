"""A link file: parse, decode, check, apply (sections 9 and 10)."""
from dataclasses import dataclass

from . import codings, layout
from .errors import DcfError, Limits, check
from .header import SIZE, Header, parse_header
from .index import ABSOLUTE, PATCH, REMOVE, Index, parse_index
from .model import Tensor, from_lanes, table_digest, table_of, to_lanes
from .primitives import crc32
from .segment import decode_segment
from .streams import read_stream


@dataclass
class Link:
    data: bytes
    header: Header
    index: Index
    index_raw: bytes

    @property
    def profile(self):
        return "direct" if all(s.coding.values == ABSOLUTE for s in self.index.segments) else "compact"

    def stored_segments(self):
        """Yields (number, entry, stored bytes) of each segment."""
        pos = SIZE + self.header.index_stored
        for number, entry in enumerate(self.index.segments):
            yield number, entry, self.data[pos:pos + entry.stored_length]
            pos += entry.stored_length


def parse(data, limits=Limits()):
    """Does steps 1 to 6: header and index."""
    header = parse_header(data, limits)
    stored = data[SIZE:SIZE + header.index_stored]
    check(crc32(stored) == header.index_crc, "R-IDX-01", "index CRC", "index")
    raw = read_stream(stored, header.index_raw, "index")
    return Link(data, header, parse_index(raw, header, limits), raw)


def promise(link, table, files):
    """Does step 7. Returns the table of the target, from the digests that the link promises, and the files of its
    layout, for a base with this table and layout."""
    digest = table_digest(table)
    check(digest == link.header.base, "R-APP-01", f"base is {digest.hex()}, not {link.header.base.hex()}")
    target = dict(table)
    for entry in link.index.tensors:
        old = target.pop(entry.name, None)  # an entry that removes may name a tensor that the base does not have
        if entry.operation == PATCH:
            fits = old is not None and old.dtype == entry.dtype and old.byte_length == entry.byte_length
            check(fits, "R-APP-02", f"base has no such tensor {entry.name!r}")
        if entry.operation != REMOVE:
            target[entry.name] = entry.row()
    check(table_digest(target) == link.header.target, "R-APP-05", "state digest of what the link promises")
    text = dict(link.index.metadata).get(layout.KEY)
    return target, layout.carried(files, table, target) if text is None else layout.parse(text, target)


def everything(_name):
    return True


def decode(link, base=None, taken=everything):
    """Does step 8: yields (part, [(lane, value)]) with sorted lanes, value being the new lane or the difference.

    Segments without a part of a selected tensor are not read. Without the base, nothing is yielded for segments with
    more than one context.
    """
    def base_lanes(part):
        return to_lanes(base[part.entry.name].data[slice(*part.range)], part.entry.dtype.lane_bytes)

    for number, entry, stored in link.stored_segments():
        if any(taken(part.entry.name) for part in entry.parts):
            where = f"segment {number}"
            segment = decode_segment(stored, entry, where)
            if segment.table.contexts == 1 or base is not None:
                yield from codings.resolve(segment, taken, base_lanes, where)


def patches(link):
    """Returns {(tensor name, piece): [(lane, new value)]} of a direct link, without any base. Lanes count within the
    piece."""
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
    return apply_chain([data], base, limits)


def apply_chain(files, base, limits=Limits()):
    """Applies links one after another. Each group of steps is done for all links before the next group."""
    links, _ = promised(files, table_of(base), limits)
    for link in links:
        base = build(link, base)
    return base


def promised(files, table, limits):
    """Does steps 1 to 7 for consecutive links, from a base with this table, which is one file. Returns the links, and
    the table of the last target."""
    links = [parse(data, limits) for data in files]
    for number, (one, two) in enumerate(zip(links, links[1:]), 1):
        check(two.header.base == one.header.target, "R-APP-06", f"link {number} does not continue the one before")
    files = layout.ONE_FILE
    for link in links:
        table, files = promise(link, table, files)
    return links, table


def build(link, base, taken=everything):
    """Does steps 8 and 9 for a link that passed step 7. Returns the target; only the selected tensors are built.

    The base, too, holds only the selected tensors.
    """
    entries = [entry for entry in link.index.tensors if taken(entry.name)]
    buffers = {entry.name: bytearray(base[entry.name].data if entry.operation == PATCH else entry.byte_length)
               for entry in entries if entry.operation != REMOVE}
    for part, coded in decode(link, base, taken):
        dtype, (start, end) = part.entry.dtype, part.range
        buffer = buffers[part.entry.name]
        lanes = list(to_lanes(buffer[start:end], dtype.lane_bytes))
        for lane, value in coded:
            absolute = part.coding.values == ABSOLUTE
            lanes[lane] = value if absolute else codings.add_difference(dtype, lanes[lane], value)
        buffer[start:end] = from_lanes(lanes, dtype.lane_bytes)

    target = dict(base)
    for entry in entries:
        target.pop(entry.name, None)
        if entry.operation != REMOVE:
            tensor = Tensor(entry.dtype, entry.shape, bytes(buffers[entry.name]))
            check(tensor.digests() == entry.digests, "R-APP-04", f"digest of {entry.name!r}")
            target[entry.name] = tensor
    return target
