"""Layouts that commits name (SPEC section 25)."""
from . import chains
from .chains import Chain, Held, Route, digest, halves, step, whole
from .links_layout import KEY, ONE_FILE, file, files
from .model import EMPTY, State, tensor
from .registry import makes_vectors
from .signatures import signed, trust

NAME = "model.safetensors"
NAMED, OTHER = files(file(NAME)), files(file(NAME, metadata={"format": "pt"}))
SPLIT = files(file("a.safetensors", ["bias"]), file("b.safetensors", ["weight"]))
RULES = ["R-LAY-03"]
DEAR = 900  # bytes of padding


def names(*layouts):
    """Returns the metadata of a commit with these layouts."""
    return {"deltachain.layouts": " ".join(digest(layout.encode()) for layout in layouts)}


def leads(base, target, layout=None, fill=0):
    """A link that states a layout. `fill`: bytes of padding."""
    made = step(base, target)
    made.metadata = [("", "." * fill)] * (fill > 0) + [(KEY, layout)] * (layout is not None)
    return made


def route(source, version, layout=None, fill=0):
    """A route to a version of `whole`."""
    return Route(source, links=[leads(EMPTY if source is None else whole(source), whole(version), layout, fill)])


def line(*keys, layout=NAMED):
    """A version for each key. The first states this layout, which is carried over to the others. A key of None means no
    key."""
    chain = Chain()
    for number, key in enumerate(keys):
        first = route(None, 0, layout) if number == 0 else route(number - 1, number)
        chain.publish(whole(number), first, metadata=key)
    return chain


def good(id, chain, path, layouts, reason, *, section="25.2", features=(), **more):
    """`layouts`: texts, of the shards that are taken."""
    vector = chains.good(f"layouts/{id}", chain, path, reason, section=section, rules=RULES,
                         features=["layout", "layouts", *features], **more)
    vector.expect["replay"]["layouts"] = [digest(layout.encode()) for layout in layouts]
    return vector


def bad(id, chain, path, twin, reason, *, rule="R-LAY-03", section="25.2", **more):
    """The plan succeeds: it does not read layouts."""
    return chains.bad(f"layouts/{id}", chain, rule, f"layouts/{twin}", reason, path=path, section=section,
                      features=["layout", "layouts"], **more)


def held(version, layout=NAMED, proven=True):
    return Held(version, layouts=[{"layout": layout, "proven": proven}])


def without_routes(chain, *versions):
    for version in versions:
        chain.put_routes(version, 1)
    return chain


@makes_vectors
def keys():
    key = names(NAMED)
    for id, chain, layout, reason in (
            ("carried-over", line(key, key), NAMED, "version 1 keeps the layout, which its commit names"),
            ("one-file", line(names(ONE_FILE), names(ONE_FILE), layout=None), ONE_FILE,
             "no file states a layout: it is one file without a name"),
            ("one-file-stated", line(names(ONE_FILE), names(ONE_FILE), layout=ONE_FILE), ONE_FILE,
             "the layout of one file without a name is stated"),
            ("two-files", line(names(SPLIT), names(SPLIT), layout=SPLIT), SPLIT, "a layout of two files"),
            ("key-since-1", line(None, key), NAMED, "the first commit does not have the key"),
            ("key-of-0-alone", line(key, None), NAMED, "the last commit does not have the key")):
        yield good(id, chain, [0, 1], [layout], reason, section="25.1")
    stated = line(key).publish(whole(1), route(0, 1, SPLIT), metadata=names(SPLIT))
    yield good("stated", stated, [0, 1], [SPLIT], "version 1 states another layout, which its commit names", section="25.1")
    back = line(key).publish(whole(1), route(0, 1, ONE_FILE), metadata=names(ONE_FILE))
    yield good("one-file-again", back, [0, 1], [ONE_FILE], "version 1 has no name any more", section="25.1")
    twin = "carried-over"
    yield bad("not-carried-over", line(key, names(ONE_FILE)), [0, 1], twin,
              "version 1 keeps the layout, and its commit names one file", section="25.1")
    yield bad("digest-of-what-is-stated", line(key, names(OTHER)), [0, 1], twin, "the commit names another layout",
              section="25.1")
    yield bad("one-file-not-named", line(key, layout=None), [0], "one-file",
              "a snapshot without a layout, and the commit names a file with a name", section="25.1")


