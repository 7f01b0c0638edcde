"""Valid links: header, index, metadata, names, shapes and operations (SPEC sections 2, 4, 6 and 16)."""
from .builder import DENSE, PLANES, SET, SMALL, Link
from .coding import Plan, link
from .frames import compressed, frame
from .links import SPEC_TEXT, valid
from .model import EMPTY, State, tensor
from .registry import makes_vectors

HUGE = 2**64 - 1
ONE = State("one-u8", {"t": tensor("U8", bytes(range(8)))})
ONE_CHANGED = State("one-u8-changed", {"t": tensor("U8", bytes([0, 1, 2, 3, 4, 5, 6, 70]))})


def worked(name):
    """A dump of section 16 as bytes."""
    lines = SPEC_TEXT.split(f"```hexdump {name}\n")[1].split("```")[0].splitlines()
    return bytes.fromhex("".join(line[10:].split("|")[0] for line in lines))


@makes_vectors
def worked_files():
    smallest = Link(EMPTY, EMPTY)
    assert smallest.encode() == worked("smallest")
    yield valid("smallest", smallest, "16.1", "the smallest legal file, byte for byte that of the text")
    base = State("worked-contexts-base", {"t": tensor("BF16", [0, 0x100, 1, 0x101, 2, 0x102, 3, 0x103])})
    target = State("worked-contexts-target", {"t": tensor("BF16", [1, 0x100, 1, 0x102, 0x8000, 0x102, 3, 0x101])})
    plan = Plan(values=SMALL, parameters=(32, 0), widths=(1, 2), thresholds=[1])
    file = link(base, target, plan)
    assert file.encode() == worked("contexts")
    yield valid("worked-contexts", file, "16.2",
                "contexts, bitmap, gaps and escapes in one file, byte for byte that of the text")
    a = [0x3F80 if lane % 3 else 0x4000 for lane in range(3000)]
    b = [0x3F00 if lane % 3 else 0x3F80 for lane in range(12)]
    base = State("worked-escapes-base", {"a": tensor("BF16", a), "b": tensor("BF16", b)})
    for lane, value in {8: 0x3F81, 9: 0x4001, 10: 0x3F7F, 1651: 0x3F86, 2997: 0x3F38}.items():
        a[lane] = value
    b[3], b[4] = 0x3F82, 0x3EFD
    target = State("worked-escapes-target", {"a": tensor("BF16", a), "b": tensor("BF16", b)})
    plan = Plan(values=SMALL, parameters=(2, 1), widths=(2, 4), thresholds={("a", 0): [128], ("b", 0): [127]})
    file = link(base, target, plan)
    assert file.encode() == worked("escapes")
    yield valid("worked-escapes", file, "16.3", "two parts, shifts, and escapes of both kinds, as in the text")


@makes_vectors
def headers():
    yield valid("empty-link", Link(ONE, ONE), "6",
                "a link that changes nothing: no entry, so base and target are equal",
                ["R-IDX-18"])
    for id, bits in (("compatible-bit-0", 1), ("compatible-bit-31", 1 << 31), ("compatible-all-bits", 2**32 - 1)):
        file = link(ONE, ONE_CHANGED, Plan())
        file.header = {"compatible": bits}
        yield valid(id, file, "4.1", "unknown compatible features are ignored", ["R-HDR-05"])
    yield valid("one-lane", link(ONE, ONE_CHANGED, Plan()), "9.2", "one changed lane, without the base")
    yield valid("unchanged-entry", link(ONE, ONE, listed=["t"]), "6.2", "a listed tensor need not change")


