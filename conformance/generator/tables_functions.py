"""functions.json: tables of single functions of SPEC.md, to test one at a time. Numbers that can exceed 2^53 are
decimal strings."""
from . import tables_in_place, tables_signatures
from .coding import difference, key, members, rotated
from .documents import quoted
from .links import CLASSES
from .model import DTYPES, EMPTY, PIECE, RuleState, State, described, tensor
from .primitives import crc32, pack, varint
from .registry import SPEC

ABOUT = {
    "varint": "Section 1. `value`, or the class and the rule by which the bytes are refused.",
    "crc32": "Section 1.",
    "lanes": "Sections 8.2 and 8.3. Lanes as hexadecimal numbers; `rotl` of sign-magnitude dtypes only.",
    "differences": "Sections 8.3 and 8.4: d and z from the old to the new lane.",
    "bitmaps": "Section 8.1: members of a context in each part, the ranks that are coded, and the bytes.",
    "gaps": "Section 8.1: ranks of a context in each part, and the bytes of gap low, gap high and gap escape.",
    "magnitudes": "Section 8.5: differences of one context, and the bytes of sign, magnitude and magnitude escape.",
    "members": "Section 7.1: the context of each base lane.",
    "tensor_digests": "Section 3. Byte i of the data is (i * multiply + add) mod modulus; dtype U8.",
    "state_digests": "Section 3, from the table of a state. `bytes` is the length of the data, `digest` the tensor "
                     "digest.",
    "names": "Sections 12 and 18: is it a plain name, a path name, the name of an asset alone, and that of a file in a "
             "layout? And its folder, if it is a path name.",
    "json_strings": "Section 18. `written` is the string in its one form, or, where `legal` is false, in none.",
    "routes": "Section 18, R-DOC-04: the routes of a routes document of version 9, legal or not. A file stands "
              "`times` times.",
    "direct": "Section 18: the numbers of direct routes that a value of `deltachain.direct` names in a document with "
              "so many routes; null if it is as no key."}


def made():
    about = ABOUT | tables_signatures.ABOUT | tables_in_place.ABOUT
    tables = {"varint": varints(), "crc32": crcs(), "lanes": lanes(), "differences": differences(),
              "bitmaps": bitmaps(),
              "gaps": gaps(), "magnitudes": magnitudes(), "members": memberships(), "tensor_digests": tensor_digests(),
              "state_digests": state_digests(), "names": names(), "json_strings": json_strings(), "routes": routes(),
              "direct": direct()} | tables_signatures.made() | tables_in_place.made()
    return {"about": "Tables of single functions of SPEC.md. Bytes are in hexadecimal digits; numbers that can exceed "
                     "2^53 are decimal strings.", "spec": SPEC, "licence": "CC0-1.0",
            "tables": {name: {"about": about[name], "rows": rows} for name, rows in tables.items()}}


def varints():
    values = [0, 1, 127, 128, 129, 255, 256, 300, 16383, 16384, 65535, 65536, 2**21 - 1, 2**21, 2**28, 2**31, 2**32 - 1,
              2**32,
              2**35, 2**53 - 1, 2**53, 2**53 + 1, 2**56 - 1, 2**63 - 1, 2**63, 2**64 - 1]
    good = [{"bytes": varint(value).hex(), "value": str(value)} for value in values]
    refused = (("", "R-INT-03"), ("80", "R-INT-03"), ("ff", "R-INT-03"), ("ff" * 9, "R-INT-03"), ("80" * 9, "R-INT-03"),
               ("8000", "R-INT-01"), ("8100", "R-INT-01"), ("ff00", "R-INT-01"), ("808000", "R-INT-01"),
               ("80" * 9 + "00", "R-INT-01"), ("ff" * 9 + "00", "R-INT-01"), ("80" * 9 + "02", "R-INT-02"),
               ("ff" * 9 + "02", "R-INT-02"), ("ff" * 9 + "7f", "R-INT-02"), ("80" * 9 + "80", "R-INT-02"),
               ("ff" * 10, "R-INT-02"), ("80" * 10 + "00", "R-INT-02"), ("ff" * 9 + "81", "R-INT-02"))
    return good + [{"bytes": text, "class": CLASSES[rule], "rule": rule} for text, rule in refused]


def crcs():
    return [{"bytes": data.hex(), "crc": f"{crc32(data):08x}"} for data in (
        b"", b"\0", b"\xff", b"a", b"123456789", bytes(32), b"\xff" * 32, bytes(range(256)))]


