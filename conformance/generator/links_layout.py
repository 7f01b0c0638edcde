"""Links with the metadata key for layouts of files (SPEC section 12). Only *apply* writes files, so only it is run; it
writes one file, whatever the layout."""
import json

from .builder import DENSE
from .coding import Plan, link
from .documents import text
from .frames import frame
from .links import copy_of, refused, valid
from .links_valid_structure import ONE, ONE_CHANGED
from .model import EMPTY, State, tensor
from .registry import makes_vectors

KEY = "deltachain.layout"
TWO = State("layout-two", {"a": tensor("U8", b"a"), "b": tensor("U8", b"b")})
ONE_FILE = '{"files":[{"name":null,"metadata":null,"tensors":null}]}'


def file(name=None, tensors=None, metadata=None):
    return {"name": name, "metadata": metadata, "tensors": tensors}


def files(*items):
    return text({"files": list(items)})


def two(first, second):
    """Two files with one tensor each."""
    return files(file(first, ["a"]), file(second, ["b"]))


def with_layout(target, value):
    plan = Plan(DENSE) if target is TWO else Plan()
    return link(EMPTY if target is TWO else ONE, target, plan, metadata=[(KEY, value)])


def good(id, value, reason, target=ONE_CHANGED):
    return valid(f"layout-{id}", with_layout(target, value), "12", reason, ["R-LAY-01"], features=["layout"])


@makes_vectors
def good_layouts():
    assert files(file()) == ONE_FILE
    yield good("one-file", ONE_FILE, "one file of which nothing is to be said")
    yield good("two-files", two("a.safetensors", "b.safetensors"), "two files with a tensor each", TWO)
    yield good("metadata", files(file(metadata={"": "\0", "format": "pt"})), "one file with metadata of its own")
    yield good("metadata-empty", files(file(metadata={})), "a file whose metadata is empty")
    yield good("escapes", files(file(metadata={"\n": '\x1f"\\/\x7f', "\u2028": "\U0001f600", "\U0010ffff": "\ud7ff"})),
               "all escapes that there are, and characters that have none")
    yield good("name", files(file("model.safetensors")), "the only file may have a name")
    yield good("two-tensors", ONE_FILE, "a snapshot that says how many files it is", TWO)
    nothing = link(ONE, EMPTY, metadata=[(KEY, ONE_FILE)])
    yield valid("layout-of-nothing", nothing, "12", "one file for no tensor", ["R-LAY-01"], features=["layout"])
    yield good("files-without-tensors", files(file("a.safetensors", []), file("b.safetensors", ["a", "b"], {"k": ""}),
                                              file("c.safetensors", [])), "files without tensors", TWO)


@makes_vectors
def good_names():
    names = sorted((name + ".safetensors" for name in (
        "n" * 243, "\u00e9" * 121 + "n", " con", "a b", "auxiliary", "com", "com10", "com\u2074", "conin", "conout$x",
        "con-", "c\u00f6n", "lpt\u0661", "model..", "nul_", "null", "prn_", "~", "\u00a0", "\u202e",
        "aux\u00a0", "nul\u3000", "prn\u2003x", "con\u0131n$", "CON\u0130N$", "\u017f",
        "\U0001f600", "'\"?*<>|")), key=str.encode)
    assert {len(name.encode()) for name in names} >= {255}
    listed = [file(name, ["a", "b"] if number == 0 else []) for number, name in enumerate(names)]
    yield good("names", files(*listed), "names that are almost forbidden, and as long as can be", TWO)
    yield good("names-case-beyond-ascii", two("\u00c9.safetensors", "\u00e9.safetensors"),
               "names that differ in the case of a letter that is not ASCII are distinct", TWO)
    yield good("names-kelvin", two("k.safetensors", "\u212a.safetensors"),
               "the Kelvin sign is no k, although its lower case is", TWO)
    yield good("names-normal-forms", two("e\u0301.safetensors", "\u00e9.safetensors"),
               "names that look equal are two", TWO)


def bad(id, value, reason, twin="layout-one-file"):
    spoiled = copy_of(twin)
    spoiled.metadata = [(KEY, value)]
    if len(value) > 1 << 12:
        spoiled.index_stored = frame
    return refused(f"layout/{id}", spoiled, "R-LAY-01", reason, twin, "12", check=None, features=["layout"])


def replaced(id, old, new, reason, value=ONE_FILE, twin="layout-one-file"):
    assert value.count(old) == 1, f"{id}: {old}"
    return bad(f"text-{id}", value.replace(old, new), reason, twin)


