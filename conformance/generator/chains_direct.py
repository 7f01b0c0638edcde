"""The cheapest direct path (SPEC section 19), by the key that names direct routes (section 18). The key is a hint, and
only *plan* reads it; there are no files."""
from .chains import Chain, Route, bad, commit_name, good, whole
from .chains_routes import named
from .registry import makes_vectors

KEY = "deltachain.direct"


def made(*versions):
    """For each version its routes, pairs of source and size, and the value of the key, if it has one."""
    chain = Chain()
    for number, (routes, *mark) in enumerate(versions):
        chain.publish(whole(number), *(Route(start, named=named(size, number=100 * number + place))
                                       for place, (start, size) in enumerate(routes)), metadata=metadata(*mark))
    return chain


def metadata(mark=None):
    return {} if mark is None else {KEY: mark, "step": "100"}


def plan(id, chain, path, size, reason, direct=True, **others):
    return good(f"direct/{id}", chain, path, reason, size=size, replay=False, direct=direct or None,
                features=["direct-path"], **others)


START = [(None, 1000)]


def both(mark=None):
    """A small route and a large one from version 0."""
    return made((START,), ([(0, 40), (0, 120)], *([] if mark is None else [mark])))


@makes_vectors
def marks():
    yield plan("marked", both("1"), [0, 1], 1120, "the larger of two routes is direct")
    yield plan("marked-not-wanted", both("1"), [0, 1], 1040,
               "the larger of two routes is direct, but the cheapest path is "
               "wanted", direct=False)
    yield plan("unmarked", both(), [0, 1], 1040, "no route is marked, so the cheapest path")
    yield plan("marked-wrongly", both("0"), [0, 1], 1040, "the smaller of two routes is marked, whatever its file has")
    yield plan("both-marked", both("0 1"), [0, 1], 1040, "both routes are marked: the smaller one")
    yield plan("held", both("1"), [1], 120, "the larger of two routes from the held version is direct", held=0)
    three = made((START,), (START + [(0, 40), (0, 120), (0, 130)], "2 3"))
    yield plan("counted-from-nothing", three, [1], 1000, "routes are counted with those from nothing, which are direct")
    yield plan("counted-from-nothing-held", three, [1], 120, "routes are counted with those from nothing", held=0)
    for id, mark in (("named", "0 2"), ("alone", "0")):
        chain = made((START,), ([(None, 1500), (0, 40), (0, 900)], mark))
        path, size = ([1], 1500)
        yield plan(f"route-from-nothing-{id}", chain, path, size, "a route from nothing is direct, and may be named")
    many = made((START,), ([(0, size) for size in range(40, 52)], "10 11"))
    yield plan("two-digits", many, [0, 1], 1050, "numbers of two digits")


@makes_vectors
def values_of_another_form():
    """Any other value counts as no key: a reader takes the smaller route, though each of these could be read as the
    number 1."""
    for id, mark, reason in (
            ("empty", "", "the empty text"), ("leading-zero", "01", "a leading zero"), ("space-before", " 1",
                                                                                        "a space before"),
            ("space-after", "1 ", "a space after"), ("two-spaces", "0  1", "two spaces"), ("comma", "0,1", "a comma"),
            ("comma-and-space", "0, 1", "a comma and a space"), ("tab", "0\t1", "a tab"),
            ("newline", "1\n", "a newline"),
            ("descending", "1 0", "numbers that descend"), ("twice", "1 1", "a number twice"), ("plus", "+1", "a sign"),
            ("minus", "-1", "a negative number"), ("fraction", "1.0", "a fraction"), ("exponent", "1e0", "an exponent"),
            ("hexadecimal", "0x1", "hexadecimal digits"), ("array", "[1]", "an array"), ("words", "direct 1", "a word"),
            ("full-width", "\uff11", "a digit that is not ASCII"), ("arabic", "\u0661", "a digit that is not ASCII"),
            ("no-such-route", "1 2", "a number that no route has"), ("2-64", f"1 {2**64 + 1}", "a number above 2^64"),
            ("nul", "1\0", "a zero byte"), ("true", "true", "a boolean"), ("semicolon", "1;", "a semicolon"),
            ("from", "nothing 1", "words")):
        yield plan(f"value-{id}", both(mark), [0, 1], 1040, f"the key's value is as no key: {reason}")
    for id, mark in (("leading-zero", "01"), ("twice", "1 1"), ("no-such-route", "1 9")):
        yield plan(f"value-{id}-and-nothing", made((START,), ([(None, 1500), (0, 40)], mark)), [1], 1500,
                   "the key's value is as no key, and a route from nothing is direct all the same")
    for id, key in (("capital", "deltachain.Direct"), ("other-capital", "Deltachain.direct"),
                    ("space", "deltachain.direct "),
                    ("short", "direct"), ("plural", "deltachain.directs")):
        chain = Chain().publish(whole(0), Route(None, named=named(1000)))
        chain.publish(whole(1), *(Route(0, named=named(size, number=size)) for size in (40, 120)), metadata={key: "1"})
        yield plan(f"key-{id}", chain, [0, 1], 1040, "a key that is called almost so")


