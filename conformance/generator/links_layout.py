"""Links with the metadata key for layouts of files (SPEC section 12). Only *apply* writes files, so only it is asked;
the good ones are one file, since the protocol has a place for one."""
import json

from .builder import DENSE
from .coding import Plan, link
from .links import copy_of, refused, valid
from .links_valid_structure import ONE, ONE_CHANGED
from .model import EMPTY, State, tensor
from .registry import makes_vectors

KEY = "deltachain.layout"
TWO = State("layout-two", {"a": tensor("U8", b"a"), "b": tensor("U8", b"b")})


@makes_vectors
def good_layouts():
    for id, text, reason in (
            ("one-file", '{"files":[{}]}', "one file of which nothing is to be said"),
            ("metadata", '{"files":[{"metadata":{"format":"pt","":"\\u0000"}}]}', "one file with metadata of its own"),
            ("white-space", ' {\n"files" : [ { } ]\t}\r\n', "white space is allowed in JSON"),
            ("escapes", '{"f\\u0069les":[{"metadat\\u0061":{"\\ud83d\\ude00":"\\/"}}]}',
             "names of members are strings, too")):
        yield valid(f"layout-{id}", link(ONE, ONE_CHANGED, Plan(), metadata=[(KEY, text)]), "12", reason, ["R-LAY-01"],
                    features=["layout"])
    yield valid("layout-two-tensors", link(EMPTY, TWO, Plan(DENSE), metadata=[(KEY, '{"files":[{}]}')]), "12",
                "a snapshot that says how many files it is", ["R-LAY-01"], features=["layout"])


def bad(id, text, reason, twin="layout-one-file"):
    file = copy_of(twin)
    file.metadata = [(KEY, text if isinstance(text, str) else json.dumps({"files": text}, separators=(",", ":")))]
    return refused(f"layout/{id}", file, "R-LAY-01", reason, twin, "12", check=None, features=["layout"])


@makes_vectors
def bad_texts():
    for id, text, reason in (
            ("empty", "", "no text"), ("no-json", "model.safetensors", "no JSON"),
            ("cut", '{"files":[{}]', "JSON that is cut off"),
            ("array", "[{}]", "an array"), ("null", "null", "null"), ("no-files", "{}", "the member files is missing"),
            ("no-file", '{"files":[]}', "no file at all"), ("files-null", '{"files":null}', "files is null"),
            ("files-object", '{"files":{}}', "files is an object"),
            ("file-string", '{"files":["model.safetensors"]}', "a file is a string"),
            ("member-unknown", '{"files":[{}],"version":1}', "an unknown member"),
            ("member-of-file-unknown", '{"files":[{"size":8}]}', "an unknown member of a file"),
            ("member-case", '{"Files":[{}]}', "members are compared with case"),
            ("files-repeated", '{"files":[{}],"files":[{}]}', "a member that is there twice"),
            ("name-repeated", '{"files":[{"name":"a.safetensors","name":"a.safetensors"}]}',
             "a name that is there twice"),
            ("name-null", '{"files":[{"name":null}]}', "the name is null"),
            ("name-number", '{"files":[{"name":1}]}', "the name is a number"),
            ("metadata-null", '{"files":[{"metadata":null}]}', "metadata is null"),
            ("metadata-number", '{"files":[{"metadata":{"step":1}}]}', "a value of metadata is a number"),
            ("metadata-null-value", '{"files":[{"metadata":{"step":null}}]}', "a value of metadata is null"),
            ("metadata-repeated", '{"files":[{"metadata":{"k":"1","k":"2"}}]}', "a key of metadata is there twice"),
            ("tensors-null", '{"files":[{"tensors":null}]}', "tensors is null"),
            ("tensors-string", '{"files":[{"tensors":"t"}]}', "tensors is a string"),
            ("text-after", '{"files":[{}]} {}', "another text after the layout"),
            ("comma-after", '{"files":[{},]}', "a comma after the last file"),
            ("comment", '{"files":[{}]}//', "a comment"),
            ("byte-order-mark", '\ufeff{"files":[{}]}', "a byte order mark")):
        yield bad(f"text-{id}", text, reason)


@makes_vectors
def bad_tensors():
    def two(first, second):
        return [{"name": "1.safetensors", "tensors": first}, {"name": "2.safetensors", "tensors": second}]
    twin = "layout-two-tensors"
    yield bad("tensor-unknown", two(["a", "b"], ["c"]), "a tensor that the target does not have", twin)
    yield bad("tensor-missing", two(["a"], []), "a tensor of the target is in no file", twin)
    yield bad("tensor-twice", two(["a"], ["a", "b"]), "a tensor is in two files", twin)
    yield bad("tensor-twice-in-file", two(["a", "a"], ["b"]), "a tensor is in a file twice", twin)
    yield bad("tensors-absent", [{"name": "1.safetensors", "tensors": ["a", "b"]}, {"name": "2.safetensors"}],
              "a file among several does not list its tensors", twin)
    yield bad("tensor-in-one-file-unknown", [{"tensors": ["a", "b", "c"]}], "one file lists a tensor that is not there",
              twin)


@makes_vectors
def bad_names():
    def two(first, second):
        return [{"name": first, "tensors": ["a"]}, {"name": second, "tensors": ["b"]}]
    twin = "layout-two-tensors"
    yield bad("name-same", two("a.safetensors", "a.safetensors"), "two files of one name", twin)
    yield bad("name-same-without-case", two("MODEL.safetensors", "model.safetensors"),
              "two names that differ in case only", twin)
    yield bad("name-absent", [{"tensors": ["a"]}, {"name": "b.safetensors", "tensors": ["b"]}],
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
            ("delete", "a\x7f.safetensors", "U+007F"),
            ("c1", "a\x85.safetensors", "U+0085, a control character beyond ASCII"),
            ("256-bytes", "n" * 244 + ".safetensors", "256 bytes"),
            ("256-bytes-utf-8", "\u00e9" * 122 + ".safetensors", "256 bytes, but 134 characters"),
            ("con", "con.safetensors", "a Windows device name"),
            ("nul-device", "NUL.safetensors", "a Windows device name"),
            ("com0", "Com0.safetensors", "a Windows device name"),
            ("lpt9", "lpt9.model.safetensors", "a device name before the first dot")):
        yield bad(f"name-{id}", [{"name": name}], reason)