def edges(dtype):
    """Returns lanes around the sign, zero and the ends of the exponent field."""
    width = 8 * dtype.lane_bytes
    mantissa = width - 1 - dtype.exponent_bits if dtype.sign_magnitude else width // 2
    some = {0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, (1 << mantissa) + 1, (1 << (width - 1)) - 2,
            (1 << (width - 1)) - 1,
            int("5a" * dtype.lane_bytes, 16)}
    half = 1 << (width - 1)
    return sorted({value % half for value in some} | {value % half | half for value in some})


SAMPLE = ("U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "F16", "BF16", "I32", "F32", "U64", "F64", "C64")


def hexadecimal(dtype, value):
    return f"{value:0{2 * dtype.lane_bytes}x}"


def lanes():
    found = []
    for name in SAMPLE:
        dtype = DTYPES[name]
        found += [{"dtype": name, "lane": hexadecimal(dtype, value), "key": hexadecimal(dtype, key(dtype, value)),
                   "rotl": hexadecimal(dtype, rotated(dtype, value))} for value in edges(dtype)]
    return found


def differences():
    found = []
    for name in ("U8", "F8_E4M3", "I16", "F16", "BF16", "F32", "U64", "F64"):
        dtype = DTYPES[name]
        values = edges(dtype)
        for old, new in [*zip(values, values[1:]), *zip(values[1:], values), *zip(values, values[::-1]),
                         (values[0], values[0])]:
            d = difference(dtype, old, new)
            z = 2 * d if d >= 0 else -2 * d - 1
            found.append({"dtype": name, "old": hexadecimal(dtype, old), "new": hexadecimal(dtype, new), "d": str(d),
                          "z": str(z)})
    return found


def bitmaps():
    found = []
    for counts, ranks in (([4, 3], [[0, 2], [1]]), ([8], [[0, 7]]), ([9], [[8]]), ([0], [[]]), ([1], [[0]]),
                          ([1], [[]]),
                          ([3, 0, 5], [[2], [], [0, 4]]), ([7, 2], [[6], [0]]), ([16], [list(range(16))]),
                          ([17, 17], [[0, 16], [0, 16]])):
        bits = [int(rank in inside) for count, inside in zip(counts, ranks) for rank in range(count)]
        found.append({"members": counts, "ranks": ranks, "bytes": pack(bits, 1).hex()})
    return found


def gaps():
    found = []
    for shift, ranks in ((2, [[5, 6, 1100], [2]]), (0, [[0]]), (0, [[]]), (0, [[254]]), (0, [[255]]), (0, [[256, 257]]),
                         (0, [[0, 255], [254, 510], [300]]), (1, [[3, 999], [1]]), (1, [[509], [510], [511]]),
                         (7, [[0, 129, 40000]]), (8, [[65279], [65280], [70000, 70001]]), (9, [[1, 2, 3, 130560]]),
                         (15, [[2**24 - 1]]), (16, [[2**24 - 1]]), (22, [[2**22, 2**23, 2**24 - 1]]),
                         (23, [[0, 2**24 - 1]]),
                         (0, [[2**24 - 1]]), (3, [[0, 1, 2, 3, 4, 5, 6, 7]]), (5, [[31], [], [32, 64]])):
        low, high, escape = [], [], b""
        for inside in ranks:
            for before, rank in zip([-1, *inside], inside):
                gap = rank - before - 1
                low.append(gap & (1 << shift) - 1)
                high.append(min(gap >> shift, 255))
                escape += varint((gap >> shift) - 255) if gap >> shift >= 255 else b""
        found.append({"shift": shift, "ranks": ranks, "gap_low": pack(low, shift).hex() if shift else "",
                      "gap_high": bytes(high).hex(), "gap_escape": escape.hex()})
    return found


def magnitudes():
    found = []
    for bits in (1, 2, 4, 8):
        top = (1 << bits) - 1
        for values in ([1, -1, 6, -3], [top, top + 1, top + 2, -top, -top - 1], [1], [-1] * 9, [127, -128],
                       [300, -300, 2],
                       [2**15 - 1, -2**15], [2**31 - 1, -2**31, 1], [2**63 - 1, -2**63]):
            values = [value for value in values if value]
            numbers = [abs(value) - 1 for value in values]
            found.append({"bits": bits, "differences": [str(value) for value in values],
                          "sign": pack([int(value < 0) for value in values], 1).hex(),
                          "magnitude": pack([min(m, top) for m in numbers], bits).hex(),
                          "magnitude_escape": b"".join(varint(m - top) for m in numbers if m >= top).hex()})
    return found


def memberships():
    found = []
    for name, thresholds in (("BF16", [100, 110]), ("BF16", []), ("BF16", [0]), ("BF16", [1, 1, 255, 256]),
                             ("F16", [1, 15, 31]),
                             ("F8_E5M2", [16]), ("F8_E4M3", [8, 16]), ("F32", [1, 127, 128, 255]),
                             ("F64", [1, 1023, 2047]),
                             ("U8", [0]), ("I16", [0, 1]), ("U64", [1])):
        dtype = DTYPES[name]
        values = edges(dtype) + ([0x3F80, 0x3580] if name == "BF16" else [])
        contexts = [0] * len(values)
        for context, inside in enumerate(members(dtype, thresholds, values)):
            for number in inside:
                contexts[number] = context
        found.append({"dtype": name, "thresholds": thresholds, "lanes": [hexadecimal(dtype, value) for value in values],
                      "contexts": contexts})
    return found


def tensor_digests():
    found = []
    for length in (0, 1, 64, 1024, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1):
        rule = {"multiply": 7, "add": 3, "modulus": 251}
        item = RuleState.tensor({"dtype": "U8", "shape": [length]} | rule)
        found.append({"bytes": length} | rule | {"digest": item.digest().hex()})
    return found


def state_digests():
    tables = [EMPTY.tensors, {"t": tensor("U8", b"abc")}, {"": tensor("F32", [1], ())},
              {"b": tensor("BF16", [1, 2, 3], (3, 1)), "a": tensor("I64", [7]), "ab": tensor("BOOL", b"\1")},
              {"zero": tensor("F32", b"", (0, 2**64 - 1)), "\u00e9": tensor("F4", b"\x21\x43", (4,)),
               "\uff5e": tensor("F6_E2M3", b"abc", (4,)), "\U00010000": tensor("C64", [5])},
              {"d": tensor(described("FP16_X", 16, 2, True, 6), [1, 2])},
              {"d": tensor(described("FP16_X", 16, 2, True, 5), [1, 2])},
              {"q": tensor(described("Q4_0", 144, 2), bytes(range(36))), "r": tensor(described("R", 127, 1), bytes(127),
                                                                                     (8,))},
              {"q": tensor(described("Q", 65536, 8), bytes(8192), ())}]
    return [{"tensors": [row(name, item) for name, item in State("unused", tensors).tensors.items()],
             "digest": State("unused", tensors).digest().hex()} for tensors in tables]


def row(name, item):
    dtype = item.dtype
    known = dtype.name if dtype.name in DTYPES else {
        "name": dtype.name, "bits": dtype.bits, "lane_bytes": dtype.lane_bytes, "sign_magnitude": dtype.sign_magnitude,
        "exponent_bits": dtype.exponent_bits}
    return {"name": name, "dtype": known, "shape": [str(size) for size in item.shape], "bytes": len(item.data),
            "digest": item.digest().hex()}


def names():
    """Each name with its kinds: p a plain name, / a path name, a that of an asset, l that of a file in a layout."""
    end = ".safetensors"
    stated = (
        ("config.json", "p/a"), ("model" + end, "p/l"), ("a/b" + end, "/l"), ("a/b.json", "/a"), ("unet/config.json",
                                                                                                  "/a"),
        ("1_Pooling/config.json", "/a"), ("", ""), (".", ""), ("..", ""), (".a", ""), ("a.", "p"), ("a ", "p"),
        (" a", "p/a"),
        ("a/", ""), ("/a", ""), ("a//b", ""), ("a/../b", ""), ("a/./b", ""), ("a/.b", ""), ("a\\b", ""), ("a:b", ""),
        ("a\0", ""),
        ("a\x1f", ""), ("a\x7f", ""), ("a\x80", ""), ("a\x9f", ""), ("a\xa0", "p/a"), ("n" * 255, "p/a"),
        ("n" * 256, ""),
        ("\u00e9" * 127, "p/a"), ("\u00e9" * 128, ""), ("con", ""), ("CON", ""), ("con.txt", ""), ("con .txt", ""),
        (" con", "p/a"), (" con" + end, "p/l"), ("conin", "p/a"), ("conin$", ""), ("CONOUT$.x", ""), ("com", "p/a"),
        ("com0", ""),
        ("com10", "p/a"), ("LPT9", ""), ("com\u00b9", ""), ("com\u2074", "p/a"), ("nul_", "p/a"), ("a/nul", ""),
        ("nul/a", ""),
        ("a/b/c/d/e/f/g/h", "/a"), ("a/b/c/d/e/f/g/h/i", ""), ("a /b", ""), ("a./b", ""), ("a/b.", ""), ("a/b ", ""),
        ("a" + end + "/b", ""), ("a.SafeTensors/b", ""), ("a" + end + ".index.json/b", ""), ("x" + end + ".index.json",
                                                                                             "p/"),
        ("x.SAFETENSORS", "p/"), ("a/x.SAFETENSORS", "/"), (end, ""), ("safetensors", "p/a"), ("a" + end + ".x/y",
                                                                                               "/a"),
        ("deltachain.json", "p/"), ("DeltaChain.x", "p/"), ("deltachain", "p/a"), ("deltachain!x", "p/a"),
        ("deltachain.x/y", "/"),
        ("x/deltachain.json", "/a"), ("deltachain.x" + end, "p/l"), ("\u212a", "p/a"), ("*?<>|\"", "p/a"),
        ("/".join(["n" * 255] * 3 + ["n" * 127, "n" * 128]), "/a"), ("/".join(["n" * 255] * 3 + ["n" * 127, "n" * 129]),
                                                                     ""))
    return [{"name": name, "plain": "p" in what, "path": "/" in what, "asset": "a" in what, "layout": "l" in what}
            | ({"folder": name[:name.rfind("/") + 1]} if "/" in what else {}) for name, what in stated]


def json_strings():
    legal = ["", "a", "/", "\"", "\\", "\b\t\n\f\r", "\0\x01\x1f", "\x7f\x80\xa0", "\u2028\u2029", "\ufeff\ufffd\uffff",
             "\u00e9",
             "e\u0301", "\U0001f600\U0010ffff", "\ud7ff\ue000", "</script>", "\x0b"]
    wrong = ['"\\/"', '"\\u0041"', '"\\u000a"', '"\\u001F"', '"\\u007f"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud83d"',
             '"\\v"',
             '"\\x41"', '"\\U0041"', '"\\u41"', '"\n"', '"\0"', '"\x1f"', "'a'", "a", '"a', '""a', ' ""', '"" ']
    return [{"string": text, "written": quoted(text), "legal": True} for text in legal] + [
        {"written": text, "legal": False} for text in wrong]


def routes():
    most = 2**53 - 1
    many = [("a", most)] * 2048
    stated = (
        (True, [(None, ("a", 1))]), (True, [(None, ("a", 1)), (0, ("a", 1))]),
        (False, [(0, ("a", 1)), (None, ("a", 1))]),
        (True, [(2, ("b", 1)), (8, ("a", 1))]), (False, [(9, ("a", 1))]), (False, [(10, ("a", 1))]),
        (False, [(1, ("a", 1)), (1, ("a", 1))]), (True, [(1, ("b", 1)), (1, ("a", 2))]),
        (False, [(1, ("a", 2)), (1, ("b", 1))]),
        (True, [(1, ("a", 1)), (1, ("b", 1))]), (False, [(1, ("b", 1)), (1, ("a", 1))]),
        (True, [(1, ("a", 9)), (1, ("a", 10))]), (True, [(1, ("a", 3)), (1, ("a", 1), ("b", 2))]),
        (False, [(1, ("a", 1), ("b", 2)), (1, ("a", 3))]), (False, [(1, ("a", 1), ("b", 2)), (1, ("a", 2), ("b", 1))]),
        (False, [(1, ("a", 2), ("b", 1)), (1, ("a", 1), ("b", 2))]), (True, [(1, ("a", 5), ("c", 1)), (1, ("b", 6))]),
        (True, [(1, ("b", 2)), (1, *many, ("a", 2049))]), (False, [(1, *many, ("a", 2049)), (1, ("b", 2))]))
    return [{"legal": legal, "routes": [runs_of(source, files) for source, *files in listed]} for legal,
            listed in stated]


def runs_of(source, files):
    """A route: files that occur `times` times in a row."""
    runs = []
    for digit, size in files:
        if runs and (runs[-1]["digest"], runs[-1]["size"]) == (digit * 64, size):
            runs[-1]["times"] += 1
        else:
            runs.append({"digest": digit * 64, "size": size, "times": 1})
    return {"from": source, "files": runs}


def direct():
    stated = ((3, "0", [0]), (3, "1", [1]), (3, "0 2", [0, 2]), (3, "0 1 2", [0, 1, 2]), (12, "9 10 11", [9, 10, 11]))
    wrong = ((3, ""), (3, "3"), (3, "0 3"), (3, "2 1"), (3, "1 1"), (3, "01"), (3, "1 02"), (3, " 1"), (3, "1 "),
             (3, "1  2"),
             (3, "0,1"), (3, "+1"), (3, "-1"), (3, "1.0"), (3, "\uff11"), (3, "1\n"), (3, str(2**64 + 1)), (0, "0"))
    return [{"routes": count, "value": value, "numbers": numbers} for count, value, numbers in (
        *stated, *((count, value, None) for count, value in wrong))]


