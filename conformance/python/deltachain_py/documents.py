"""Documents of a chain (section 18): JSON texts with exactly one legal form.

A document is a dict, its digests being hexadecimal digits. Python's `json` happens to write the legal form, so a text
is legal if its values are and it comes out the same when it is written again.
"""
import json
import re

from .errors import DOCUMENT_BYTES, check, fail

VERSION = 0
BEGIN = re.compile(rb'\{"deltachain":(0|[1-9][0-9]{0,15}),')
LARGEST = 2**53 - 1

# The table: members in their order; [item, least number of items]; a pattern for strings; the integers, or
# the least.
DIGEST = "[0-9a-f]{64}"
NOTHING_OR_VERSION, METADATA = object(), object()
ROUTES = {"from": NOTHING_OR_VERSION, "files": [{"digest": DIGEST, "size": 1}, 1]}
KINDS = {
    "chain": {"deltachain": 0, "chain": "[0-9a-f]{32}"},
    "commit": {"deltachain": 0, "version": 0, "parent": DIGEST, "state": DIGEST, "shards": [DIGEST, 1],
               "routes": [ROUTES, 1], "metadata": METADATA},
    "routes": {"deltachain": 0, "version": 0, "generation": range(1, 10**10), "commit": DIGEST, "routes": [ROUTES, 0]}}


def fits(value, table):
    if table is NOTHING_OR_VERSION:
        return value is None or fits(value, 0)
    if table is METADATA:  # Python compares strings by code points, which is the order of their bytes
        return type(value) is dict and list(value) == sorted(value) and all(fits(text, ".*") for text in value.values())
    if type(table) is dict:
        return type(value) is dict and list(value) == list(table) and all(fits(value[m], table[m]) for m in table)
    if type(table) is list:
        return type(value) is list and len(value) >= table[1] and all(fits(item, table[0]) for item in value)
    if type(table) is str:
        return type(value) is str and re.fullmatch(table, value, re.DOTALL) is not None
    return type(value) is int and value in (table if type(table) is range else range(table, LARGEST + 1))


def encode(document):
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def parse(data, kind, where="document"):
    """The document of the given kind. The rules are checked in the order of their ids."""
    check(len(data) <= DOCUMENT_BYTES, "R-LIM-05", f"more than {DOCUMENT_BYTES} bytes", where)
    begin = BEGIN.match(data)
    check(begin and int(begin[1]) <= LARGEST, "R-DOC-01", "it does not begin like a document", where)
    check(int(begin[1]) == VERSION, "R-DOC-02", f"version {int(begin[1])} of documents", where)
    try:
        document = json.loads(data.decode("utf-8"))
        one_form = fits(document, KINDS[kind]) and encode(document) == data
    except (ValueError, RecursionError) as error:
        fail("R-DOC-03", f"no JSON text: {error}", where)
    check(one_form, "R-DOC-03", f"not the one form of a {kind} document", where)
    routes, shards = document.get("routes", []), document.get("shards")
    order = [-1 if route["from"] is None else route["from"] for route in routes]
    good = order == sorted(set(order)) and all(start < document["version"] for start in order)
    check(good, "R-DOC-04", "routes are not in order, or come from a later version", where)
    if kind == "commit":
        check(all(len(route["files"]) == len(shards) for route in routes), "R-DOC-05", "not a file per shard", where)
        check(len(shards) > 1 or shards == [document["state"]], "R-DOC-06", "one shard, yet not the state", where)
    return document
