"""Additions of 1.1 and 1.2 in a chain, for readers that know none of them, or are not asked to use them."""
from . import chains
from .chains import Route, whole
from .chains_in_place import KEY, begun, route
from .chains_layouts import NAMED, OTHER, leads, line, names
from .model import EMPTY
from .registry import makes_vectors_since
from .signatures import FIRST, put_own


def good(id, chain, path, reason, section="22", **more):
    return chains.good(f"ignored/{id}", chain, path, reason, section=section, **more)


@makes_vectors_since("1.2")
def additions():
    """None of these vectors has the feature of an addition."""
    key = names(NAMED)
    yield good("layouts", line(key, key), [0, 1], "commits name the digest of the layout")
    yield good("other-layouts", line(names(OTHER), names(OTHER)), [0, 1],
               "commits name the digest of another layout than the files have")
    other = line(key, key).put_routes(1, 1, Route(None, links=[leads(EMPTY, whole(1), OTHER)]))
    yield good("layout-of-a-stranger", other, [1], "a routes document has a snapshot with another layout")
    for id, note, reason in (("own-note", None, "a key has an own note"), ("own-rubbish", b"rubbish", "an own note is rubbish")):
        yield good(id, put_own(chains.line(1), 1, FIRST, note), [0, 1], f"{reason}, and nobody is trusted")
    for id, mark in (("marked", "0"), ("marked-wrongly", "x")):
        chain = begun().publish(whole(1), route(0, 1), metadata={KEY: mark})
        yield good(f"in-place-{id}", chain, [1], f"a link has sums, and the key of links in place is {mark!r}", held=0)