@makes_vectors
def tensors_that_come_and_go():
    def of(number, *tensors):
        return State(f"layouts-folders-{number}", {name: tensor("U8", [number, place]) for place, name in
                                                   enumerate(sorted(tensors, key=str.encode))})
    before, after = of(0, "a/x", "b/y", "c"), of(1, "a/v", "a/x", "b/y", "b/w", "a/b/z")
    first = files(file("a/m.safetensors", ["a/x"]), file("a/n.safetensors", []), file("l.safetensors", []),
                  file(NAME, ["b/y", "c"], {"k": "v"}))
    then = files(file("a/m.safetensors", ["a/x"]), file("a/n.safetensors", ["a/b/z", "a/v"]), file("l.safetensors", []),
                 file(NAME, ["b/w", "b/y"], {"k": "v"}))
    snapshot = Route(None, links=[leads(EMPTY, before, first)])
    chain = Chain().publish(before, snapshot, metadata=names(first)).publish(after, 0, metadata=names(then))
    yield good("folders", chain, [0, 1], [then], "tensors are removed and added: to the last file of the longest folder")
    yield bad("folders-as-before", Chain().publish(before, snapshot, metadata=names(first)).publish(
        after, 0, metadata=names(first)), [0, 1], "folders", "the commit names the layout of the base")
    inside = files(file("a/m.safetensors"))
    small, large = of(2, "a/x"), of(3, "a/x", "b")
    chain = Chain().publish(small, Route(None, links=[leads(EMPTY, small, inside)]), metadata=names(inside))
    homeless = chain.copy().publish(large, 0, metadata=names(inside))
    yield bad("no-file-for-it", homeless, [0, 1], "folders", "there is no file for a tensor that is added",
              rule="R-LAY-01", section="12")
    stated = files(file("a/m.safetensors", ["a/x"]), file("m.safetensors", ["b"]))
    chain.publish(large, 0, Route(None, links=[leads(EMPTY, large, stated, DEAR)]), metadata=names(stated))
    yield good("no-file-for-it-but", chain, [0, 1], [stated],
               "there is no file for a tensor that is added, but a snapshot that states one", section="12")


@makes_vectors
def other_keys():
    one, two = digest(NAMED.encode()), digest(OTHER.encode())
    for id, value, reason in (
            ("empty", "", "the key has no digest"), ("two", f"{two} {two}", "two digests for one shard"),
            ("upper-case", two.upper(), "the digits are capitals"), ("short", two[1:], "a digit is missing"),
            ("space-before", f" {two}", "a space before the digest"), ("space-after", f"{two} ", "a space after it"),
            ("newline", f"{two}\n", "a newline after it"), ("prefix", f"0x{two}", "a prefix")):
        yield good(f"key-{id}", line({"deltachain.layouts": value}), [0], [NAMED], f"{reason}: as no key",
                   section="25.1")
    for id, value, reason in (("one", one, "one digest for two shards"),
                              ("spaces", f"{two}  {two}", "two spaces between the digests"),
                              ("comma", f"{two},{two}", "a comma between the digests"),
                              ("three", f"{two} {two} {two}", "three digests for two shards")):
        chain = Chain().publish(halves(0), None, metadata={"deltachain.layouts": value})
        yield good(f"key-{id}-of-two-shards", chain, [0], [ONE_FILE] * 2, f"{reason}: as no key", section="25.1")
    chain = line(None).put_routes(0, 1, route(None, 0, NAMED), metadata=names(OTHER))
    yield good("key-of-routes", chain, [0], [NAMED], "the key in a routes document means nothing", section="25.1")
    chain = line(names(NAMED), layout=OTHER).put_routes(0, 1, route(None, 0, OTHER), metadata=names(OTHER))
    yield bad("key-of-routes-alone", chain, [0], "key-of-routes",
              "the key in a routes document does not replace that of the commit", section="25.1")


