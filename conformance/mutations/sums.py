"""Sums of links (spec/in-place.md): right ones, wrong ones, and damaged areas."""
from dataclasses import replace

from deltachain_py import in_place, link as dcf
from deltachain_py.errors import DcfError
from deltachain_py.index import REMOVE
from deltachain_py.model import piece_range, to_lanes

from .values import damage_bytes

MOST = 1 << 16  # bytes of a state: sums are slow here


def with_sums(rng, base, data):
    """Returns the link with sums of its target, mostly right, or unchanged if it has no target."""
    try:
        link, target = dcf.parse(data), dcf.apply(data, base)
        coded = {(part.entry.name, part.piece): [lane for lane, _ in lanes] for part, lanes in dcf.decode(link, base)}
    except DcfError:
        return data
    if sum(len(tensor.data) for tensor in target.values()) > MOST:
        return data
    pairs = []
    for entry in link.index.tensors:
        for piece in range(0 if entry.operation == REMOVE else len(entry.segments)):
            own, width = target[entry.name].data[slice(*piece_range(entry.byte_length, piece))], entry.dtype.lane_bytes
            pairs.append(in_place.sums_of(own))
            if (entry.name, piece) in coded:
                lanes = to_lanes(own, width)
                pairs.append(in_place.sums_of_lanes([(lane, lanes[lane]) for lane in coded[entry.name, piece]], width))
    if pairs and rng.random() < 0.35:
        number, k, add = rng.randrange(len(pairs)), rng.randrange(2), rng.choice([1, in_place.P, 2**31])
        pairs[number] = tuple((one + add * (place == k)) % 2**32 for place, one in enumerate(pairs[number]))
    if rng.random() < 0.1:
        pairs = pairs[:-1] if rng.random() < 0.5 else [*pairs, (0, 0)]
    area = in_place.area(link.header, link.index_raw, pairs)
    if rng.random() < 0.15:
        area = damage_bytes(rng, area)
    elif rng.random() < 0.15:
        area += area[8:24] if rng.random() < 0.5 else (2).to_bytes(4, "little") + bytes(12)
    body = data[128:len(data) - link.header.extension_length]
    bits = rng.choice([0, 1, 1, 1, 1, 1, 1, 3, 2**32 - 1])
    return replace(link.header, compatible=bits, extension_length=len(area)).encode() + body + area


def sums_of_all(rng, base, files):
    """Returns (base, links): a sequence, with sums of each link as far as they exist."""
    found, state = [], base
    for data in files:
        found.append(with_sums(rng, state, data))
        try:
            state = dcf.apply(data, state)
        except DcfError:
            return base, [*found, *files[len(found):]]
    return base, found
