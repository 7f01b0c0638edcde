"""Layouts of commits: one decision each of section 25 that no earlier vector showed (see links_decisions.py)."""
from . import chains
from .chains import Chain, Route, whole
from .chains_layouts import DEAR, NAMED, OTHER, bad, good, held, leads, line, names, refused, route, trusted
from .chains_layouts import without_routes
from .coding import link
from .links import refused as refused_link
from .links import valid
from .links_layout import ONE_FILE, file, files
from .model import EMPTY, State, tensor
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
    """Only one route is at fault: without any of the others there is no path."""
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


SMALL = State("layouts-in-a-folder", {"a/x": tensor("U8", b"abc")})
LARGE = State("layouts-out-of-it", SMALL.tensors | {"b": tensor("U8", b"d")})
NEW = State("layouts-in-it-again", {"a/y": tensor("U8", b"e")})
ALONE = State("layouts-out-of-it-alone", {"b": tensor("U8", b"f")})
INSIDE = files(file("a/m.safetensors"))
BOTH = files(file("a/m.safetensors", ["a/x"]), file("m.safetensors", []))
SECTION = "12"


@makes_vectors_since("1.2")
def sequences_of_links():
    """Section 12: a layout that a link does not state is carried over from the previous link, even through the empty
    state. The given base is one file without a name."""
    large, removal = leads(SMALL, LARGE), link(SMALL, EMPTY)
    again, alone = leads(EMPTY, NEW), leads(EMPTY, ALONE)
    yield valid("layout-base-is-one-file", large, SECTION, "a tensor without a folder is added to a base whose tensors are in "
                "one", features=["layout"])
    yield valid("layout-removed", removal, SECTION, "the only tensor is removed")
    yield valid("layout-snapshot-in-a-folder", again, SECTION, "a snapshot; also the last of a sequence")
    yield valid("layout-snapshot", alone, SECTION, "a snapshot without folders; also the last of a sequence")
    after, then = ["links/valid/layout-base-is-one-file"], ["links/valid/layout-removed"]
    more = {"features": ["layout", "sequence"]}
    yield valid("layout-file-for-it", leads(EMPTY, SMALL, BOTH), SECTION, "a tensor without a folder is added in the second "
                "link; the first states a file for it", result=LARGE, then=after, **more)
    yield valid("layout-through-nothing", leads(EMPTY, SMALL, INSIDE), SECTION, "all tensors are removed, then one is set in "
                "the folder that the first link states", result=NEW,
                then=[*then, "links/valid/layout-snapshot-in-a-folder"], **more)
    yield refused_link("layout/no-file-for-it", leads(EMPTY, SMALL, INSIDE), "R-LAY-01", "a tensor without a folder is "
                       "added in the second link; the first states one file, in a folder", "layout-file-for-it", SECTION,
                       check=None, then=after, **more)
    yield refused_link("layout/no-file-for-it-through-nothing", leads(EMPTY, SMALL, INSIDE), "R-LAY-01", "all tensors are "
                       "removed, then one is set outside of the folder that the first link states",
                       "layout-through-nothing", SECTION, check=None, then=[*then, "links/valid/layout-snapshot"], **more)


@makes_vectors_since("1.2")
def through_the_empty_state():
    def chain(last, *more):
        first = Route(None, links=[leads(EMPTY, SMALL, INSIDE)])
        result = Chain().publish(SMALL, first).publish(EMPTY, 0)
        return result.publish(last, Route(1, links=[leads(EMPTY, last)]), *more)
    yield good("through-nothing", chain(NEW), [0, 1, 2], [INSIDE], "all tensors are removed, then one is set in the same "
               "folder: the layout is carried over", section=SECTION)
    yield bad("no-file-through-nothing", chain(ALONE), [0, 1, 2], "through-nothing", "all tensors are removed, then one is "
              "set outside of the folder of the only file", rule="R-LAY-01", section=SECTION)
    yield good("no-file-through-nothing-but", chain(ALONE, Route(None, links=[leads(EMPTY, ALONE, fill=DEAR)])), [0, 1, 2],
               [ONE_FILE], "the same, and a snapshot from nothing, which is one file", section=SECTION)
    plain = {"section": SECTION, "features": ["layout"]}
    yield chains.good("links/layout-through-nothing", chain(NEW), [0, 1, 2], "all tensors are removed, then one is set in "
                      "the same folder; layouts are checked, although none is written", **plain)
    yield chains.bad("links/layout-no-file-through-nothing", chain(ALONE), "R-LAY-01", "links/layout-through-nothing",
                     "all tensors are removed, then one is set outside of the folder of the only file", path=[0, 1, 2],
                     **plain)
    first = Route(None, links=[leads(EMPTY, SMALL, INSIDE)])
    homeless = Chain().publish(SMALL, first).publish(LARGE, Route(0, links=[leads(SMALL, LARGE)]))
    yield chains.bad("links/layout-no-file-for-it", homeless, "R-LAY-01", "links/layout-through-nothing",
                     "a tensor without a folder is added, and the only file lies in one", path=[0, 1], **plain)
    yield chains.good("links/layout-held-is-one-file", homeless, [1], "the same from the version held, which is one file "
                      "where nothing else is said", held=0, **plain)
