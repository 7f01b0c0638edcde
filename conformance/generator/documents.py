"""Documents of a chain (SPEC section 18): their text form, and the vectors of single documents.

Invalid documents are valid ones in which one run of bytes is replaced."""
import json

from .links import CLASSES
from .registry import MADE, Vector, makes_vectors

SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
LEAST, LIMIT = 1 << 24, 1 << 26  # bytes that every reader supports, and that no document may exceed
MOST = 2**53 - 1  # the highest integer


def text(value):
    """Returns the canonical text of a value. Members of a dict keep their order."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(name)}:{text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text, value)) + "]"
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(string):
    return '"' + "".join(SHORT.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in string) + '"'


def route(source, *files):
    """`files` are pairs of digest and size."""
    return {"from": source, "files": [{"digest": digest, "size": size} for digest, size in files]}


def size_of(route):
    return sum(file["size"] for file in route["files"])


def in_order(routes):
    """Sorts routes as R-DOC-04 requires."""
    return sorted(routes, key=lambda route: (-1 if route["from"] is None else route["from"], size_of(route),
                                             [file["digest"] for file in route["files"]]))


def asset(name, digest, size):
    return {"name": name, "digest": digest, "size": size}


def ascending(metadata):
    return dict(sorted(metadata.items(), key=lambda item: item[0].encode()))


def chain_document(chain, metadata=None):
    return text({"deltachain": 1, "chain": chain, "metadata": ascending(metadata or {})}).encode()


def commit_document(version, parent, state, shards, routes, metadata, assets=(), replaced=()):
    """`replaced`: members that get other values."""
    return text({"deltachain": 1, "version": version, "parent": parent, "state": state, "shards": shards,
                 "routes": routes, "assets": list(assets), "metadata": ascending(metadata)} | dict(replaced)).encode()


def routes_document(version, generation, commit, routes, metadata=None, replaced=()):
    return text({"deltachain": 1, "version": version, "generation": generation, "commit": commit,
                 "routes": routes, "metadata": ascending(metadata or {})} | dict(replaced)).encode()


# Digests of no particular bytes.
PARENT, STATE, LEFT, RIGHT, FILE, OTHER, COMMIT = (f"{number:02x}" * 32 for number in (
    0x1a, 0x2b, 0x3c, 0x4d, 0x5e, 0x6f, 0x70))
SNAPSHOT, STEP = route(None, (FILE, 1234)), route(6, (OTHER, 200))


def commit(version=7, parent=PARENT, state=STATE, shards=(STATE,), routes=(SNAPSHOT, STEP), metadata=None, assets=()):
    return commit_document(version, parent, state, list(shards), list(routes), {"step": "100"} if metadata is None
                           else metadata, assets)


def good(id, kind, file, reason, rules=("R-DOC-03",)):
    return Vector(f"documents/valid/{id}", file, "13" if rules == ["R-LIM-05"] else "18", reason, {"document": {}}, "document",
                  ".json", list(rules), members={"document": kind})


@makes_vectors
def valid_documents():
    yield good("chain", "chain", chain_document("00112233445566778899aabbccddeeff"), "a chain document")
    yield good("chain-zeros", "chain", chain_document("0" * 32), "an identifier of digits only")
    yield good("commit", "commit", commit(), "a commit with a snapshot and a step")
    yield good("commit-0", "commit", commit(0, routes=[SNAPSHOT], metadata={}), "version 0, nothing in metadata")
    yield good("commit-step-only", "commit", commit(routes=[STEP]), "a route from the parent only")
    two = [LEFT, RIGHT]
    yield good("commit-two-shards", "commit", commit(shards=two, routes=[route(None, (FILE, 1), (OTHER, 2)),
                                                                         route(6, (OTHER, 3), (FILE, 4))]),
               "two shards, and two files in each route", ["R-DOC-05"])
    yield good("commit-equal-shards", "commit", commit(shards=[LEFT, LEFT], routes=[route(None, *[(FILE, 131)] * 2)]),
               "two shards with one digest (both empty), one file for both", ["R-DOC-05"])
    yield good("commit-300-shards", "commit", commit(shards=[f"{i:064x}" for i in range(300)], routes=[
        route(None, *((f"{i + 1000:064x}", i + 1) for i in range(300)))]), "300 shards", ["R-DOC-05"])
    numbers = [None, 0, 1, 2, 9, 10, 99, 100, 101]
    yield good("commit-many-routes", "commit", commit(102, routes=[route(n, (FILE, 1)) for n in numbers]),
               "routes ascend by number, not as text; several may use one file", ["R-DOC-04"])
    yield good("integers-highest", "commit", commit(MOST, routes=[route(MOST - 1, (FILE, MOST))]),
               "2^53 - 1 is the highest integer")
    yield good("routes", "routes", routes_document(7, 1, COMMIT, [SNAPSHOT, STEP]), "a routes document")
    yield good("routes-empty", "routes", routes_document(7, 2, COMMIT, []), "a version without routes has been pruned")
    yield good("routes-of-0", "routes", routes_document(0, 1, COMMIT, [SNAPSHOT]), "routes to version 0")
    yield good("routes-generation", "routes", routes_document(7, 9999999999, COMMIT, [SNAPSHOT]),
               "a generation of ten digits")
    yield good("routes-two-shards", "routes", routes_document(7, 3, COMMIT, [
        route(None, (FILE, 1), (OTHER, 2)), route(3, (OTHER, 1), (FILE, 2))]), "two files in each route")


@makes_vectors
def valid_metadata():
    controls = "".join(map(chr, range(32)))
    for id, metadata, reason in (
            ("escapes", {"all": controls + '"\\', controls: "as a key", '"\\': ""}, "every character that is escaped"),
            ("as-themselves", {"k": "/'<>&\x7f\x80\x85\u00a0\u2028\u2029\ufeff\ufffd", "\x7f": "U+007F"},
             "U+007F, U+2028 and others that some libraries escape are written as themselves"),
            ("last-code-points", {"k": "\ud7ff\ue000\uffff\U00010000\U0001f600\U0010ffff"},
             "characters around the surrogates, non-characters and those beyond U+FFFF as themselves"),
            ("order-utf8", {"a": "", "\u00e9": "", "\uff5e": "", "\uffff": "", "\U00010000": "", "\U0001f600": ""},
             "keys ascend as UTF-8; as UTF-16, U+10000 would come before U+FF5E"),
            ("order-before-escaping", {"\n": "", "!": "", '"': "", "#": "", "A": "", "\\": "", "]": ""},
             "keys ascend before they are escaped; as escaped, the newline would come after A"),
            ("order-prefix", {"": "", "a": "", "a\0": "", "a b": "", "aa": "", "b": ""},
             "the empty key first, a prefix before what it begins"),
            ("normal-forms", {"e\u0301": "NFD", "\u00e9": "NFC"}, "keys that look equal are two"),
            ("names-of-members", {"__proto__": "", "deltachain": "1", "metadata": "{}", "version": "8"},
             "keys may be called like members"),
            ("reserved", {"deltachain.of-the-future": "?"}, "an unknown key with the reserved prefix means nothing"),
            ("json-like", {"k": '{"a":[1e999,NaN], "a":"\\u0041"}'}, "a value that looks like JSON is a string"),
            ("256-entries", {f"{i:03}": str(i) for i in range(256)}, "256 members of metadata")):
        yield good(f"metadata-{id}", "commit", commit(metadata=metadata), reason)
        if id in ("escapes", "order-utf8", "reserved"):
            chain = chain_document("00112233445566778899aabbccddeeff", metadata)
            yield good(f"metadata-{id}-chain", "chain", chain, f"{reason}; a chain document")
            yield good(f"metadata-{id}-routes", "routes", routes_document(7, 1, COMMIT, [STEP], metadata),
                       f"{reason}; a routes document")
    many = {f"{i:05x}": "" for i in range(70000)}
    yield good("metadata-70000-entries", "commit", commit(metadata=many),
               "the limits of a link's metadata do not concern documents", ["R-LIM-05"])
    for kind, file in (("chain", chain_document("00112233445566778899aabbccddeeff", {"k": "v"})),
                       ("commit", commit(metadata={"k": "v"})),
                       ("routes", routes_document(7, 1, COMMIT, [STEP], {"k": "v"}))):
        yield grown(good(f"16-mib-{kind}", kind, file, "as long a document as every reader reads", ["R-LIM-05"]), LEAST)


def grown(vector, length):
    """Repeats the value `v` until the file has this length."""
    assert vector.file.count(b'"v"') == 1
    vector.members = vector.members | {"grown": {"at": vector.file.index(b'"v"') + 1, "length": length}}
    return vector


def bad(group, id, twin, file, rule, reason):
    source = MADE[f"documents/valid/{twin}"]
    return Vector(f"documents/{group}/{id}", file, "13" if rule in ("R-LIM-05", "R-LIM-07") else "18", reason,
                  {"document": {"class": CLASSES[rule], "rule": rule}}, "document", ".json", [rule], twin=source.id,
                  members=source.members)


def spoilt(group, rule, rows):
    """Rows of id, twin, the replaced bytes (which occur once), their replacement, reason."""
    for id, twin, old, new, reason in rows:
        file = MADE[f"documents/valid/{twin}"].file
        old, new = (item.encode() if isinstance(item, str) else item for item in (old, new))
        assert file.count(old) == 1, f"{id}: {old} is not there once"
        yield bad(group, id, twin, file.replace(old, new), rule, reason)


@makes_vectors
def too_long():
    for kind in ("chain", "commit", "routes"):
        twin = MADE[f"documents/valid/16-mib-{kind}"]
        yield grown(bad("limits", f"64-mib-and-a-byte-{kind}", f"16-mib-{kind}", twin.file, "R-LIM-05", "one byte too long"),
                    LIMIT + 1)
    for id, file, reason in (("then-form", b' "v"', "too long, and no document"),
                             ("then-version", b'{"deltachain":2,"v"}', "too long, and of a newer version")):
        yield grown(bad("limits", f"64-mib-and-a-byte-{id}", "16-mib-commit", file, "R-LIM-05", reason), LIMIT + 1)


@makes_vectors
def beginnings():
    start = '{"deltachain":1,'
    yield bad("beginning", "empty", "commit", b"", "R-DOC-01", "an empty file")
    yield bad("beginning", "only-version", "chain", b'{"deltachain":1}', "R-DOC-01", "no comma after the version")
    yield bad("beginning", "cut-off", "chain", b'{"deltachain":1', "R-DOC-01", "the file ends after the version")
    text_16 = MADE["documents/valid/chain"].file.decode().encode("utf-16-le")
    yield bad("beginning", "utf-16", "chain", text_16, "R-DOC-01", "UTF-16 instead of UTF-8")
    yield from spoilt("beginning", "R-DOC-01", (
        ("byte-order-mark", "commit", start, "\ufeff" + start, "a byte order mark"),
        ("space-before", "commit", start, " " + start, "white space before the object"),
        ("newline-before", "chain", start, "\n" + start, "white space before the object"),
        ("space-inside", "commit", start, '{ "deltachain":1,', "white space before the first member"),
        ("space-after-colon", "commit", start, '{"deltachain": 1,', "white space before the version"),
        ("array", "commit", start, "[" + start, "an array instead of an object"),
        ("absent", "commit", start, "{", "no version"),
        ("not-first", "routes", start + '"version":7,', '{"version":7,"deltachain":1,', "the version is not first"),
        ("name-escaped", "commit", start, '{"\\u0064eltachain":1,', "the first name with an escape"),
        ("name-in-capitals", "commit", start, '{"DeltaChain":1,', "another name"),
        ("string", "commit", start, '{"deltachain":"1",', "the version as a string"),
        ("null", "chain", start, '{"deltachain":null,', "null instead of the version"),
        ("fraction", "commit", start, '{"deltachain":1.0,', "a fraction"),
        ("exponent", "commit", start, '{"deltachain":1e0,', "an exponent"),
        ("minus", "routes", start, '{"deltachain":-1,', "a sign"),
        ("leading-zero", "commit", start, '{"deltachain":01,', "a leading zero"),
        ("too-high", "commit", start, '{"deltachain":9007199254740992,', "2^53 is no integer of documents"),
        ("long", "commit", start, '{"deltachain":' + "1" * 5000 + ",", "5000 digits"),
        ("wraps", "commit", start, '{"deltachain":18446744073709551617,', "2^64 + 1, which is 1 in 64 bits")))
    yield from spoilt("beginning", "R-DOC-02", (
        ("draft-chain", "chain", start, '{"deltachain":0,', "the version of the drafts"),
        ("draft-commit", "commit", start, '{"deltachain":0,', "the version of the drafts"),
        ("newer-chain", "chain", start, '{"deltachain":2,', "a chain document of a newer version"),
        ("newer-commit", "commit", start, '{"deltachain":2,', "a commit of a newer version"),
        ("newer-routes", "routes", start, f'{{"deltachain":{MOST},', "the highest version there can be")))
    yield bad("beginning", "newer-and-different", "commit", b'{"deltachain":2,\xff \x00', "R-DOC-02",
              "what follows the version of a newer document may be anything, no JSON and no UTF-8 even")


@makes_vectors
def members():
    step, file = '"metadata":{"step":"100"}', f'{{"digest":"{FILE}","size":1234}}'
    yield from spoilt("members", "R-DOC-03", (
        ("twice", "commit", '"version":7,', '"version":7,"version":7,', "a member twice"),
        ("twice-by-escape", "commit", '"version":7,', '"version":7,"\\u0076ersion":7,', "a member twice, once escaped"),
        ("twice-in-file", "commit", '"size":1234', '"size":1234,"size":1234', "a file's member twice"),
        ("escaped-name", "commit", '"version":7', '"versi\\u006fn":7', "a name with an escape"),
        ("unknown", "commit", ',"metadata"', ',"note":"","metadata"', "an unknown member"),
        ("unknown-last", "chain", "{}}", '{},"note":""}', "an unknown member at the end"),
        ("unknown-in-route", "commit", '{"from":6,', '{"from":6,"kind":"step",', "an unknown member of a route"),
        ("unknown-in-file", "commit", file, file[:-1] + ',"name":"a.dcf"}', "an unknown member of a file"),
        ("missing", "commit", f'"parent":"{PARENT}",', "", "no parent"),
        ("missing-metadata", "commit", "," + step, "", "no metadata, although it may be empty"),
        ("missing-metadata-chain", "chain", ',"metadata":{}', "", "no metadata, although it may be empty"),
        ("missing-metadata-routes", "routes", ',"metadata":{}', "", "no metadata, although it may be empty"),
        ("missing-assets", "commit", ',"assets":[]', "", "no assets, although there may be none"),
        ("missing-size", "commit", ',"size":1234', "", "a file without its size"),
        ("missing-from", "commit", '"from":null,', "", "a route from nothing must say so"),
        ("missing-routes", "routes-empty", ',"routes":[]', "", "no routes, although they may be empty"),
        ("order", "commit", f'"version":7,"parent":"{PARENT}"', f'"parent":"{PARENT}","version":7', "another order"),
        ("order-assets", "commit", f'"assets":[],{step}', f'{step},"assets":[]', "another order of the last members"),
        ("order-in-file", "commit", file, f'{{"size":1234,"digest":"{FILE}"}}', "another order of a file's members"),
        ("null-parent", "commit-0", f'"parent":"{PARENT}"', '"parent":null', "version 0 has a parent, chain.json"),
        ("null-metadata", "commit", step, '"metadata":null', "null is not the empty object"),
        ("null-metadata-chain", "chain", "{}", "null", "null is not the empty object"),
        ("null-assets", "commit", '"assets":[]', '"assets":null', "null is not the empty array"),
        ("assets-of-routes", "routes", ',"metadata"', ',"assets":[],"metadata"', "a routes document has no assets"),
        ("null-routes", "routes-empty", "[]", "null", "null is not the empty array"),
        ("other-kind", "commit", MADE["documents/valid/commit"].file, MADE["documents/valid/routes"].file,
         "a routes document in the place of a commit"),
        ("no-shards", "commit", f'"shards":["{STATE}"]', '"shards":[]', "a commit without shards"),
        ("shards-string", "commit", f'"shards":["{STATE}"]', f'"shards":"{STATE}"', "a string instead of an array"),
        ("shards-nested", "commit", f'"shards":["{STATE}"]', f'"shards":[["{STATE}"]]', "an array too deep"),
        ("no-routes", "commit-step-only", f'[{text(STEP)}]', "[]", "a commit without routes"),
        ("no-files", "routes", file, "", "a route without files"),
        ("route-array", "routes", text(STEP), f'[6,["{OTHER}",200]]', "an array instead of an object")))


@makes_vectors
def spaces():
    yield from spoilt("space", "R-DOC-03", (
        *((f"dumps-{kind}", kind, MADE[f"documents/valid/{kind}"].file, json.dumps(json.loads(
            MADE[f"documents/valid/{kind}"].file)).replace(": 1, ", ":1,", 1), "a space after each colon and comma but the "
          "first, as Python writes JSON") for kind in ("chain", "commit", "routes")),
        ("after-comma", "commit", ',"version"', ', "version"', "white space after a comma"),
        ("before-comma", "commit", '7,"parent"', '7 ,"parent"', "white space before a comma"),
        ("after-colon", "commit", '"version":7', '"version": 7', "white space after a colon"),
        ("before-colon", "chain", '"chain":', '"chain" :', "white space before a colon"),
        ("in-array", "commit", '"shards":[', '"shards":[\t', "white space in an array"),
        ("in-empty-array", "routes-empty", "[]", "[ ]", "white space in an empty array"),
        ("in-empty-object", "commit-0", "{}", "{ }", "white space in an empty object"),
        ("at-end-of-object", "chain", "{}}", "{}\n}", "a newline before the brace"),
        ("trailing-newline", "commit", '"100"}}', '"100"}}\n', "a newline after the object"),
        ("trailing-space", "routes-empty", "{}}", "{}} ", "white space after the object"),
        ("trailing-nul", "chain", "{}}", "{}}\0", "a zero byte after the object"),
        ("two-documents", "chain", "{}}", "{}}{}", "something after the object"),
        ("cut-off", "commit", '"100"}}', '"100"}', "the last brace is missing"),
        ("comma-in-object", "commit", '"100"}}', '"100"},}', "a comma after the last member"),
        ("comma-in-array", "commit", f'"{STATE}"]', f'"{STATE}",]', "a comma after the last item"),
        ("comment", "commit", ',"version"', ',/**/"version"', "a comment"),
        ("line-comment", "chain", "{}}", "{}}//", "a comment after the object"),
        ("single-quotes", "commit", '"step"', "'step'", "single quotes"),
        ("no-quotes", "commit", '"version"', "version", "a name without quotes")))


@makes_vectors
def numbers():
    for id, number, reason in (
            ("fraction", "7.0", "a fraction"), ("exponent", "7e0", "an exponent"), ("capital", "7E0", "an exponent"),
            ("negative-exponent", "70e-1", "a fraction and an exponent that make 7"), ("plus", "+7", "a sign"),
            ("negative", "-7", "a negative number"), ("leading-zero", "07", "a leading zero"),
            ("hexadecimal", "0x7", "hexadecimal digits"), ("string", '"7"', "a string"), ("true", "true", "a boolean"),
            ("nan", "NaN", "no number of JSON"), ("infinity", "Infinity", "no number of JSON"),
            ("too-high", "9007199254740992", "2^53"), ("rounds", "9007199254740993", "2^53 + 1, which rounds to 2^53"),
            ("wraps", str(2**64 + 7), "2^64 + 7, which is 7 in 64 bits"), ("long", "7" * 5000, "5000 digits"),
            ("overflow", "7e400", "too high for a float"), ("full-width", "\uff17", "a digit that is not ASCII")):
        yield from spoilt("numbers", "R-DOC-03", [(id, "commit", '"version":7', f'"version":{number}', reason)])
    yield from spoilt("numbers", "R-DOC-03", (
        ("minus-zero", "commit-0", '"version":0', '"version":-0', "zero has no sign"),
        ("size-zero", "commit", "1234", "0", "a file of no bytes"),
        ("size-too-high", "integers-highest", f'"size":{MOST}', f'"size":{MOST + 1}', "2^53"),
        ("size-string", "routes", "1234", '"1234"', "a string"),
        ("from-negative", "commit", '"from":6', '"from":-1', "a negative number"),
        ("from-false", "commit", '"from":null', '"from":false', "a boolean instead of null"),
        ("from-string", "routes", '"from":6', '"from":"6"', "a string"),
        ("generation-zero", "routes", '"generation":1', '"generation":0', "generations begin with 1"),
        ("generation-too-high", "routes-generation", "9999999999", "10000000000",
         "generations have ten digits at most"),
        ("generation-fraction", "routes", '"generation":1', '"generation":1.0', "a fraction")))


@makes_vectors
def digests():
    for id, value, reason in (
            ("capitals", FILE.upper(), "capital digits"), ("one-capital", FILE[:-1] + "E", "one capital digit"),
            ("short", FILE[:-1], "63 digits"), ("long", FILE + "5", "65 digits"), ("empty", "", "no digit"),
            ("other-letter", FILE[:-1] + "g", "a letter that is no digit"), ("space", FILE[:-1] + " ", "a space"),
            ("escaped", "\\u0035" + FILE[1:], "a digit as an escape"),
            ("full-width", "\uff15" + FILE[1:], "a digit that is not ASCII"),
            ("prefix", "blake3:" + FILE, "the name of the hash function"), ("suffix", FILE + ".dcf", "a file's name"),
            ("folder", "../" + FILE, "a path out of files/"), ("parent-folder", "../x", "a path out of files/"),
            ("absolute", "/etc/passwd", "an absolute path"), ("drive", "C:\\\\x", "a path of Windows"),
            ("address", "http://example.org/x", "a URL"), ("dots", "../" * 21 + "x", "a path as long as a digest"),
            ("nul", FILE[:-6] + "\\u0000", "a zero byte")):
        yield from spoilt("digests", "R-DOC-03", [(id, "commit", f'"{FILE}"', f'"{value}"', reason)])
    identifier = "00112233445566778899aabbccddeeff"
    yield from spoilt("digests", "R-DOC-03", (
        ("null", "commit", f'"{FILE}"', "null", "null"),
        ("parent-short", "commit", PARENT, PARENT[:32], "a shortened digest"),
        ("shard-capitals", "commit-two-shards", LEFT, LEFT.upper(), "capital digits"),
        ("commit-empty", "routes", f'"{COMMIT}"', '""', "no digit"),
        ("identifier-capitals", "chain", identifier, identifier.upper(), "an identifier with capital digits"),
        ("identifier-long", "chain", identifier, identifier * 2, "an identifier as long as a digest"),
        ("identifier-name", "chain", identifier, "my model", "a name instead of an identifier")))


@makes_vectors
def strings():
    for id, value, reason in (
            ("escaped-slash", "\\/", "a slash needs no escape"), ("escaped-letter", "\\u0041", "A needs no escape"),
            ("escaped-del", "\\u007f", "U+007F needs no escape"), ("escaped-bmp", "\\u00e9", "no escape is needed"),
            ("long-tab", "\\u0009", "U+0009 is written \\t"), ("long-quote", "\\u0022", 'U+0022 is written \\"'),
            ("capitals", "\\u001F", "capital digits in an escape"), ("capital-u", "\\U0001f600", "no escape of JSON"),
            ("surrogate-pair", "\\ud83d\\ude00", "U+1F600 is written as itself"),
            ("lone-high-surrogate", "\\ud83d", "a surrogate is no character"),
            ("lone-low-surrogate", "\\ude00", "a surrogate is no character"),
            ("vertical-tab", "\\v", "no escape of JSON"),
            ("unknown-escape", "\\x41", "no escape of JSON"), ("short-escape", "\\u41", "an escape of two digits"),
            ("raw-newline", "\n", "a newline as itself"), ("raw-nul", "\0", "a zero byte as itself"),
            ("raw-unit-separator", "\x1f", "U+001F as itself"),
            ("invalid-utf8", b"\xff", "a byte that UTF-8 never has"),
            ("cut-off-utf8", b"\xe2\x82", "two bytes of three"), ("continuation", b"\x80", "a continuation byte alone"),
            ("overlong-slash", b"\xc0\xaf", "an overlong form"), ("overlong-nul", b"\xc0\x80", "an overlong form"),
            ("utf8-surrogate", b"\xed\xa0\xbd", "a surrogate in UTF-8"),
            ("cesu-8", b"\xed\xa0\xbd\xed\xb8\x80", "U+1F600 as two surrogates of three bytes"),
            ("beyond-unicode", b"\xf4\x90\x80\x80", "above U+10FFFF")):
        value = value if isinstance(value, bytes) else value.encode()
        yield from spoilt("strings", "R-DOC-03", [(id, "commit", b'"100"', b'"' + value + b'"', reason)])


@makes_vectors
def metadata():
    depth = 50000
    for id, value, reason in (
            ("order", '{"b":"","a":""}', "keys that descend"), ("twice", '{"a":"","a":""}', "a key twice"),
            ("twice-by-escape", '{"a":"","\\u0061":""}', "a key twice, once escaped"),
            ("order-utf16", '{"\U00010000":"","\uff5e":""}', "keys that ascend as UTF-16 only"),
            ("order-escaped", '{"A":"","\\n":""}', "keys that ascend as escaped only"),
            ("order-without-case", '{"a":"","B":""}', "keys that ascend without case only"),
            ("order-prefix", '{"ab":"","a":""}', "a prefix comes first"), ("array", "[]", "an array"),
            ("number", '{"step":100}', "a number"), ("null", '{"step":null}', "null"),
            ("false", '{"step":false}', "false"),
            ("object", '{"step":{}}', "an object"), ("string", '"step"', "a string"),
            ("deep", '{"step":' + "[" * depth + "]" * depth + "}", "nested so deep that a careless parser dies")):
        yield from spoilt("metadata", "R-DOC-03", [(id, "commit", '{"step":"100"}', value, reason)])
        if id in ("order", "twice", "number"):
            yield from spoilt("metadata", "R-DOC-03", [
                (f"{id}-{kind}", kind, "{}", value, f"{reason}; not of a commit") for kind in ("chain", "routes")])


@makes_vectors
def routes():
    first, second = text(SNAPSHOT), text(STEP)
    both = f"{first},{second}"
    yield from spoilt("routes", "R-DOC-04", (
        ("order", "commit", both, f"{second},{first}", "nothing comes first"),
        ("order-as-text", "commit-many-routes", both_of(9, 10), both_of(10, 9), "10 comes after 9"),
        ("nothing-twice", "commit", first, f"{first},{first}", "the same route from nothing twice"),
        ("version-twice", "routes", second, f"{second},{second}", "the same route from a version twice"),
        ("from-itself", "commit", '"from":6', '"from":7', "a route from the version itself"),
        ("from-newer", "commit-step-only", '"from":6', '"from":8', "a route from a newer version"),
        ("from-itself-routes", "routes", '"from":6', '"from":7', "a route from the version itself"),
        ("into-0", "routes-of-0", '"from":null', '"from":0', "version 0 has nothing below")))
    file = f'{{"digest":"{OTHER}","size":2}}'
    yield from spoilt("routes", "R-DOC-05", (
        ("file-missing", "commit-two-shards", "," + file, "", "one file for two shards"),
        ("file-too-many", "commit-two-shards", file, f"{file},{file}", "three files for two shards"),
        ("two-for-one-shard", "commit", '"size":200}', f'"size":200}},{file}', "two files for one shard")))
    yield from spoilt("routes", "R-DOC-06", (
        ("one-shard", "commit", f'["{STATE}"]', f'["{LEFT}"]', "the only shard is not the state"),
        ("one-shard-of-0", "commit-0", f'"state":"{STATE}"', f'"state":"{RIGHT}"', "the only shard is not the state")))


def both_of(*numbers):
    return ",".join(text(route(n, (FILE, 1))) for n in numbers)
