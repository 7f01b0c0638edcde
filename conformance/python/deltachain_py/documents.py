"""Documents of a chain (section 18): JSON texts with exactly one legal form.

A document is a dict; its digests are hexadecimal digits. Python's `json` happens to write the legal form, so a text is
legal if its values are, and if writing them gives the same text.
"""
import json
import re

from .errors import ASSET_BYTES, ASSETS, DOCUMENT_BYTES, check
from .names import apart, ascending, caseless, distinct, is_of_layouts, is_path

VERSION = 1
BEGIN = re.compile(rb'\{"deltachain":(0|[1-9][0-9]{0,15}),')
LARGEST = 2**53 - 1
DIRECT = "deltachain.direct"
LAYOUTS = "deltachain.layouts"
NUMBERS = re.compile("(0|[1-9][0-9]{0,15})( (0|[1-9][0-9]{0,15}))*")

# The table: members in their order; [item, minimum number of items]; a pattern for strings; the integers, or the
# minimum; (None, X) for null or X.
DIGEST = "[0-9a-f]{64}"
METADATA = object()
ROUTES = {"from": (None, 0), "files": [{"digest": DIGEST, "size": 1}, 1]}
ASSET = {"name": ".*", "digest": DIGEST, "size": 0}
KINDS = {
    "chain": {"deltachain": 0, "chain": "[0-9a-f]{32}", "metadata": METADATA},
    "commit": {"deltachain": 0, "version": 0, "parent": DIGEST, "state": DIGEST, "shards": [DIGEST, 1],
               "routes": [ROUTES, 1], "assets": [ASSET, 0], "metadata": METADATA},
    "routes": {"deltachain": 0, "version": 0, "generation": range(1, 10**10), "commit": DIGEST, "routes": [ROUTES, 0],
               "metadata": METADATA}}


def fits(value, table):
    if table is METADATA:
        return type(value) is dict and ascending(list(value)) and all(fits(text, ".*") for text in value.values())
    if type(table) is tuple:
        return value is None or fits(value, table[1])
    if type(table) is dict:
        return type(value) is dict and list(value) == list(table) and all(fits(value[m], table[m]) for m in table)
    if type(table) is list:
        item, least = table
        return type(value) is list and least <= len(value) and all(fits(one, item) for one in value)
    if type(table) is str:
        return type(value) is str and re.fullmatch(table, value, re.DOTALL) is not None
    return type(value) is int and value in (table if type(table) is range else range(table, LARGEST + 1))


def encode(document):
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def one_form(data, table):
    """Returns the value of a JSON text with these members; None if it is no such text or not in its legal form."""
    try:
        value = json.loads(data.decode("utf-8"))
        return value if fits(value, table) and encode(value) == data else None
    except (ValueError, RecursionError):
        return None


def order(route):
    """The key by which routes ascend. Hexadecimal digits compare like the bytes."""
    start, files = route["from"], route["files"]
    return -1 if start is None else start, sum(file["size"] for file in files), [file["digest"] for file in files]


def direct(document):
    """Returns the numbers of the document's direct routes (*direct routes*)."""
    routes, mark = document["routes"], document["metadata"].get(DIRECT, "")
    numbers = [int(number) for number in mark.split(" ")] if NUMBERS.fullmatch(mark) else []
    known = {number for number, route in enumerate(routes) if route["from"] is None}
    return known.union(numbers) if ascending(numbers) and all(number < len(routes) for number in numbers) else known


def layouts(commit):
    """Returns the digest of each shard's layout (section 25.1); None for each if the commit does not name them."""
    named = commit["metadata"].get(LAYOUTS, "").split(" ")
    legal = len(named) == len(commit["shards"]) and all(fits(digest, DIGEST) for digest in named)
    return named if legal else [None] * len(commit["shards"])


def is_asset_name(name):
    return is_path(name) and not is_of_layouts(name) and not caseless(name).startswith(b"deltachain.")


def parse(data, kind, where="document"):
    """Parses a document of the given kind."""
    check(len(data) <= DOCUMENT_BYTES, "R-LIM-05", f"more than {DOCUMENT_BYTES} bytes", where)
    begin = BEGIN.match(data)
    check(begin and int(begin[1]) <= LARGEST, "R-DOC-01", "it does not begin like a document", where)
    check(int(begin[1]) == VERSION, "R-DOC-02", f"version {int(begin[1])} of documents", where)
    document = one_form(data, KINDS[kind])
    check(document is not None, "R-DOC-03", f"not the one form of a {kind} document", where)
    routes, assets = document.get("routes", []), document.get("assets", [])
    earlier = all(order(route)[0] < document["version"] for route in routes)
    good = ascending([order(route) for route in routes]) and earlier
    check(good, "R-DOC-04", "routes are not in order, or come from a later version", where)
    if kind == "commit":
        shards = document["shards"]
        check(all(len(route["files"]) == len(shards) for route in routes), "R-DOC-05", "not a file per shard", where)
        check(len(shards) > 1 or shards == [document["state"]], "R-DOC-06", "one shard, yet not the state", where)
    unknown = [key for key in document["metadata"] if key.startswith("deltachain!")]
    check(not unknown, "R-DOC-07", f"metadata that a reader has to know: {unknown}", where)
    names = [asset["name"] for asset in assets]
    good = ascending(names) and distinct(names) and all(map(is_asset_name, names)) and apart(names)
    check(good, "R-DOC-08", "names of assets are not in order, distinct, apart and those of files", where)
    good = len(assets) <= ASSETS and all(asset["size"] <= ASSET_BYTES for asset in assets)
    check(good, "R-LIM-07", "too many assets, or one that is too large", where)
    return document
