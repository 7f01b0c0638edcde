"""Tables of SPEC.md for programs: constants.json, deltachain.h and registry.json, taken from the tables and numbers of
the text; and functions.json and decoded.json, which other modules make."""
import json
import os
import re

from . import tables_decoded, tables_functions, tables_worked
from .builder import MAGIC, stream_names
from .index import HERE, pretty, read_bytes
from .links import ADDITIONS, CLASSES, SPEC_TEXT
from .links_extension import AREA
from .model import DESCRIBED, DTYPES, EMPTY, PIECE
from .registry import SPEC

WINDOW = 1 << 25


def write():
    for name, data in everything().items():
        with open(os.path.join(HERE, name), "wb") as file:
            file.write(data)


def check():
    """Yields the differences from the files on disk, as lines of text."""
    for name, data in everything().items():
        path = os.path.join(HERE, name)
        if not os.path.exists(path) or read_bytes(path) != data:
            yield f"differs from what the generator makes: {name}"
    yield from tables_worked.check()


def everything():
    """Returns {path below conformance/: bytes}. Call it after the vectors have been made."""
    known = constants()
    made = {"constants.json": known, "registry.json": registry(), "functions.json": tables_functions.made(),
            "decoded.json": tables_decoded.made()}
    return {path: (pretty(value) + "\n").encode() for path, value in made.items()} | {
        "deltachain.h": header(known).encode()}