@makes_vectors
def strangers():
    key, twin = names(NAMED), "stranger"
    chain = line(key, key).put_routes(1, 1, route(0, 1), route(None, 1, OTHER))
    yield good("stranger", chain, [1], [NAMED], "a routes document has a snapshot with other metadata: another path is "
               "taken", head=1)
    alone = without_routes(line(key, key), 0).put_routes(1, 1, route(None, 1, OTHER))
    yield bad("stranger-alone", alone, [1], twin, "a snapshot with other metadata is the only path")
    unstated = without_routes(line(key, key), 0).put_routes(1, 1, route(None, 1))
    yield bad("stranger-states-nothing", unstated, [1], twin, "a snapshot without a layout is the only path")
    right = without_routes(line(key, key), 0).put_routes(1, 1, route(None, 1, NAMED))
    yield good("stranger-is-right", right, [1], [NAMED], "a snapshot of a routes document with the layout that is named")
    dear = line(key).publish(whole(1), route(0, 1, fill=DEAR), metadata=key)
    chain = dear.copy().put_routes(1, 1, route(0, 1, fill=DEAR), route(0, 1, SPLIT))
    yield good("stranger-from-held", chain, [1], [NAMED], "a routes document has a route from the version held, to other "
               "files", held=held(0))
    chain = dear.copy().put_routes(1, 1, route(0, 1, SPLIT))
    yield bad("stranger-from-held-alone", chain, [1], "stranger-from-held", "a route to other files is the only one",
              held=held(0))
    chain = line(key, None).put_routes(1, 1, route(0, 1), route(None, 1, OTHER))
    yield good("stranger-without-key", chain, [1], [OTHER], "the last commit has no key, so any layout is taken")
    chain = line(None, None, key).put_routes(1, 1, route(0, 1), route(None, 1, OTHER))
    yield good("blame-snapshot", chain, [1, 2], [NAMED], "the wrong layout comes from the snapshot before, which is at "
               "fault")
    chain = line(None).publish(whole(1), route(0, 1, fill=DEAR)).publish(whole(2), 1, metadata=key)
    chain.put_routes(1, 1, route(0, 1, fill=DEAR), route(0, 1, OTHER))
    yield good("blame-stated", chain, [0, 1, 2], [NAMED], "the wrong layout comes from the route before that states it, "
               "which is at fault")
    chain = line(key, None, names(OTHER))
    chain.publish(whole(3), 2, route(None, 3, OTHER, DEAR), metadata=names(OTHER))
    yield good("blame-last-proven", chain, [0, 1, 2, 3], [OTHER], "a commit names another layout than the one that was "
               "proven before: a snapshot is taken")
    yield bad("blame-last-proven-alone", line(key, None, names(OTHER)), [0, 1, 2], "blame-last-proven",
              "a commit names another layout than the one that was proven before")


@makes_vectors
def own_files():
    key = names(NAMED)
    yield bad("own-snapshot", line(key, layout=OTHER), [0], "carried-over", "the commit's own file has another layout")
    chain = line(key).publish(whole(1), route(0, 1, OTHER), metadata=key)
    yield bad("own-step", chain, [0, 1], "carried-over", "the commit's own file states another layout")
    yield bad("own-step-from-held", chain, [1], "stranger-from-held", "the same from the version held", held=held(0))
    chain = line(key).publish(whole(1), route(0, 1, OTHER), route(None, 1, NAMED, DEAR), metadata=key)
    yield good("own-step-and-snapshot", chain, [0, 1], [NAMED], "the commit's own file states another layout, a snapshot "
               "the right one")
    yield good("own-step-and-snapshot-from-held", chain, [1], [NAMED], "the same from the version held", held=held(0))
    wrong = files(file("model.bin"))
    chain = line(key).publish(whole(1), route(0, 1), route(None, 1, wrong, DEAR), metadata=key)
    yield good("malformed-and-not-used", chain, [0, 1], [NAMED], "a route that is not used has a malformed layout",
               section="19")
    yield bad("malformed", line(names(wrong), layout=wrong), [0], "carried-over", "a malformed layout, as it is named",
              rule="R-LAY-01", section="19")
    yield bad("malformed-and-another", line(key, layout=wrong), [0], "carried-over",
              "a malformed layout, which is not the one that is named", rule="R-LAY-01", section="19")
    chain = line(key, key).put_routes(1, 1, route(0, 1), route(None, 1, wrong))
    yield good("malformed-and-another-path", chain, [1], [NAMED], "a stranger's snapshot has a malformed layout",
               section="19")