@makes_vectors
def metadata():
    def file(*pairs):
        return link(ONE, ONE_CHANGED, Plan(), metadata=pairs)

    for id, pairs, reason in (
            ("metadata-one", [("step", "100")], "one pair"),
            ("metadata-sorted", [("", "the empty key"), ("a", ""), ("a\0", "1"), ("aa", "2"), ("b", "3")],
             "keys ascend, a prefix before what it begins; the empty key is the first"),
            ("metadata-nul", [("a\0b", "c\0d"), ("a\0c", "")], "U+0000 is a character like any other"),
            ("metadata-unicode", [("\u00e9", "e with acute"), ("\uffff", "noncharacter"), ("\U0001f600", "non-BMP"),
                                  ("\U0010ffff", "the last code point")],
             "UTF-8 order, in which U+FFFF comes before U+1F600; UTF-16 order would differ"),
            ("metadata-normal-forms", [("e\u0301", "decomposed"), ("\u00e9", "composed")],
             "keys that look equal are two"),
            ("metadata-reserved-unknown", [("deltachain.of-the-future", "?")],
             "an unknown key with the reserved prefix means nothing to a reader"),
            ("metadata-exclamation-mark", [("deltachain!x", "?")],
             "what a document of a chain must not have (R-DOC-07) means nothing in a link"),
            ("metadata-json-like", [("k", '{"\\": [1e999, NaN], "k": "\u2028"}')], "values are strings, not JSON"),
            ("metadata-256-entries", [(f"{i:03}", str(i)) for i in range(256)],
             "as many entries as every reader reads")):
        rules = ["R-LIM-01"] if "256" in id else ["R-IDX-03"] if "sorted" in id or "unicode" in id else []
        yield valid(id, file(*pairs), "6", reason, rules)
    full = file(("k", "v" * 999), ("l", "v" * (2**25 - 1001)))
    full.index_stored = lambda raw: frame(raw, window=0x38)
    yield valid("metadata-32-mib", full, "13", "as many bytes of metadata as every reader reads", ["R-LIM-01"])


@makes_vectors
def index_streams():
    pairs = [("text", "abc" * 200)]
    for id, stored, reason in (
            ("index-compressed", compressed, "the index as a frame"),
            ("index-compressed-checksum", lambda raw: compressed(raw, checksum=True), "a frame with a checksum"),
            ("index-frame-raw-block", lambda raw: frame(raw, sized=False, window=0), "a frame without content size")):
        file = link(ONE, ONE_CHANGED, Plan(), metadata=pairs if stored is compressed else [("text", "a" * 600)])
        file.index_stored = stored
        yield valid(id, file, "5", reason)


