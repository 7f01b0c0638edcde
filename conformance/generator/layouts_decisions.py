"""Layouts of commits: one decision each of section 25, which no vector showed before (see links_decisions.py)."""
from .chains import Chain, Route, whole
from .chains_layouts import DEAR, NAMED, OTHER, good, held, leads, line, names, refused, route, trusted, without_routes
from .links_layout import ONE_FILE, file, files
from .model import EMPTY
from .registry import makes_vectors_since

NAME = "model.safetensors"


@makes_vectors_since("1.2")
def what_is_proven():
    yield trusted("one-file", line(None, layout=None), [0], [ONE_FILE],
                  "no key, and a snapshot of the commit that states no layout: one file")
    yield trusted("one-file-carried-over", line(None, None, layout=None), [0, 1], [ONE_FILE],
                  "the same, and a step of the commit above")
    chain = Chain().publish(whole(0), route(None, 0, fill=DEAR)).put_routes(0, 1, route(None, 0))
    yield refused("one-file-of-a-stranger", chain, [0], "one-file",
                  "no key, and a snapshot that only a routes document names and that states no layout")
    yield trusted("held-without-another-path", without_routes(line(None, None), 0), [1], [NAMED],
                  "no key, the layout held is proven, and no path begins with nothing", held=held(0))
    yield trusted("held-at-head-without-another-path", without_routes(line(None), 0), [], [NAMED],
                  "no key, the layout of the head, which is held, is proven, and no route leads to it", head=0,
                  held=held(0))


@makes_vectors_since("1.2")
def blame():
    """One route alone is at fault: without any of the others there is no path."""
    strange = Chain().publish(whole(0), Route(None, links=[leads(EMPTY, whole(0), NAMED, DEAR)]))
    strange.put_routes(0, 1, route(None, 0, NAMED)).publish(whole(1), route(0, 1, fill=DEAR))
    strange.put_routes(1, 1, route(0, 1, OTHER), route(0, 1, fill=DEAR)).publish(whole(2), 1, metadata=names(NAMED))
    yield good("blame-stated-above-a-stranger", strange, [0, 1, 2], [NAMED], "the wrong layout is stated by a route above a "
               "stranger's snapshot, which every path needs")
    proven = line(names(NAMED), None)
    proven.publish(whole(2), route(1, 2), route(1, 2, OTHER, DEAR), metadata=names(OTHER))
    yield good("blame-above-what-is-proven", proven, [0, 1, 2], [OTHER], "a commit names another layout than the one that "
               "was proven before: a route that states it, above the same snapshot")


@makes_vectors_since("1.2")
def metadata_without_members():
    empty, none = files(file(NAME, metadata={})), NAMED
    yield good("metadata-empty", line(names(empty), names(empty), layout=empty), [0, 1], [empty],
               "metadata without members, which are not the same as none", section="25.1")
    yield good("metadata-none-and-empty", line(names(none)).publish(whole(1), route(0, 1, empty), metadata=names(empty)),
               [0, 1], [empty], "no metadata, then metadata without members", section="25.1")
    yield good("metadata-empty-held", line(names(empty), names(empty), layout=empty), [1], [empty],
               "metadata without members are held", section="25.1", held=held(0, empty))