@makes_vectors
def held_layouts():
    key = names(NAMED)
    chain = line(key, key)
    for id, proven in (("proven", True), ("not-proven", False)):
        yield good(f"held-{id}", chain, [1], [NAMED], f"the layout of the version held is the right one, and {id}",
                   held=held(0, proven=proven))
        yield good(f"held-at-head-{id}", chain, [], [NAMED], "the head is held, with the layout that its commit names",
                   head=1, held=held(1, proven=proven))
        yield good(f"held-other-at-head-{id}", chain, [], [NAMED],
                   "the head is held, with another layout: it is read from nothing", head=1, held=held(1, OTHER, proven))
    yield good("held-other", chain, [1], [NAMED], "another layout is held: the path begins with nothing",
               held=held(0, OTHER, proven=False))
    yield good("held-other-files", line(names(SPLIT), names(SPLIT), layout=SPLIT), [1], [SPLIT],
               "one file is held where two are named", held=held(0, ONE_FILE, proven=False))
    yield good("held-other-stated", line(key).publish(whole(1), route(0, 1, OTHER), metadata=names(OTHER)), [1], [OTHER],
               "another layout is held, which does not matter: the route states one", held=held(0, SPLIT, proven=False))
    yield good("held-other-without-key", line(None, None), [1], [OTHER], "another layout is held, and no commit has the key",
               held=held(0, OTHER, proven=False))
    for id, text, reason in (("text", "[]", "is none"), ("tensors", SPLIT.replace("bias", "other"), "is of other tensors")):
        yield good(f"held-other-{id}", chain, [1], [NAMED], f"the text that was recorded {reason}: the path begins with "
                   "nothing", held=held(0, text))
    pruned = without_routes(line(key, key), 0)
    yield bad("held-other-alone", pruned, [1], "held-proven", "another layout is held, and no path begins with nothing",
              held=held(0, OTHER, proven=False))
    yield bad("held-other-at-head-alone", without_routes(line(key, key), 1), [], "held-at-head-proven",
              "the head is held, with another layout, and no route leads to it", held=held(1, OTHER))


def trusted(id, chain, path, layouts, reason, **more):
    last = len(chain.commits)
    return good(f"trust-{id}", signed(chain, *range(last)), path, layouts, reason, trust=trust(), **more)


def refused(id, chain, path, twin, reason, **more):
    last = len(chain.commits)
    return bad(f"trust-{id}", signed(chain, *range(last)), path, f"trust-{twin}", reason, trust=trust(), **more)


