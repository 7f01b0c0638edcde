"""Links that name wrong digests of tensors with several pieces (SPEC sections 3, 6.3 and 9)."""
from blake3 import blake3

from .links import copy_of, refused
from .model import state_digest
from .registry import makes_vectors


def flipped(digest):
    return bytes([digest[0] ^ 1]) + digest[1:]


def wrong(id, rule, twin, change, reason, promised=False, section="9", check=False):
    """`change` changes the list of digests of the last tensor. `promised`: the header's target follows from them."""
    link = copy_of(twin)
    change(link.entries[-1].digests)
    if promised:
        link.header = {"target": link.promised()}
    return refused(f"pieces/{id}", link, rule, reason, twin, section, check=check)


def flip(number):
    def change(digests):
        digests[number] = flipped(digests[number])
    return change


def swap(digests):
    digests[0], digests[1] = digests[1], digests[0]


@makes_vectors
def one_digest():
    for id, twin, number, reason in (
            ("first-changed", "pieces-two-segments", 0, "the first of three pieces, which changes"),
            ("second-changed", "pieces-two-segments", 1, "the second of three pieces, which changes"),
            ("last-unchanged", "pieces-two-segments", 2, "the last of three pieces, which does not change"),
            ("middle-unchanged", "pieces-one-segment", 1, "the middle one of three pieces, which does not change"),
            ("one-unchanged", "digests-1", 0, "the only piece, which does not change"),
            ("first-of-2-unchanged", "digests-2", 0, "the first of two pieces, neither of which changes"),
            ("last-of-2-unchanged", "digests-2", 1, "the last piece, of one lane, which does not change"),
            ("full-of-2-unchanged", "digests-2-full", 1, "the last of two full pieces, which does not change"),
            ("zeros", "digests-of-zeros", 1, "the second piece of a tensor of zeros"),
            ("zeros-last", "digests-of-zeros", 3, "the last byte of a tensor of zeros"),
            ("set", "segment-2-full-pieces", 1, "the second of two pieces that are set"),
            ("above", "piece-above-u8", 1, "the second piece, of one byte, which changes")):
        yield wrong(f"digest-{id}", "R-APP-04", twin, flip(number), f"another digest of {reason}", promised=True)
        if id in ("second-changed", "last-unchanged", "zeros"):
            yield wrong(f"promise-{id}", "R-APP-05", twin, flip(number),
                        f"another digest of {reason}; the header has the right target")
    yield wrong("digests-swapped", "R-APP-04", "pieces-two-segments", swap, "the digests of two pieces, exchanged",
                promised=True)
    yield wrong("promise-swapped", "R-APP-05", "pieces-two-segments", swap,
                "the digests of two pieces, exchanged; the header has the right target")
    link = copy_of("pieces-two-segments")
    link.segments[1].set_raw("sign", bytes([link.segments[1].streams["sign"].raw[0] ^ 1]))
    yield refused("pieces/value-of-second", link, "R-APP-04", "another value in the second piece", "pieces-two-segments", "9",
                  check=False)


@makes_vectors
def other_ways_to_hash():
    """A state digest from other tensor digests, and other digests in the index."""
    def hashed(link, digest):
        return state_digest({name: (item.dtype, item.shape, len(item.data), digest(item))
                             for name, item in link.target.tensors.items()})
    for id, digest, reason in (
            ("of-all-data", lambda item: blake3(item.data).digest(), "BLAKE3 of all data"),
            ("of-first-piece", lambda item: item.digests()[0], "the digest of the first piece"),
            ("of-pieces-in-hexadecimal", lambda item: blake3("".join(d.hex() for d in item.digests()).encode()).digest(),
             "BLAKE3 of piece digests in hexadecimal")):
        for twin in ("digests-2", "pieces-two-segments"):
            link = copy_of(twin)
            link.header = {"target": hashed(link, digest)}
            yield refused(f"pieces/target-{id}-{twin}", link, "R-APP-05",
                          f"the target has {reason} in place of the tensor digest", twin, "3", check=False)
    link = copy_of("digests-1")
    link.header = {"target": hashed(link, lambda item: blake3(b"".join(item.digests())).digest())}
    yield refused("pieces/target-of-one-piece", link, "R-APP-05", "the digest of one piece is hashed again", "digests-1",
                  "3", check=False)

    def put(*digests):
        def change(old):
            old[:] = [old[number] if number is not None else blake3(b"".join(old)).digest() for number in digests]
        return change
    for id, rule, digests, reason in (
            ("tensor-digest-alone", "R-INT-03", (None,), "the tensor digest in place of those of its pieces"),
            ("one-digest-less", "R-INT-03", (0, 1), "the last piece has no digest"),
            ("tensor-digest-too", "R-IDX-02", (0, 1, 2, None), "the tensor digest after those of its pieces"),
            ("one-digest-more", "R-IDX-02", (0, 1, 2, 2), "a digest of a fourth piece")):
        yield wrong(id, rule, "pieces-two-segments", put(*digests), reason, section="6.3", check=True)
    yield wrong("empty-without-digest", "R-INT-03", "digests-0", put(), "an empty tensor has no piece, but a digest",
                section="6.3", check=True)
    yield wrong("one-piece-hashed-again", "R-APP-05", "digests-1", put(None), "the digest of one piece is hashed again",
                section="6.3")