@makes_vectors
def bad_texts():
    for id, value, reason in (
            ("empty", "", "no text"), ("no-json", "model.safetensors", "no JSON"), ("array", "[{}]", "an array"),
            ("null", "null", "null"), ("no-files", "{}", "the member files is missing"),
            ("no-file", '{"files":[]}', "no file at all"), ("files-null", '{"files":null}', "files is null"),
            ("files-object", '{"files":{}}', "files is an object"),
            ("file-string", '{"files":["model.safetensors"]}', "a file is a string"),
            ("file-null", '{"files":[null]}', "a file is null"),
            ("file-empty", '{"files":[{}]}', "a file without members"),
            ("deep", '{"files":' + "[" * 100000 + "]" * 100000 + "}", "nested so deep that a careless parser dies"),
            ("deep-open", "[" * 100000, "nested deep, and not closed")):
        yield bad(f"text-{id}", value, reason)
    spaced = json.dumps(json.loads(ONE_FILE))
    yield bad("text-spaced", spaced, "a space after each colon and comma, as Python writes JSON")
    yield bad("text-indented", json.dumps(json.loads(ONE_FILE), indent=1), "a text that is indented")
    yield bad("text-no-file-for-nothing", '{"files":[]}', "no file for no tensor", "layout-of-nothing")
    yield bad("text-cut", ONE_FILE[:-1], "a text that is cut off")
    yield bad("text-after", ONE_FILE + " {}", "another text after the layout")
    yield bad("text-after-brace", ONE_FILE + "}", "a brace too many")
    yield bad("text-newline", ONE_FILE + "\n", "a newline at the end")
    yield bad("text-nul", ONE_FILE + "\0", "a zero byte at the end")
    yield bad("text-space-before", " " + ONE_FILE, "a space before the text")
    yield bad("text-byte-order-mark", "\ufeff" + ONE_FILE, "a byte order mark")
    for id, old, new, reason in (
            ("comma-after", "}]", "},]", "a comma after the last file"),
            ("comment", "]", "]//", "a comment"),
            ("space-after-colon", '"files":', '"files": ', "a space after a colon"),
            ("space-after-comma", ',"tensors"', ', "tensors"', "a space after a comma"),
            ("newline-in-array", "[{", "[\n{", "a newline in an array"),
            ("member-unknown", "]}", '],"version":1}', "an unknown member"),
            ("member-of-file-unknown", "null}", 'null,"size":8}', "an unknown member of a file"),
            ("member-case", "files", "Files", "members are compared with case"),
            ("member-escaped", "files", "f\\u0069les", "a name of a member with an escape"),
            ("files-repeated", "]}", '],"files":[]}', "a member that is there twice"),
            ("order", '"name":null,"metadata":null', '"metadata":null,"name":null', "members in another order"),
            ("order-tensors", '"metadata":null,"tensors":null', '"tensors":null,"metadata":null',
             "members in another order"),
            ("name-missing", '"name":null,', "", "the name is missing, although it may be null"),
            ("metadata-missing", ',"metadata":null', "", "metadata are missing, although they may be null"),
            ("tensors-missing", ',"tensors":null', "", "tensors are missing, although they may be null"),
            ("name-repeated", '"name":null', '"name":null,"name":null', "a name that is there twice"),
            ("name-number", '"name":null', '"name":1', "the name is a number"),
            ("name-false", '"name":null', '"name":false', "the name is a boolean"),
            ("metadata-string", '"metadata":null', '"metadata":""', "metadata are a string"),
            ("metadata-array", '"metadata":null', '"metadata":[]', "metadata are an array"),
            ("metadata-number", '"metadata":null', '"metadata":{"step":1}', "a value of metadata is a number"),
            ("metadata-null-value", '"metadata":null', '"metadata":{"step":null}', "a value of metadata is null"),
            ("metadata-repeated", '"metadata":null', '"metadata":{"k":"1","k":"2"}', "a key of metadata is there twice"),
            ("metadata-order", '"metadata":null', '"metadata":{"b":"","a":""}', "keys of metadata descend"),
            ("metadata-order-utf-16", '"metadata":null', '"metadata":{"\U00010000":"","\uff5e":""}',
             "keys of metadata that ascend as UTF-16 only"),
            ("tensors-listed", '"tensors":null', '"tensors":["t"]', "the only file lists its tensors"),
            ("tensors-string", '"tensors":null', '"tensors":"t"', "tensors is a string"),
            ("tensors-empty", '"tensors":null', '"tensors":[]', "the only file lists no tensors")):
        yield replaced(id, old, new, reason)
    value = files(file(metadata={"k": "value"}))
    for id, new, reason in (
            ("lone-high-surrogate", "\\ud83d", "a surrogate is no character"),
            ("lone-low-surrogate", "\\ude00", "a surrogate is no character"),
            ("surrogate-pair", "\\ud83d\\ude00", "U+1F600 is written as itself"),
            ("escaped-slash", "\\/", "a slash needs no escape"), ("escaped-letter", "\\u0041", "A needs no escape"),
            ("escaped-nul-capitals", "\\u001F", "capital digits in an escape"),
            ("escaped-newline", "\\u000a", "U+000A is written \\n"), ("raw-newline", "\n", "a newline as itself"),
            ("raw-nul", "\0", "U+0000 as itself")):
        yield replaced(id, "value", new, reason, value, "layout-metadata")