@makes_vectors
def with_trust():
    key, twin = names(NAMED), "commits"
    yield trusted("commits", line(None, None), [0, 1], [NAMED], "no key, and routes of commits")
    yield trusted("key", line(key, key), [0, 1], [NAMED], "each commit names the layout")
    same = line(None, None).put_routes(1, 1, route(0, 1))
    yield trusted("route-of-both", same, [0, 1], [NAMED], "a routes document has the commit's own route")
    chain = line(None, None).put_routes(1, 1, route(0, 1), route(None, 1, OTHER))
    yield trusted("stranger", chain, [1], [NAMED], "no key, and a snapshot that only a routes document names: another path")
    chain = line(None, None).put_routes(1, 1, route(0, 1), route(None, 1, NAMED))
    yield trusted("stranger-same", chain, [1], [NAMED], "the same with the right layout, which nobody vouches for")
    for id, layout in (("alone", OTHER), ("same-alone", NAMED), ("unstated-alone", None)):
        chain = without_routes(line(None, None), 0).put_routes(1, 1, route(None, 1, layout))
        yield refused(f"stranger-{id}", chain, [1], twin, "no key, and the only path is not of commits")
    chain = without_routes(line(None, key), 0).put_routes(1, 1, route(None, 1, NAMED))
    yield trusted("stranger-named", chain, [1], [NAMED], "a snapshot of a routes document, with the layout that is named")
    dear = line(None).publish(whole(1), route(0, 1, fill=DEAR))
    dear.put_routes(1, 1, route(0, 1, fill=DEAR), route(0, 1))
    yield trusted("stranger-step", dear, [0, 1], [NAMED], "a step that only a routes document names: another path")
    chain = dear.copy().publish(whole(2), route(1, 2, SPLIT))
    yield trusted("stated-above", chain, [0, 1, 2], [SPLIT], "a stranger's step, and above it a commit's file states the "
                  "layout")
    chain = dear.copy().publish(whole(2), route(1, 2), metadata=key)
    yield trusted("named-above", chain, [0, 1, 2], [NAMED], "a stranger's step, and above it a commit names the layout")
    chain = line(None, None, None).put_routes(1, 1, route(0, 1), route(None, 1, NAMED))
    yield trusted("blame-snapshot", chain, [1, 2], [NAMED], "the stranger's snapshot is at fault, not the step above")
    yield trusted("held", line(None, None), [1], [NAMED], "no key, and the layout held is proven", held=held(0))
    yield trusted("held-at-head", line(None), [], [NAMED], "no key, and the layout held is proven", head=0, held=held(0))
    yield trusted("held-not-proven", line(None, None), [1], [NAMED],
                  "no key, and the layout held is not proven: the path begins with nothing",
                  held=held(0, OTHER, proven=False))
    yield trusted("held-not-proven-at-head", line(None), [], [NAMED],
                  "no key, and the layout of the head, which is held, is not proven", head=0,
                  held=held(0, OTHER, proven=False))
    yield trusted("held-not-proven-named", without_routes(line(None, key), 0), [1], [NAMED],
                  "the layout held is not proven, but the commit names it", held=held(0, proven=False))
    yield trusted("held-not-proven-stated", without_routes(line(None).publish(whole(1), route(0, 1, SPLIT)), 0), [1],
                  [SPLIT], "the layout held is not proven, but the commit's file states one", held=held(0, proven=False))
    yield refused("held-not-proven-alone", without_routes(line(None, None), 0), [1], "held",
                  "no key, the layout held is not proven, and no path begins with nothing", held=held(0, proven=False))
    yield refused("held-not-proven-at-head-alone", without_routes(line(None), 0), [], "held-at-head",
                  "no key, the layout of the head, which is held, is not proven, and no route leads to it",
                  held=held(0, proven=False))
    yield good("no-trust-held-not-proven", line(None, None), [1], [OTHER], "the same layout without trust is taken",
               held=held(0, OTHER, proven=False))


@makes_vectors
def several_shards():
    def leading(source, version, *layouts, fill=0):
        bases = [EMPTY] * 2 if source is None else halves(source)
        return Route(source, links=[leads(*pair, layout, fill) for *pair, layout in zip(bases, halves(version), layouts)])
    left, right = files(file("left.safetensors")), files(file("right.safetensors"))
    key, plain = names(left, right), (None, None)
    chain = Chain().publish(halves(0), leading(None, 0, left, right), metadata=key)
    chain.publish(halves(1), leading(0, 1, *plain), metadata=key)
    yield good("shards", chain, [0, 1], [left, right], "each shard has a layout of its own")
    other = chain.copy().put_routes(1, 1, leading(0, 1, *plain), leading(None, 1, left, OTHER))
    yield good("shards-second", other, [1], [left, right], "a stranger's snapshot of the second shard has another layout")
    yield good("shards-first-taken", other, [1], [left], "the same, of which the first shard is taken",
               take={"shards": [0]})
    yield good("shards-second-taken", other, [1], [right], "the same, of which the second shard is taken",
               take={"shards": [1]})
    yield good("shards-no-tensor-taken", other, [1], [left, right], "no tensor is taken; layouts are those of all",
               take={"tensors": []})
    yield good("shards-one-tensor-taken", chain, [1], [left, right],
               "one tensor is taken; layouts are those of all", take={"tensors": ["left"]},
               held=Held(0, layouts=[{"layout": left, "proven": True}, {"layout": right, "proven": False}]))
    alone = without_routes(chain.copy(), 0).put_routes(1, 1, leading(None, 1, left, OTHER))
    yield bad("shards-second-alone", alone, [1], "shards", "of two shards the second has another layout")
    swapped = without_routes(chain.copy(), 0).put_routes(1, 1, leading(None, 1, right, left))
    yield bad("shards-swapped", swapped, [1], "shards", "the layouts of two shards have changed places")
