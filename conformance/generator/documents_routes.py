"""Documents with several routes from the same version, and their order (SPEC section 18, R-DOC-04)."""
from .documents import COMMIT, FILE, LEFT, MOST, OTHER, RIGHT, commit, good, in_order, route, routes_document, size_of
from .documents import spoilt, text
from .registry import makes_vectors

SHARDS = 2050  # so many files of maximum length are more than 2^64 bytes


def rule(id, kind, routes, reason):
    """A valid document with these routes, and one for each pair of neighbours that is swapped."""
    assert routes == in_order(routes), id
    ids = [LEFT, RIGHT][:len(routes[0]["files"])]
    document = commit(7, shards=ids, routes=routes) if kind == "commit" else routes_document(7, 1, COMMIT, routes)
    yield good(f"routes-{id}", kind, document, reason, ["R-DOC-04"])
    for number, pair in enumerate(zip(routes, routes[1:]), 1):
        yield from spoilt("routes", "R-DOC-04", [
            (f"{id}-{number}", f"routes-{id}", ",".join(map(text, pair)), ",".join(map(text, pair[::-1])),
             f"{reason}: routes {number} and {number + 1} have changed places")])


@makes_vectors
def same_from():
    low, high = "0" * 63 + "1", "f" * 64
    yield from rule("by-size", "commit", [route(None, (high, 9), (high, 1)), route(None, (low, 2), (low, 9)),
                                          route(6, (high, 100), (high, 1)), route(6, (low, 1), (low, 101))],
                    "routes from one version ascend by the sum of their sizes")
    yield from rule("by-size-as-number", "routes", [route(3, (FILE, 9)), route(3, (FILE, 10)), route(3, (FILE, 200))],
                    "sizes ascend as numbers, not as text; one file with several sizes")
    yield from rule("by-digests", "routes", [
        route(None, (low, 5), (high, 6)), route(None, (FILE, 10), (OTHER, 1)), route(None, (FILE, 1), (high, 10)),
        route(None, (high, 5), (low, 6))], "routes of the same size ascend by the digests of their files")
    yield from rule("by-second-digest", "commit", [route(6, (FILE, 4), (low, 4)), route(6, (FILE, 4), (high, 4))],
                    "the digests of the second file decide")
    yield from rule("from-before-size", "routes", [route(None, (high, 900)), route(0, (high, 800)), route(5, (low, 1)),
                                                   route(5, (low, 2)), route(6, (low, 1))],
                    "where they come from counts for more than sizes")
    yield from rule("above-2-53", "routes", [route(2, (low, MOST), (low, MOST)), route(2, (high, MOST), (high, MOST))],
                    "equal sums above 2^53")
    yield from rule("above-2-53-by-one", "routes", [
        route(2, (high, MOST), (high, MOST - 1), (high, 3)), route(2, (low, MOST), (low, MOST), (low, 3))],
        "sums above 2^53 that differ by one, which a float of 64 bits does not hold")
    lower = route(None, *[(high, MOST)] * (SHARDS - 2), (high, 1), (high, 1))
    higher = route(None, *[(low, MOST)] * (SHARDS - 1), (low, 1))
    assert size_of(lower) < 2**64 < size_of(higher) and size_of(higher) % 2**64 < size_of(lower)
    yield from rule("above-2-64", "routes", [lower, higher], "a sum above 2^64, which is small in 64 bits")


@makes_vectors
def of_different_length():
    """Routes documents may have routes with different numbers of files."""
    low, high = "0" * 63 + "1", "f" * 64
    yield from rule("prefix", "routes", [route(None, (FILE, 3)), route(None, (FILE, 1), (OTHER, 2)),
                                         route(None, (FILE, 1), (OTHER, 1), (OTHER, 1))],
                    "of routes of the same size, that whose digests begin the other's comes first")
    yield from rule("prefix-later", "routes", [route(5, (low, 1), (high, 8)), route(5, (FILE, 9)),
                                               route(5, (FILE, 8), (low, 1)), route(5, (high, 9))],
                    "digests before the number of files")
    yield from rule("more-files-less-size", "routes", [route(5, (high, 1), (high, 1)), route(5, (low, 3))],
                    "the sum before the number of files")
    one, other = route(2, (FILE, 1), (OTHER, 2)), route(2, (FILE, 2), (OTHER, 1))
    good_one = routes_document(7, 1, COMMIT, [one])
    yield good("routes-one-of-two-files", "routes", good_one, "a route of two files", ["R-DOC-04"])
    for id, pair in (("ascending", [one, other]), ("descending", [other, one])):
        yield from spoilt("routes", "R-DOC-04", [
            (f"sizes-{id}", "routes-one-of-two-files", text(one), ",".join(map(text, pair)),
             "two routes of the same digests and the same sum, whatever the single sizes")])