def rows(heading, columns):
    """Returns the rows of the first table below a heading whose first line has these columns. Where a section stands in
    another text, SPEC.md has its heading, too."""
    section = SPEC_TEXT.split(f"\n{heading}\n", 1)[1]
    lines = section.split(f"| {' | '.join(columns)} |\n")[1].splitlines()[1:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            return found
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == len(columns), line
        found.append(cells)
    return found


def number(text):
    """Parses a number of the tables: decimal digits, or a power of 2."""
    power = re.fullmatch(r"2\^(\d+)", text)
    return 2 ** int(power[1]) if power else int(text)


def found(pattern, text=SPEC_TEXT):
    """Returns the only match in the text."""
    places = re.findall(pattern.replace(" ", r"\s+"), text, re.DOTALL)
    assert len(set(places)) == 1, f"{pattern}: {places}"
    return places[0]


# The rule that checks each limit, by the first words of its row.
RULE_OF_LIMIT = {"segment,": "R-LIM-02", "document": "R-LIM-05", "assets": "R-LIM-07", "asset,": "R-LIM-07"}


def constants():
    fields = [{"offset": int(offset), "bytes": int(size), "type": type_, "field": name}
              for offset, size, type_, name, _ in rows("### 4.1 Header", ["offset", "size", "type", "field",
                                                                          "constraint"])]
    dtypes = [{"code": int(code), "name": name, "bits": int(bits), "lane_bytes": int(width),
               "sign_magnitude": sign == "yes",
               "exponent_bits": int(exponent)}
              for code, name, bits, width, sign, exponent in rows("### 2.1 Dtypes", [
                  "code", "dtype", "bits per element", "lane bytes", "sign-magnitude",
                  "exponent bits"]) if bits != "given"]
    assert [tuple(dtype.values()) for dtype in dtypes] == [
        (d.code, d.name, d.bits, d.lane_bytes, d.sign_magnitude, d.exponent_bits) for d in DTYPES.values()]
    limits = [{"quantity": quantity, "least": number(least), "most": number(most),
               "rule": RULE_OF_LIMIT.get(quantity.split()[0], "R-LIM-01")}
              for quantity, least, most in rows("## 13. Limits", [
                  "quantity", "every reader supports at least", "no file may exceed"])]
    classes = [{"class": name, "meaning": meaning} for name, meaning, _ in rows("## 11. Error classes", [
        "class", "meaning", "what to do"])]
    assert {item["class"] for item in classes} >= {*CLASSES.values()}
    magic, area = (bytes.fromhex(found(rf"\| 8 \| bytes \| magic \| `({start}[0-9A-F ]+)`")) for start in (
        "89 44 43 46", "89 44 43 58"))
    assert (magic, area) == (MAGIC, AREA)
    empty = found(r"```digest-of-empty-state\n([0-9a-f]{64})\n")
    assert empty == EMPTY.digest().hex()
    assert number(found(r"window <= (2\^\d+)")) == WINDOW and number(found(r"holds bytes `p \* (2\^\d+)`")) == PIECE
    table, part = (int(value) for value in found(r"table MUST NOT exceed (\d+) \+ (\d+) bytes per part"))
    segment = [int(value) for value in found(r"NOT exceed (\d+) \+ (\d+) `P` \+ \(`w` \+ (\d+)\) `n`")]
    rules = json.loads(read_bytes(os.path.join(HERE, "rules.json")))
    return {
        "about": "The constants of SPEC.md for programs. `deltachain.h` has them for C. A limit's `least` is what "
                 "every reader supports, `most` what no file may exceed; `streams` are those of a segment, by its "
                 "coding byte.",
        "spec": SPEC,
        "licence": "CC0-1.0",
        "link_version": int(found(r"\| 8 \| 4 \| u32 \| version \| (\d+) \|")),
        "document_version": int(found(r"\| chain \| `deltachain` \| (\d+), the version")),
        "magic": {"link": magic.hex(), "extension_area": area.hex()},
        "header_bytes": fields[-1]["offset"] + fields[-1]["bytes"],
        "header": fields,
        "dtypes": dtypes,
        "described": {
            "code": int(found(r"\| (\d+) \| \*described\* \|")), "name": "[A-Z][A-Z0-9_]{0,31}",
            "bits": [1, int(found(r"\| varint \| bits per element \| 1 to (\d+) \|"))], "lane_bytes": [1, 2, 4, 8],
            "exponent_bits": int(found(r"otherwise at most (\d+), and less than"))},
        "context_strings": {"state_digest": found(r"context string `([^`]+)`"),
                            "sums": found(r"string `([^`]+)` and no input", ADDITIONS),
                            "sums_of_a_link": found(r"string `([^`]+)` over the base", ADDITIONS)},
        "sums": {"prime": 2 ** 31 - 1, "compatible_bit": int(found(r"Compatible feature bit (\d+) announces", ADDITIONS)),
                 "record_kind": int(found(r"announces the record of kind (\d+)", ADDITIONS)),
                 "tables_digest": found(r"12288 numbers as `u32`, in this order, is `([0-9a-f]{64})`", ADDITIONS)},
        "notes": {"first_line": found(r"```\n(deltachain commit v\d+)\nCHAIN", ADDITIONS),
                  "most_bytes": int(found(r"and at most ([\d,]+) bytes;", ADDITIONS).replace(",", "")),
                  "most_lines": int(found(r"signature lines, from 1 to (\d+)", ADDITIONS)),
                  "looked_at": int(found(r"first (\d+) of all others", ADDITIONS))},
        "low_order_keys": found(r"one of these seven: ```\n((?:[0-9a-f]{64}\n){7})```", ADDITIONS).split(),
        "empty_state": empty,
        "piece_bytes": PIECE,
        "window_bytes": WINDOW,
        "limits": limits,
        "longest": {"table": {"bytes": table, "bytes_per_part": part},
                    "gap_escape": int(found(r"of a gap escape stream, (\d+)\s+bytes per escape")),
                    "segment": dict(zip(("bytes", "bytes_per_part", "bytes_per_lane_beside_its_own"), segment))},
        "operations": {"remove": 0, "set": 1, "patch": 2},
        "position_parameters": {"largest_shift": 23, "bitmap": 32},
        "symbol_widths": [1, 2, 4, 8],
        "streams": [{"coding": coding, "lane_bytes": 1 << (coding & 3), "positions": ("dense",
                                                                                      "sparse")[coding >> 2 & 1],
                     "values": ("absolute", "relative planes", "relative small")[coding >> 3],
                     "streams": stream_names(1 << (coding & 3), coding >> 2 & 1, coding >> 3)}
                    for coding in range(24) if coding >> 3 != 2 or coding >> 2 & 1],
        "classes": classes,
        "rules": [{name: rule[name] for name in ("id", "class", "section", "steps")} for rule in rules]}


def registry():
    names = ["space", "name", "status", "meaning"]
    found_rows = rows("### 22.1 Registry", names)
    # Links in registry.json begin at the root of the repository, those in the text in spec/.
    entries = [dict(zip(names, (cell.strip("`").replace("](", "](spec/") for cell in row))) for row in found_rows]
    return {"about": "The registry of SPEC.md section 22.1: what is defined or reserved. A space of which nothing is "
                     "has an entry without a name, with the status `none`.", "spec": SPEC, "licence": "CC0-1.0",
            "entries": entries}


def header(known):
    """constants.json as C99."""
    def define(name, value, note=""):
        return f"#define DELTACHAIN_{name} {value}" + (f"  /* {note} */" if note else "")

    def big(value):
        return f"UINT64_C({value})"

    def name_of(text):
        return re.sub("[^A-Z0-9]+", "_", text.upper()).strip("_")

    def escaped(hexadecimal):
        return '"' + "".join(f"\\x{byte:02x}" for byte in bytes.fromhex(hexadecimal)) + '"'

    def split(digest):
        return "".join(f"\\\n    {escaped(digest[at:at + 32])} " for at in (0, 32)).rstrip()
    lines = [
        "/* The constants of SPEC.md, the delta chain format, for C99. Made by conformance/generator/tables.py;",
        "   constants.json has the same for other programs. CC0-1.0. */",
        "#ifndef DELTACHAIN_H", "#define DELTACHAIN_H", "", "#include <stdint.h>", "",
        define("LINK_VERSION", known["link_version"]), define("DOCUMENT_VERSION", known["document_version"]),
        define("MAGIC", escaped(known["magic"]["link"]), "8 bytes"),
        define("EXTENSION_MAGIC", escaped(known["magic"]["extension_area"]), "8 bytes"), "",
        "/* Offsets in the header (section 4.1). */", define("HEADER_BYTES", known["header_bytes"])]
    lines += [define(f"OFFSET_{name_of(field['field'])}", field["offset"], f"{field['type']}, {field['bytes']} bytes")
              for field in known["header"]]
    lines += ["", "/* Digests and pieces (sections 2.3 and 3). */",
              define("STATE_DIGEST_CONTEXT", json.dumps(known["context_strings"]["state_digest"])),
              define("EMPTY_STATE", split(known["empty_state"]), "32 bytes"),
              define("PIECE_BYTES", big(known["piece_bytes"])), define("WINDOW_BYTES", big(known["window_bytes"])), "",
              "/* In place (section 24). */",
              define("SUMS_CONTEXT", json.dumps(known["context_strings"]["sums"])),
              define("SUMS_OF_A_LINK_CONTEXT", json.dumps(known["context_strings"]["sums_of_a_link"])),
              define("SUMS_PRIME", big(known["sums"]["prime"])),
              define("SUMS_COMPATIBLE_BIT", known["sums"]["compatible_bit"]),
              define("SUMS_RECORD_KIND", known["sums"]["record_kind"]),
              define("SUMS_TABLES_DIGEST", split(known["sums"]["tables_digest"]), "32 bytes"), "",
              "/* Signed commits (section 23). */",
              define("NOTE_FIRST_LINE", json.dumps(known["notes"]["first_line"])),
              define("MOST_NOTE_BYTES", known["notes"]["most_bytes"]),
              define("MOST_NOTE_LINES", known["notes"]["most_lines"]),
              define("NOTES_LOOKED_AT", known["notes"]["looked_at"]),
              "/* Keys of low order, 32 bytes each; either sign bit. */",
              f"static const char deltachain_low_order_keys[{len(known['low_order_keys'])}][33] = {{",
              *(f"    {split(key)}," for key in known["low_order_keys"]), "};", "",
              "/* Limits (section 13): what every reader supports at least, and what no file may exceed. */"]
    for limit in known["limits"]:
        lines += [define(f"LEAST_{name_of(limit['quantity'])}", big(limit["least"]), limit["rule"]),
                  define(f"MOST_{name_of(limit['quantity'])}", big(limit["most"]), limit["rule"])]
    longest = known["longest"]
    lines += ["", "/* R-LIM-03 and R-LIM-06. */",
              define("TABLE_BYTES(parts)",
                     f"({big(longest['table']['bytes'])} + {longest['table']['bytes_per_part']} * "
                     "(uint64_t)(parts))"),
              define("GAP_ESCAPE_BYTES(escapes)", f"({big(longest['gap_escape'])} * (uint64_t)(escapes))"),
              define("MAGNITUDE_ESCAPE_BYTES(lane_bytes, escapes)",
                     "\\\n    (((8 * (uint64_t)(lane_bytes) - 1 + 6) / 7) * "
                     "(uint64_t)(escapes))"),
              define("SEGMENT_STORED_BYTES(parts, lanes, lane_bytes)",
                     "\\\n    ({} + {} * (uint64_t)(parts) + ((uint64_t)(lane_bytes) "
                     "+ {}) * (uint64_t)(lanes))".format(big(longest["segment"]["bytes"]),
                                                         *[*longest["segment"].values()][1:])),
              "", "/* Index and segments (sections 6 and 7). */"]
    lines += [define(f"OPERATION_{name_of(name)}", value) for name, value in known["operations"].items()]
    lines += [define("LARGEST_SHIFT", known["position_parameters"]["largest_shift"]),
              define("BITMAP", known["position_parameters"]["bitmap"], "position parameter"),
              define("MOST_CONTEXTS", 16), "", "/* Dtypes (section 2.1). */",
              define("DESCRIBED", known["described"]["code"]),
              define("DESCRIBED_MOST_BITS", known["described"]["bits"][1]),
              define("DESCRIBED_MOST_EXPONENT_BITS", known["described"]["exponent_bits"]),
              define("DESCRIBED_NAME_BYTES", 32),
              "struct deltachain_dtype {", "    const char *name;",
              "    uint8_t code, bits, lane_bytes, sign_magnitude, "
              "exponent_bits;", "};",
              "static const struct deltachain_dtype deltachain_dtypes[] = {"]
    lines += [f'    {{"{d["name"]}", {d["code"]}, {d["bits"]}, {d["lane_bytes"]}, {int(d["sign_magnitude"])}, '
              f'{d["exponent_bits"]}}},' for d in known["dtypes"]]
    most = max(len(item["streams"]) for item in known["streams"])
    lines += ["};", "", "/* Streams of a segment in the order of its directory, by its coding byte (section 7). */",
              define("MOST_STREAMS", most),
              "struct deltachain_coding {", "    uint8_t coding, streams;",
              "    const char *names[DELTACHAIN_MOST_STREAMS];", "};",
              "static const struct deltachain_coding deltachain_codings[] = {"]
    for item in known["streams"]:
        names = ", ".join(f'"{name}"' for name in item["streams"] + [""] * (most - len(item["streams"])))
        lines += [f"    {{0x{item['coding']:02x}, {len(item['streams'])},", f"     {{{names}}}}},"]
    lines += ["};", "", "/* Error classes (section 11), and the class and section of each rule that readers check. */",
              "enum deltachain_class {"]
    lines += [f"    DELTACHAIN_{item['class']},  /* {item['meaning']} */" for item in known["classes"]]
    lines[-1] = lines[-1].replace(",  /*", "  /*", 1)
    lines += ["};", "struct deltachain_rule {", "    const char *id, *section;", "    enum deltachain_class error;",
              "};",
              "static const struct deltachain_rule deltachain_rules[] = {"]
    lines += [f'    {{"{rule["id"]}", "{rule["section"]}", DELTACHAIN_{rule["class"]}}},' for rule in known["rules"]
              if rule["class"].isupper()]
    assert known["described"]["code"] == DESCRIBED
    return "\n".join([*lines, "};", "", "#endif", ""])