@makes_vectors
def paths():
    chain = made((START,), ([(0, 40), (0, 120)], "1"), ([(1, 40), (1, 120)],), ([(2, 40), (2, 120)], "1"))
    yield plan("partly", chain, [0, 1, 2, 3], 1000 + 120 + 40 + 120, "only some versions say which route is direct")
    yield plan("partly-held", chain, [2, 3], 40 + 120, "only one version says which route is direct", held=1)
    chain = made((START,), ([(0, 40)],), ([(None, 1100), (1, 40)],))
    yield plan("snapshot", chain, [2], 1100, "a snapshot is direct, the steps are not known to be")
    yield plan("snapshot-not-wanted", chain, [0, 1, 2], 1080, "a snapshot, and steps that cost less", direct=False)
    chain = made((START,), ([(0, 40)], "0"), ([(None, 1100), (1, 40)], "1"))
    yield plan("steps", chain, [0, 1, 2], 1080, "the steps are direct, and cost less than the snapshot")
    chain = made((START,), ([(0, 300)],), ([(0, 200), (1, 10)], ), ([(0, 301), (1, 5000), (2, 102)], "1"))
    yield plan("fewest-other-bytes", chain, [0, 1, 3], 1000 + 300 + 5000,
               "300 bytes of routes that are not known to be direct are less than 301, whatever the others have")
    chain = made((START,), ([(0, 300)],), ([(0, 300)],), ([(1, 700), (2, 600)], "0 1"))
    yield plan("then-all-bytes", chain, [0, 2, 3], 1900,
               "of paths with as many bytes that are not known to be direct, the one with fewer in all")
    chain = made((START,), ([(0, 300)],), ([(0, 900), (1, 600)], "0 1"))
    yield plan("then-fewest-bytes-with-one-route", chain, [0, 2], 1900, "one direct route of as many bytes as two")
    chain = made((START,), ([(0, 300)], "0"), ([(0, 900), (1, 600)], "0 1"))
    yield plan("then-fewest-routes", chain, [0, 2], 1900,
               "of paths with as many bytes of each kind, the one with fewer routes")
    chain = made((START,), ([(0, 300)], "0"), ([(0, 300)], "0"), ([(1, 600), (2, 600)], "0 1"))
    yield plan("then-lowest", chain, [0, 1, 3], 1900, "of paths that cost the same, the one through the lower version")
    chain = made((START,), ([(0, 300), (0, 400)], "1"), ([(1, 1), (1, 500)], "1"))
    yield plan("all-direct", chain, [0, 1, 2], 1900, "direct routes all the way")
    yield plan("none-needed", chain, [], 0, "the head is held", held=2, head=2)
    yield plan("older-by-number", chain, [0, 1], 1400, "an older version is wanted, by direct routes", held=2,
               version=1,
               from_nothing=True)


@makes_vectors
def of_other_documents():
    def routes(mark, commit_mark=None, version=1):
        chain = both(commit_mark)
        return chain.put_routes(version, 1, *(Route(0, named=named(size, number=200 + size)) for size in (41, 121)),
                                metadata=metadata(mark))
    yield plan("routes-document", routes("1"), [0, 1], 1121, "a routes document says which of its routes is direct")
    yield plan("routes-document-without-key", routes(None, "1"), [0, 1], 1041,
               "the commit's key says nothing of a routes document's routes")
    yield plan("routes-document-with-another-key", routes("0", "1"), [0, 1], 1041,
               "the commit's key is another than that of the routes document")
    yield plan("routes-document-with-a-bad-key", routes("01", "1"), [0, 1], 1041,
               "a routes document with a bad value, in place of which the commit's does not come")
    newer = routes("1").put_routes(1, 2, *(Route(0, named=named(size, number=300 + size)) for size in (42, 122)))
    yield plan("routes-document-of-before", newer, [0, 1], 1042,
               "the key of the routes document of the generation before says nothing")
    broken = routes("0", "1")
    broken.objects["routes/00000000000000000001-0000000001.json"] += b"\n"
    yield plan("routes-document-passed-over", broken, [0, 1], 1120,
               "a malformed routes document: the commit's routes and its key are in force", rules=["R-DOC-03"])
    pruned = both("1").put_routes(1, 1, metadata=metadata("0"))
    yield bad("direct/pruned", pruned, "R-CHN-08", "direct/routes-document", "no route is left, whatever the key says",
              replay=False, direct=True, features=["direct-path"])
    gap = made((START,), ([(0, 40)], "0"), ([(None, 2000), (1, 40)], "1"))
    yield plan("commit-missing", gap.without(commit_name(0)), [2], 2000,
               "the direct steps begin at a version without a commit: the snapshot", rules=["R-CHN-03"])
    yield bad("direct/no-commit", gap.without(commit_name(2)), "R-CHN-03", "direct/steps", "the version has no commit",
              version=2, replay=False, direct=True, features=["direct-path"])
    chain = Chain().publish(whole(0), Route(None, named=named(1000)))
    chain.publish(whole(1), Route(0, named=named(40, number=1)), Route(0, named=named(50, number=2)),
                  metadata={KEY: "1"}).put_routes(1, 1, Route(0, named=named(30, 30, number=7)),
                                                  Route(0, named=named(90, number=8)), metadata=metadata("0"))
    yield plan("wrong-number-of-files", chain, [0, 1], 1090, "the direct route has two files for one shard",
               rules=["R-CHN-07"])