@makes_vectors
def names():
    tensors = [("name-empty", ""), ("name-nul", "\0"), ("name-nul-inside", "a\0b"), ("name-1024-bytes", "n" * 1024),
               ("name-last-code-point", "\U0010ffff"), ("name-path", "../../etc/passwd"),
               ("name-control", "\x1b[31m\r\n\x7f\u202e"), ("name-slashes", "a/b\\c:d")]
    for id, name in tensors:
        base = State(f"{id}-base", {name: tensor("U8", b"abc")})
        target = State(f"{id}-target", {name: tensor("U8", b"abd")})
        rules = ["R-LIM-01"] if "1024" in id else ["R-INT-04"]
        yield valid(id, link(base, target, Plan()), "1", f"a tensor's name: {id.removeprefix('name-')}", rules)
    order = ["", "\0", "A", "B", "a", "a\0", "a.b", "a.b.c", "a/b", "aa", "b", "e\u0301", "z", "\u00e9", "\ud7ff",
             "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
    base = State("names-base", {name: tensor("U8", b"x") for name in order})
    target = State("names-target", {name: tensor("U8", bytes([i])) for i, name in enumerate(order)})
    yield valid("names-in-order", link(base, target, Plan(DENSE)), "6",
                "names ascend byte by byte: prefixes first, NFD before NFC, U+FFFF before U+10000", ["R-IDX-06"])


@makes_vectors
def shapes():
    for id, dtype, shape, data, reason in (
            ("shape-scalar", "F32", (), bytes.fromhex("0000803f"), "no dimension: one element"),
            ("shape-8-dimensions", "U8", (1, 2, 1, 1, 2, 1, 1, 1), b"abcd", "as many dimensions as every reader reads"),
            ("shape-zero", "F32", (0,), b"", "no element, no piece"),
            ("shape-zero-huge-before", "F64", (HUGE, HUGE, 0), b"", "a zero dimension wins over any overflow"),
            ("shape-zero-huge-after", "BF16", (0, HUGE, HUGE), b"", "a zero dimension wins over any overflow"),
            ("shape-zero-packed", "F4", (0, 3), b"", "no element of a packed dtype is no byte"),
            ("shape-zeros", "U8", (0,) * 8, b"", "eight dimensions, all of them zero"),
            ("shape-packed-f4", "F4", (2, 3), b"abc", "six elements of four bits"),
            ("shape-packed-f6", "F6_E2M3", (4, 1, 1), b"abc", "four elements of six bits"),
            ("shape-ones", "U64", (1, 1, 1), bytes(range(8)), "one element in three dimensions")):
        target = State(id, {"t": tensor(dtype, data, shape)})
        plans = [Plan(DENSE)] if data else []
        rules = ["R-IDX-09"] if "packed" in id else ["R-LIM-01"] if "8-dim" in id or "huge" in id else []
        # Safetensors libraries multiply from the left, and so cannot hold the result of "huge-before".
        yield valid(id, link(EMPTY, target, *plans), "2.2", reason, rules, apply=id != "shape-zero-huge-before")


@makes_vectors
def operations():
    base = State("operations-base", {
        "gone": tensor("U8", b"ab"), "grown": tensor("U8", b"a"), "kept": tensor("U8", b"cd"),
        "replaced": tensor("U8", b"ab"), "reshaped": tensor("U8", b"abcd"), "retyped": tensor("U8", b"abcd"),
        "shrunk": tensor("U8", b"abc")})
    target = State("operations-target", {
        "added": tensor("U8", b"new"), "grown": tensor("U8", b"ab"), "kept": tensor("U8", b"cd"),
        "replaced": tensor("U8", b"zz"), "reshaped": tensor("U8", b"abcd", (2, 2)),
        "retyped": tensor("I8", b"abcd"), "shrunk": tensor("U8", b"")})
    yield valid("operations", link(base, target, Plan(), operations={"replaced": SET}), "6.2",
                "tensors added, removed, kept, resized, reshaped, retyped and replaced")
    yield valid("reshape", link(ONE, ONE.changed("one-u8-reshaped", t=tensor("U8", bytes(range(8)), (2, 2, 2)))), "6.2",
                "a patch without parts gives another shape to the same bytes", ["R-APP-02"])
    yield valid("reshape-and-change",
                link(ONE, State("one-u8-reshaped-changed", {"t": tensor("U8", b"\x07" + bytes(range(1, 8)), (8, 1))}),
                     Plan(values=PLANES)), "6.2", "a patch may change shape and bytes at once", ["R-APP-02"])
    retyped = State("one-u8-retyped", {"t": tensor("F16", bytes(range(8)))})
    yield valid("retype", link(ONE, retyped, Plan(DENSE)), "6.2", "another dtype of the same length is a set")
    yield valid("remove", link(State("two-u8", ONE.tensors | {"u": tensor("U8", b"u")}), ONE), "6.2", "a removal")
    yield valid("remove-all", link(ONE, EMPTY), "6.2", "a link to the empty state")
    yield valid("remove-absent", link(ONE, ONE, removed=["s", "u"]), "6.2", "what the base lacks may be removed")
    zeros = State("one-u8-zeros", {"t": tensor("U8", bytes(8))})
    yield valid("set-zeros", link(EMPTY, zeros), "6.2", "a set tensor without a part is all zeros", ["R-IDX-17"])
    yield valid("set-zeros-over-base", link(ONE, zeros, operations={"t": SET}), "6.2",
                "a set tensor starts as zeros although the base has one of the name")
    yield valid("set-partly-over-base", link(ONE, State("one-u8-mostly-zeros", {"t": tensor("U8", bytes(7) + b"x")}),
                                             Plan(), operations={"t": SET}), "6.2",
                "lanes of a set tensor that no part codes are zero, not the base's")
    yield valid("snapshot", link(EMPTY, ONE, Plan(DENSE)), "6.2", "a link from the empty state", ["R-IDX-17"])
    yield valid("patch-and-unlisted", link(
        State("two-u8-other", ONE.tensors | {"other": tensor("F32", bytes(40))}),
        State("two-u8-other-changed", ONE_CHANGED.tensors | {"other": tensor("F32", bytes(40))}), Plan()), "6.2",
        "a tensor that is not listed is carried over and belongs to the target's digest", ["R-APP-05"])
    yield valid("set-same", link(ONE, ONE, Plan(DENSE, pieces=[("t", 0)]), listed=["t"], operations={"t": SET}), "8.2",
                "absolute values that repeat the base's, all of them")
