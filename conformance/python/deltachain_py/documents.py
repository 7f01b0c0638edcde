"""Documents of a chain (section 18): JSON texts with exactly one legal form.

A document is a dict, its digests being hexadecimal digits. Python's `json` happens to write the legal form, so a text
is legal if its values are and it comes out the same when it is written again.
"""
import json
import re

from .errors import DOCUMENT_BYTES, check
from .names import ascending, caseless, distinct, is_plain

VERSION = 1
BEGIN = re.compile(rb'\{"deltachain":(0|[1-9][0-9]{0,15}),')
LARGEST = 2**53 - 1

# The table: members in their order; [item, least number of items, most]; a pattern for strings; the integers, or the
# least; (None, X) for null or X.
DIGEST = "[0-9a-f]{64}"
METADATA = object()
ROUTES = {"from": (None, 0), "files": [{"digest": DIGEST, "size": 1}, 1]}
ASSET = {"name": ".*", "digest": DIGEST, "size": range(2**30 + 1)}
KINDS = {
    "chain": {"deltachain": 0, "chain": "[0-9a-f]{32}", "metadata": METADATA},
    "commit": {"deltachain": 0, "version": 0, "parent": DIGEST, "state": DIGEST, "shards": [DIGEST, 1],
               "routes": [ROUTES, 1], "assets": [ASSET, 0, 256], "metadata": METADATA},
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
        item, least, *most = table
        return (type(value) is list and least <= len(value) <= (most or [len(value)])[0]
                and all(fits(one, item) for one in value))
    if type(table) is str:
        return type(value) is str and re.fullmatch(table, value, re.DOTALL) is not None
    return type(value) is int and value in (table if type(table) is range else range(table, LARGEST + 1))


def encode(document):
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def one_form(data, table):
    """The value of a JSON text with these members; None if it is no such text or not the legal form of one."""
    try:
        value = json.loads(data.decode("utf-8"))
        return value if fits(value, table) and encode(value) == data else None
    except (ValueError, RecursionError):
        return None


def order(route):
    """What routes ascend by. Hexadecimal digits compare like the bytes."""
    start, files = route["from"], route["files"]
    return -1 if start is None else start, sum(file["size"] for file in files), [file["digest"] for file in files]


def is_asset_name(name):
    low = caseless(name)
    return (is_plain(name) and not low.endswith((b" ", b".", b".safetensors", b".safetensors.index.json"))
            and not low.startswith(b"deltachain."))


def parse(data, kind, where="document"):
    """The document of the given kind. The rules are checked in the order of their ids."""
    check(len(data) <= DOCUMENT_BYTES, "R-LIM-05", f"more than {DOCUMENT_BYTES} bytes", where)
    begin = BEGIN.match(data)
    check(begin and int(begin[1]) <= LARGEST, "R-DOC-01", "it does not begin like a document", where)
    check(int(begin[1]) == VERSION, "R-DOC-02", f"version {int(begin[1])} of documents", where)
    document = one_form(data, KINDS[kind])
    check(document is not None, "R-DOC-03", f"not the one form of a {kind} document", where)
    routes, assets = document.get("routes", []), [asset["name"] for asset in document.get("assets", [])]
    earlier = all(order(route)[0] < document["version"] for route in routes)
    good = ascending([order(route) for route in routes]) and earlier
    check(good, "R-DOC-04", "routes are not in order, or come from a later version", where)
    if kind == "commit":
        shards = document["shards"]
        check(all(len(route["files"]) == len(shards) for route in routes), "R-DOC-05", "not a file per shard", where)
        check(len(shards) > 1 or shards == [document["state"]], "R-DOC-06", "one shard, yet not the state", where)
    unknown = [key for key in document["metadata"] if key.startswith("deltachain!")]
    check(not unknown, "R-DOC-07", f"metadata that a reader has to know: {unknown}", where)
    good = ascending(assets) and distinct(assets) and all(map(is_asset_name, assets))
    check(good, "R-DOC-08", "names of assets are not in order, distinct and plain", where)
    return document
