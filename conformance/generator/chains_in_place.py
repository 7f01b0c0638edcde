"""Following a chain in place (SPEC section 24.6): the held state is memory (R-SUM-07), and only routes of commits are
used (R-SUM-08)."""
from . import chains
from .builder import DENSE, PLANES
from .chains import Chain, Held, Route, halves, step, whole
from .chains_layouts import DEAR, leads
from .links import CLASSES
from .model import EMPTY, State, tensor
from .registry import makes_vectors_since
from .sums import UNSUPPORTED, sums, with_sums, wrong_lanes

KEY = "deltachain.in-place"


def local(base, target, fill=0):
    return with_sums(leads(base, target, fill=fill))


def route(source, version, shards=whole, fill=0):
    """A local route, from a version."""
    pairs = zip(*([one] if isinstance(one, State) else one for one in (shards(source), shards(version))))
    return Route(source, links=[local(*pair, fill) for pair in pairs])


def snapshot(version):
    """A snapshot that is so large that the held version is nearer."""
    return Route(None, links=[leads(EMPTY, whole(version), fill=DEAR)])


def compact(source, version):
    """A compact route, smaller than a local one: without sums."""
    return Route(source, links=[step(whole(source), whole(version), positions=DENSE, values=PLANES)])


def begun():
    return Chain().publish(whole(0), snapshot(0))


def good(id, chain, path, reason, *, held=0, refused=None, **more):
    """`refused`: the answer of a reader in place; other readers take the path."""
    one = chains.good(f"in-place/{id}", chain, path, reason, section="24.6", held=held, features=["in-place"], **more)
    one.expect["replay-in-place"] = refused or one.expect["replay"]
    if refused and refused["rule"]:
        one.twin = "chains/in-place/one"
    return one


@makes_vectors_since("1.2")
def taken():
    marked = {KEY: "0"}
    chain = begun().publish(whole(1), route(0, 1), metadata=marked)
    yield good("one", chain, [1], "a local link, which the commit names")
    chain.publish(whole(2), route(1, 2), metadata=marked)
    yield good("two", chain, [1, 2], "two local links, one after the other")
    yield good("two-first", chain, [1], "a version that is not the last", head=1, version=1)
    yield good("nothing", chain, [], "the version that is held", head=2, held=2)
    skip = chain.copy().publish(whole(3), route(2, 3, fill=DEAR), route(0, 3), metadata={KEY: "0 1"})
    yield good("skip", skip, [3], "a local link that skips versions")
    two = Chain().publish(halves(0), None).publish(halves(1), route(0, 1, halves), metadata=marked)
    yield good("shards", two, [1], "two shards, each with a local link")
    both = begun().publish(whole(1), compact(0, 1), route(0, 1, fill=DEAR), metadata={KEY: "1"})
    yield good("dearer", both, [1], "a smaller link that is not local, and a local one")
    missing = skip.copy()
    del missing.objects[chains.file_name(local(whole(0), whole(3)).encode())]
    yield good("file-missing", missing, [3], "the file of a local link is missing: by the other versions")


@makes_vectors_since("1.2")
def refused():
    chain = begun().publish(whole(1), compact(0, 1))
    yield good("not-local", chain, [1], "the only link is not local, and has no sums", refused=dict(UNSUPPORTED))
    chain = begun().publish(whole(1), compact(0, 1), metadata={KEY: "0"})
    yield good("not-local-marked", chain, [1], "the same, and the commit says that it is local", refused=dict(UNSUPPORTED))
    chain = begun().publish(whole(1), snapshot(1))
    yield good("from-nothing", chain, [1], "the only route is from nothing", from_nothing=True, refused=dict(UNSUPPORTED))


@makes_vectors_since("1.2")
def memory():
    """R-SUM-07: all memory is compared, including memory that no link touches."""
    chain = begun().publish(whole(1), route(0, 1), metadata={KEY: "0"})
    for id, changed, reason in (
            ("coded-lane", {"weight": tensor("BF16", [0x3F80 + 64 * i + (i < 1) for i in range(8)])},
             "in a lane that the link codes"),
            ("other-lane", {"weight": tensor("BF16", [0x3F80 + 64 * i + (i == 7) for i in range(8)])},
             "in a lane that the link does not code"),
            ("minus-zero", {"bias": tensor("F32", [0x80000000])}, "-0 in the place of 0")):
        other = State(f"chain-in-place-{id}", whole(0).tensors | changed)
        yield good(f"memory-{id}", chain, [1], f"the memory is not that of the version: {reason}",
                   held=Held(0, shards=[other]), refused={"class": CLASSES["R-APP-01"], "rule": "R-APP-01"})


@makes_vectors_since("1.2")
def strangers():
    """R-SUM-08: a writer of a routes document can name any lanes with fitting sums."""
    honest = route(0, 1, fill=DEAR)
    lanes = [0x3F80 + 64 * i + 5 * (i < 1) for i in range(8)]
    wrong = State("chain-in-place-stranger", whole(1).tensors | {"weight": tensor("BF16", lanes)})
    lie = local(whole(0), wrong)
    lying = Route(0, links=[with_sums(wrong_lanes(step(whole(0), whole(1)), lie), sums(lie))])
    chain = begun().publish(whole(1), honest, metadata={KEY: "0"})
    yield good("stranger", chain.copy().put_routes(1, 1, lying, honest, metadata={KEY: "0 1"}), [1],
               "a routes document names a smaller link with other lanes and fitting sums")
    alone = begun().publish(whole(1), compact(0, 1))
    yield good("stranger-alone", alone.put_routes(1, 1, compact(0, 1), lying, metadata={KEY: "0 1"}), [1],
               "the only local link has other lanes and fitting sums, and the commit does not name it",
               refused=dict(UNSUPPORTED))
    kind = begun().publish(whole(1), compact(0, 1)).put_routes(1, 1, route(0, 1), metadata={KEY: "0"})
    yield good("routes-alone", kind, [1], "a routes document alone names the local link",
               size=len(local(whole(0), whole(1)).encode()), refused=dict(UNSUPPORTED))