@makes_vectors
def bad_tensors():
    def listed(first, second):
        return files(file("1.safetensors", first), file("2.safetensors", second))
    twin = "layout-two-files"
    for id, value, reason in (
            ("tensor-unknown", listed(["a", "b"], ["c"]), "a tensor that the target does not have"),
            ("tensor-missing", listed(["a"], []), "a tensor of the target is in no file"),
            ("tensor-twice", listed(["a"], ["a", "b"]), "a tensor is in two files"),
            ("tensor-twice-in-file", listed(["a", "a"], ["b"]), "a tensor is in a file twice"),
            ("tensor-order", listed(["b", "a"], []), "tensors of a file descend"),
            ("tensor-number", listed(["a", 1], ["b"]), "a name is a number"),
            ("tensor-null", listed(["a", None], ["b"]), "a name is null"),
            ("tensors-null", listed(["a", "b"], None), "a file among several does not list its tensors"),
            ("tensors-null-first", listed(None, ["a", "b"]), "a file among several does not list its tensors"),
            ("tensors-null-in-all", listed(None, None), "no file lists its tensors")):
        yield bad(id, value, reason, twin)


@makes_vectors
def bad_names():
    twin = "layout-two-files"
    yield bad("name-same", two("a.safetensors", "a.safetensors"), "two files of one name", twin)
    yield bad("name-same-without-case", two("MODEL.safetensors", "model.safetensors"),
              "two names that differ in case only", twin)
    yield bad("name-same-but-one-letter", two("Model-\u00e9.safetensors", "model-\u00e9.safetensors"),
              "two names that differ in the case of an ASCII letter", twin)
    yield bad("name-order", two("b.safetensors", "a.safetensors"), "files in the wrong order", twin)
    yield bad("name-order-utf-16", two("\U00010000.safetensors", "\uff5e.safetensors"),
              "files that ascend as UTF-16 only", twin)
    yield bad("name-null", files(file(None, ["a"]), file("b.safetensors", ["b"])),
              "a file among several has no name", twin)
    yield bad("name-null-last", files(file("a.safetensors", ["a"]), file(None, ["b"])),
              "a file among several has no name", twin)
    for id, name, reason in (
            ("empty", "", "the empty name"), ("suffix", "model.bin", "another suffix"),
            ("suffix-case", "model.SAFETENSORS", "the suffix in capitals"),
            ("no-suffix", "safetensors", "no dot before the suffix"),
            ("hidden", ".safetensors", "a name that begins with a dot"),
            ("parent", "../a.safetensors", "the folder above"),
            ("parent-without-slash", "..safetensors", "two dots at the beginning"),
            ("folder", "a/b.safetensors", "another folder"), ("absolute", "/a.safetensors", "an absolute path"),
            ("backslash", "a\\b.safetensors", "another folder on Windows"),
            ("drive", "c:a.safetensors", "a drive, or a stream of a file"),
            ("nul", "a\0.safetensors", "U+0000"), ("line-feed", "a\n.safetensors", "a line feed"),
            ("unit-separator", "a\x1f.safetensors", "U+001F"), ("delete", "a\x7f.safetensors", "U+007F"),
            ("c1", "a\x85.safetensors", "U+0085, a control character beyond ASCII"),
            ("c1-last", "a\x9f.safetensors", "U+009F, the last control character"),
            ("256-bytes", "n" * 244 + ".safetensors", "256 bytes"),
            ("256-bytes-utf-8", "\u00e9" * 122 + ".safetensors", "256 bytes, but 134 characters"),
            ("con", "con.safetensors", "a device name"), ("prn", "Prn.safetensors", "a device name"),
            ("aux", "AUX.x.safetensors", "a device name before the first dot"),
            ("nul-device", "NUL.safetensors", "a device name"),
            ("nul-and-space", "nul .safetensors", "a device name with a space"),
            ("nul-and-spaces", "Nul   .x.safetensors", "a device name with spaces"),
            ("conin", "conin$.safetensors", "a device name"), ("conout", "CONOUT$.safetensors", "a device name"),
            ("com0", "Com0.safetensors", "a device name"), ("com9", "COM9.safetensors", "a device name"),
            ("com-superscript-1", "com\u00b9.safetensors", "a device name with a superscript digit"),
            ("com-superscript-2", "COM\u00b2.safetensors", "a device name with a superscript digit"),
            ("lpt-superscript-3", "lpt\u00b3 .safetensors", "a device name with a superscript digit and a space"),
            ("lpt9", "lpt9.model.safetensors", "a device name before the first dot")):
        yield bad(f"name-{id}", files(file(name)), reason, "layout-name")
