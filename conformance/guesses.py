"""Guesses that a reader could make where SPEC.md says otherwise, for `wrong_testees.py`: for each of them there has to
be a vector that notices.

Most of them are guesses that authors of readers made, or that this project made before. What the text leaves open is
no guess, nor is a rule that is not checked at all, for that is what the measure of adequacy is about. Each is
(name, cases to run, edits); an edit is (file of the package, right piece of its source, wrong one).
"""
LINKS, DOCUMENTS, CHAINS, LAYOUTS = "links/", "documents/", "chains/", "layout"

CHECK_LAYOUT = '''    text = dict(link.index.metadata).get(layout.KEY)
    if text is not None:
        removed = {entry.name for entry in link.index.tensors if entry.operation == REMOVE}
        layout.parse(text, {*table, *(entry.name for entry in link.index.tensors)} - removed)
'''
LAYOUT_STEP = '''    if text is not None:
        layout.parse(text, target)
    return target
'''
APP_05 = '''    check(table_digest(target) == link.header.target, "R-APP-05", "state digest of what the link promises")
'''
APP_06 = '''    for number, (one, two) in enumerate(zip(links, links[1:]), 1):
        check(two.header.base == one.header.target, "R-APP-06", f"link {number} does not continue the one before")
'''
STEP_7, STEPS_8_AND_9 = '''    for link in links:
        table = promise(link, table)
''', '''    for link in links:
        base = build(link, base)
'''
BUILT = '''            target[entry.name] = tensor
    return target
'''
LIM_04 = '''    size = sum(entry.byte_length for entry in index.tensors if entry.operation == SET)
    check(limits.set_bytes is None or size <= limits.set_bytes, "R-LIM-04", f"{size} bytes of set tensors", "index")
'''
LIM_06 = '''        check(segment.stored_length <= most, "R-LIM-06", f"{segment.stored_length} bytes", f"segment {number}")
'''

ORDER = [
    ("the layout before R-APP-01", LINKS, [
        ("link.py", "    digest = table_digest(table)\n", CHECK_LAYOUT + "    digest = table_digest(table)\n")]),
    ("the layout before R-APP-05", LINKS, [("link.py", APP_05, CHECK_LAYOUT + APP_05)]),
    ("the layout after the data", LINKS, [
        ("link.py", LAYOUT_STEP, "    return target\n"),
        ("link.py", BUILT, BUILT.replace("    return", "    text = dict(link.index.metadata).get(layout.KEY)\n"
                                         "    if text is not None:\n        layout.parse(text, target)\n    return"))]),
    ("only the last layout of a sequence", LINKS, [
        ("link.py", STEP_7, STEP_7.replace("        table", "        link.index.metadata *= link is links[-1]\n"
                                           "        table"))]),
    ("R-APP-05 last", LINKS, [
        ("link.py", APP_05, ""),
        ("link.py", BUILT, BUILT.replace("    return", APP_05.replace("(target)", "(table_of(target))") + "    return"))]),
    ("R-APP-05 before R-APP-02", LINKS, [
        ("link.py", "    target = dict(table)\n", "    target, bad = dict(table), []\n"),
        ("link.py", 'check(fits, "R-APP-02", f"base has no such tensor {entry.name!r}")', "bad += [entry] * (not fits)"),
        ("link.py", APP_05, APP_05 + '    check(not bad, "R-APP-02", "base has no such tensor")\n')]),
    ("R-APP-06 before step 6 of the next link", LINKS, [
        ("link.py", "    links, table = [parse(data, limits) for data in files], table_of(base)\n" + APP_06,
         "    links, table = [], table_of(base)\n    for data in files:\n        links.append(parse(data, limits))\n"
         "        fits = len(links) < 2 or links[-1].header.base == links[-2].header.target\n"
         '        check(fits, "R-APP-06", "does not continue the one before")\n')]),
    ("R-APP-06 after step 7", LINKS, [("link.py", APP_06, ""), ("link.py", STEP_7, STEP_7 + APP_06)]),
    ("step 8 of a link before step 7 of the next", LINKS, [
        ("link.py", STEP_7 + STEPS_8_AND_9, STEP_7 + "        base = build(link, base)\n")]),
    ("R-LIM-04 before R-IDX-17", LINKS, [
        ("index.py", LIM_04, ""),
        ("index.py", "    if header.base == EMPTY_DIGEST:\n", LIM_04 + "    if header.base == EMPTY_DIGEST:\n")]),
    ("R-LIM-06 after R-IDX-12 of the other segments", LINKS, [
        ("index.py", LIM_06, "        segment.long = segment.stored_length > most\n"),
        ("index.py", "    total = sum(segment", '    check(not any(segment.long for segment in index.segments), "R-LIM-06", "")\n'
                                               "    total = sum(segment")]),
    ("R-LIM-06 before the rest of its segment", LINKS, [
        ("index.py", LIM_06, ""),
        ("index.py", '        check(segment.parts, "R-IDX-12"', """        size = sum(end - start for start, end in (part.range for part in segment.parts))
        width = segment.coding.lane_bytes
        most = 512 + 94 * len(segment.parts) + (width + 8) * (size // width)
""" + LIM_06 + '        check(segment.parts, "R-IDX-12"')]),
    ("patches up to the first relative values", LINKS, [
        ("link.py", '    if link.profile != "direct":\n', '    if [*decode(link)] is not None and link.profile != "direct":\n')]),
]

HEADER_AND_FRAMES = [
    ("an extension area is refused", LINKS, [("header.py", "check(reserved == 0,", "check(reserved == 0 == extension_length,")]),
    ("the extension area does not count in R-HDR-08", LINKS, [
        ("header.py", "check(header.file_length() <= 2**63 - 1", "check(header.file_length() - extension_length <= 2**63 - 1")]),
    ("the extension area may be cut off", LINKS, [
        ("header.py", "len(data) >= header.file_length(),", "len(data) >= header.file_length() - extension_length,")]),
    ("bytes after an extension area", LINKS, [
        ("header.py", "len(data) <= header.file_length(),", "len(data) <= header.file_length() or extension_length,")]),
    ("the extension area before the segments", LINKS, [
        ("link.py", "pos = SIZE + self.header.index_stored", "pos = SIZE + self.header.index_stored + self.header.extension_length")]),
    ("version 0 is read, too", LINKS, [("header.py", "version == VERSION", "version <= VERSION")]),
    ("R-HDR-08 before R-STR-01", LINKS, [
        ("header.py", '    check(index_stored <= index_raw, "R-STR-01"', '    check(header.file_length() <= 2**63 - 1, "R-HDR-08", "")\n'
                      '    check(index_stored <= index_raw, "R-STR-01"')]),
    ("the unused bit of a frame is refused", LINKS, [("streams.py", "descriptor & 0x08 == 0", "descriptor & 0x18 == 0")]),
    ("the reserved bit of a frame before its window", LINKS, [
        ("streams.py", '    check(window <= MAX_WINDOW,', '    check(descriptor & 0x08 == 0, "R-STR-02", "", where)\n'
                                                            '    check(window <= MAX_WINDOW,')]),
    ("the window of a frame before the end of its header", LINKS, [
        ("streams.py", "    size_bytes = (single", '    early = 8 + (window_byte & 7) << 7 + (window_byte >> 3)\n'
                       '    check(early <= MAX_WINDOW, "R-STR-03", "", where)\n    size_bytes = (single')]),
    ("the dictionary of a frame after its window", LINKS, [
        ("streams.py", '    check(descriptor & 0x03 == 0, "R-STR-02", "frame has a dictionary id", where)\n', ""),
        ("streams.py", "    check(descriptor & 0x08 == 0,", '    check(descriptor & 0x03 == 0, "R-STR-02", "", where)\n'
                                                            "    check(descriptor & 0x08 == 0,")]),
    ("a dictionary id of 0", LINKS, [
        ("streams.py", '    check(descriptor & 0x03 == 0, "R-STR-02", "frame has a dictionary id", where)\n', ""),
        ("streams.py", "    size_bytes = (single", '    check(take((0, 1, 2, 4)[descriptor & 3]) == 0, "R-STR-02", "", where)\n'
                       '    size_bytes = (single')]),
    ("raw blocks above Block_Maximum_Size", LINKS, [("streams.py", "size <= maximum,", "size <= maximum or kind == 0,")]),
    ("RLE blocks above Block_Maximum_Size", LINKS, [("streams.py", "size <= maximum,", "size <= maximum or kind == RLE,")]),
    ("Block_Maximum_Size whatever the window", LINKS, [("streams.py", "maximum = min(window, 1 << 17)", "maximum = 1 << 17")]),
    ("bytes after a frame", LINKS, [("streams.py", "check(pos == len(stored),", "check(pos <= len(stored),")]),
]

INDEX_AND_SEGMENT = [
    ("R-IDX-19 per lane width", LINKS, [("index.py", "kind = entry.dtype, segment.coding", "kind = segment.coding")]),
    ("R-IDX-19 whatever the coding", LINKS, [("index.py", "kind = entry.dtype, segment.coding", "kind = entry.dtype")]),
    ("R-IDX-19 within a tensor", LINKS, [
        ("index.py", "kind = entry.dtype, segment.coding", "kind = entry.name, segment.coding")]),
    ("R-IDX-19 for all described dtypes together", LINKS, [
        ("index.py", "kind = entry.dtype, segment.coding", "kind = entry.dtype.code, segment.coding")]),
    ("R-IDX-19 by the name of described dtypes", LINKS, [
        ("index.py", "kind = entry.dtype, segment.coding", "kind = entry.dtype.name, segment.coding")]),
    ("R-IDX-19 for patches alone", LINKS, [
        ("index.py", "number >= latest.get(kind, 0)", "number >= latest.get(kind, 0) or entry.operation == SET")]),
    ("piece digests only of pieces with a part", LINKS, [
        ("index.py", "for _ in entry.segments or [0]]", "for _ in [*filter(None, entry.segments)] or [0]]")]),
    ("one digest of all data", LINKS, [
        ("index.py", "[reader.bytes(32) for _ in entry.segments or [0]]", "[reader.bytes(32)]"),
        ("model.py", "for p in range(piece_count(len(self.data)))] or [(0, 0)]", "for p in []] or [(0, len(self.data))]")]),
    ("only the first piece is compared", LINKS, [
        ("link.py", "tensor.digests() == entry.digests", "tensor.digests()[0] == entry.digests[0]")]),
    ("the description of a dtype is not in the state digest", LINKS, [
        ("model.py", "+ name + row.dtype.encode() +", "+ name + bytes([row.dtype.code]) +")]),
    ("only the name of a described dtype is in the state digest", LINKS, [
        ("model.py", "+ name + row.dtype.encode() +", "+ name + row.dtype.encode()[:-4 if row.dtype.code == DESCRIBED else None] +")]),
    ("described dtypes are the same by name", LINKS, [
        ("link.py", "old.dtype == entry.dtype and", "old.dtype.name == entry.dtype.name and")]),
    ("described dtypes are the same by code", LINKS, [
        ("link.py", "old.dtype == entry.dtype and", "old.dtype.code == entry.dtype.code and")]),
    ("R-IDX-20: lowercase letters", LINKS, [("index.py", "[A-Z][A-Z0-9_]{0,31}", "[A-Z][A-Za-z0-9_]{0,31}")]),
    ("R-IDX-20: a digit first", LINKS, [("index.py", "[A-Z][A-Z0-9_]{0,31}", "[A-Z0-9][A-Z0-9_]{0,31}")]),
    ("R-IDX-20: an underscore first", LINKS, [("index.py", "[A-Z][A-Z0-9_]{0,31}", "[A-Z_][A-Z0-9_]{0,31}")]),
    ("R-IDX-20: 33 characters", LINKS, [("index.py", "[A-Z][A-Z0-9_]{0,31}", "[A-Z][A-Z0-9_]{0,32}")]),
    ("R-IDX-20: 31 characters", LINKS, [("index.py", "[A-Z][A-Z0-9_]{0,31}", "[A-Z][A-Z0-9_]{0,30}")]),
    ("R-IDX-20: the length as a limit", LINKS, [
        ("index.py", 'reader.string(limits.name_bytes, "name of a dtype")', 'reader.string(32, "name of a dtype")')]),
    ("R-IDX-20: a name of the table", LINKS, [("index.py", "name not in BY_NAME and ", "")]),
    ("R-IDX-20: 0 bits", LINKS, [("index.py", "bits > 0 and ", "")]),
    ("R-IDX-20: lanes of 3 bytes", LINKS, [("index.py", "lane_bytes in (1, 2, 4, 8)", "lane_bytes in (1, 2, 3, 4, 8)")]),
    ("R-IDX-20: lanes of 16 bytes", LINKS, [("index.py", "lane_bytes in (1, 2, 4, 8)", "lane_bytes in (1, 2, 4, 8, 16)")]),
    ("R-IDX-20: any sign", LINKS, [("index.py", "sign <= 1 and ", "")]),
    ("R-IDX-20: an exponent without a sign", LINKS, [
        ("index.py", "(min(8 * lane_bytes - 1, 11) if sign else 0)", "min(8 * lane_bytes - 1, 11)")]),
    ("R-IDX-20: an exponent as wide as the lane", LINKS, [
        ("index.py", "min(8 * lane_bytes - 1, 11)", "min(8 * lane_bytes, 11)")]),
    ("R-IDX-20: an exponent of 12 bits", LINKS, [("index.py", "min(8 * lane_bytes - 1, 11)", "8 * lane_bytes - 1")]),
    ("R-IDX-09 for whole bytes only", LINKS, [("index.py", "bits % (8 * entry.dtype.lane_bytes) == 0", "bits % 8 == 0")]),
    ("dimensions that overflow before a zero", LINKS, [
        ("model.py", "    count = 0 if 0 in shape else 1\n    for dimension in shape:\n",
         "    count = 1\n    for dimension in shape:\n        if count * dimension >= 2**64:\n            return 2**64\n")]),
    ("the metadata limit for each value", LINKS, [
        ("index.py", "value = reader.string(limits.metadata_bytes - total,", "value = reader.string(limits.metadata_bytes,")]),
    ("the metadata limit for each key", LINKS, [
        ("index.py", "key = reader.string(limits.metadata_bytes - total,", "key = reader.string(limits.metadata_bytes,")]),
    ("shifts up to 31", LINKS, [("segment.py", "(*range(24), BITMAP)", "(*range(32), BITMAP)")]),
    ("shifts up to 22", LINKS, [("segment.py", "(*range(24), BITMAP)", "(*range(23), BITMAP)")]),
    ("tables of 320 bytes per part", LINKS, [("segment.py", "94 * len", "320 * len")]),
    ("gap escapes of 10 bytes", LINKS, [("codings.py", "high.count(255), 4,", "high.count(255), 10,")]),
    ("gap escapes of 3 bytes", LINKS, [("codings.py", "high.count(255), 4,", "high.count(255), 3,")]),
    ("magnitude escapes of 10 bytes", LINKS, [("codings.py", "ceil_div(8 * coding.lane_bytes - 1, 7)", "10")]),
    ("magnitude escapes of W bits", LINKS, [
        ("codings.py", "ceil_div(8 * coding.lane_bytes - 1, 7)", "ceil_div(8 * coding.lane_bytes, 7)")]),
]

ONE_FORM = "value if fits(value, table) and encode(value) == data else None"
LAYOUT = [
    ("JSON with white space", LAYOUTS, [
        ("documents.py", "encode(value) == data else", "data in (encode(value), json.dumps(value, ensure_ascii=False).encode()) else")]),
    ("JSON with needless escapes", LAYOUTS, [
        ("documents.py", "encode(value) == data else",
         'data in (encode(value), json.dumps(value, separators=(",", ":")).encode()) else')]),
    ("JSON with an escaped slash", LAYOUTS, [
        ("documents.py", "encode(value) == data else", r'encode(value) == data.replace(b"\\/", b"/") else')]),
    ("JSON with lone surrogates", LAYOUTS, [
        ("documents.py", "    except (ValueError, RecursionError):\n",
         "    except UnicodeEncodeError:\n        return value\n    except (ValueError, RecursionError):\n")]),
    ("JSON with a byte order mark", LAYOUTS, [
        ("documents.py", 'data.decode("utf-8")', 'data.decode("utf-8-sig")'),
        ("documents.py", "encode(value) == data else", r'encode(value) == data.removeprefix(b"\xef\xbb\xbf") else')]),
    ("JSON as deep as it likes", LAYOUTS, [("documents.py", "except (ValueError, RecursionError)", "except ValueError")]),
    ("JSON with members in any order", LAYOUTS, [
        ("documents.py", "list(value) == list(table) and", "sorted(value) == sorted(table) and")]),
    ("layout: one file may list its tensors", LAYOUTS, [
        ("layout.py", "check(lists == [None],", "check(lists == [None] or sorted(lists[0]) == sorted(tensors),")]),
    ("layout: files in any order", LAYOUTS, [("layout.py", "ascending(names) and ", "")]),
    ("layout: tensors in any order", LAYOUTS, [("layout.py", " and all(map(ascending, lists))", "")]),
    ("layout: a tensor in two files", LAYOUTS, [
        ("layout.py", "sorted(listed) == sorted(tensors)", "{*listed} == {*tensors}")]),
    ("layout: more tensors than there are", LAYOUTS, [("layout.py", "sorted(listed) == sorted(tensors)", "{*listed} >= {*tensors}")]),
    ("layout: no file", LAYOUTS, [("layout.py", '[".*", 0])}, 1]}', '[".*", 0])}, 0]}')]),
    ("layout: an ending without case", LAYOUTS, [
        ("layout.py", 'name.endswith(".safetensors")', 'name.lower().endswith(".safetensors")')]),
    ("layout: any ending", LAYOUTS, [("layout.py", ' and name.endswith(".safetensors")', "")]),
    ("names compared with case", LAYOUTS, [("names.py", "len({*map(caseless, names)})", "len({*names})")]),
    ("names compared with Unicode's case", LAYOUTS, [
        ("names.py", 'return name.encode("utf-8").lower()', 'return name.casefold().encode("utf-8")')]),
    ("names of 255 characters", LAYOUTS, [("names.py", 'len(name.encode("utf-8")) <= 255', "len(name) <= 255")]),
    ("names with C1 control characters", LAYOUTS, [
        ("names.py", 'unicodedata.category(char) == "Cc"', r'char < " " or char == "\x7f"')]),
    ("names with format characters are refused", LAYOUTS, [
        ("names.py", 'unicodedata.category(char) == "Cc"', 'unicodedata.category(char) in ("Cc", "Cf")')]),
    ("devices without superscript digits", LAYOUTS, [("names.py", "[0-9¹²³]", "[0-9]")]),
    ("devices with any digit", LAYOUTS, [("names.py", "[0-9¹²³]", "[0-9¹²³⁴٣]")]),
    ("devices COM1 to COM9 only", LAYOUTS, [("names.py", "[0-9¹²³]", "[1-9¹²³]")]),
    ("devices without CONIN$ and CONOUT$", LAYOUTS, [("names.py", "|conin[$]|conout[$]", "")]),
    ("devices with spaces before the dot are plain", LAYOUTS, [("names.py", '[0].rstrip(" ")', "[0]")]),
    ("devices with any white space before the dot", LAYOUTS, [("names.py", '[0].rstrip(" ")', "[0].rstrip()")]),
    ("devices before the last dot", LAYOUTS, [("names.py", 'name.split(".")[0]', 'name.rsplit(".", 1)[0]')]),
    ("devices with Unicode's case", LAYOUTS, [("names.py", "re.ASCII | re.IGNORECASE", "re.IGNORECASE")]),
]

DOC_07 = '''    unknown = [key for key in document["metadata"] if key.startswith("deltachain!")]
    check(not unknown, "R-DOC-07", f"metadata that a reader has to know: {unknown}", where)
'''
DOC_08 = '''    good = ascending(assets) and distinct(assets) and all(map(is_asset_name, assets))
    check(good, "R-DOC-08", "names of assets are not in order, distinct and plain", where)
'''
IN_ORDER = "ascending([order(route) for route in routes])"


def by(what):
    return f"{what} == sorted({what})"


DOCUMENT = [
    ("one route from a version", DOCUMENTS, [("documents.py", IN_ORDER, "ascending([order(route)[0] for route in routes])")]),
    ("routes by the version they come from alone", DOCUMENTS, [
        ("documents.py", IN_ORDER, by("[order(route)[0] for route in routes]"))]),
    ("routes of one size in any order", DOCUMENTS, [("documents.py", IN_ORDER, by("[order(route)[:2] for route in routes]"))]),
    ("the same route twice", DOCUMENTS, [("documents.py", IN_ORDER, by("[order(route) for route in routes]"))]),
    ("sums of sizes modulo 2^64 in R-DOC-04", DOCUMENTS, [
        ("documents.py", 'sum(file["size"] for file in files),', 'sum(file["size"] for file in files) % 2**64,')]),
    ("sums of sizes in R-DOC-04 as doubles", DOCUMENTS, [
        ("documents.py", 'sum(file["size"] for file in files),', 'float(sum(file["size"] for file in files)),')]),
    ("routes by digests, then size", DOCUMENTS, [
        ("documents.py", 'sum(file["size"] for file in files), [file["digest"] for file in files]',
         '[file["digest"] for file in files], sum(file["size"] for file in files)')]),
    ("deltachain! in chain.json is ignored", DOCUMENTS, [("documents.py", "check(not unknown,", 'check(not unknown or kind == "chain",')]),
    ("deltachain! in routes is ignored", DOCUMENTS, [("documents.py", "check(not unknown,", 'check(not unknown or kind == "routes",')]),
    ("deltachain. is refused", DOCUMENTS, [("documents.py", '"deltachain!")]', '("deltachain!", "deltachain."))]')]),
    ("deltachain! without case", DOCUMENTS, [("documents.py", "if key.startswith", "if key.lower().startswith")]),
    ("R-DOC-07 before R-DOC-04", DOCUMENTS, [
        ("documents.py", DOC_07, ""), ("documents.py", '    routes, assets = doc', DOC_07 + '    routes, assets = doc')]),
    ("R-DOC-07 before R-DOC-05", DOCUMENTS, [
        ("documents.py", DOC_07, ""), ("documents.py", '    if kind == "commit":\n', DOC_07 + '    if kind == "commit":\n')]),
    ("R-DOC-08 before R-DOC-07", DOCUMENTS, [
        ("documents.py", DOC_08, ""), ("documents.py", '    unknown = [key', DOC_08 + '    unknown = [key')]),
    ("assets that differ in case alone", DOCUMENTS, [("documents.py", "ascending(assets) and distinct(assets) and", "ascending(assets) and")]),
    ("assets in order without case", DOCUMENTS, [
        ("documents.py", "ascending(assets) and distinct", "ascending([*map(caseless, assets)]) and distinct")]),
    ("endings of assets with case", DOCUMENTS, [("documents.py", "low.endswith(", "name.encode().endswith(")]),
    ("beginnings of assets with case", DOCUMENTS, [("documents.py", "low.startswith(", "name.encode().startswith(")]),
    ("assets that end in a space", DOCUMENTS, [("documents.py", '(b" ", b".", ', '(b".", ')]),
    ("assets that end in a dot", DOCUMENTS, [("documents.py", '(b" ", b".", ', '(b" ", ')]),
    ("assets may be an index of shards", DOCUMENTS, [("documents.py", ', b".safetensors.index.json"))', "))")]),
    ("assets may be notes of tools", DOCUMENTS, [("documents.py", '\n            and not low.startswith(b"deltachain.")', "")]),
    ("assets of any name", DOCUMENTS, [("documents.py", "(is_plain(name) and ", "(")]),
    ("257 assets", DOCUMENTS, [("documents.py", "[ASSET, 0, 256]", "[ASSET, 0, 257]")]),
    ("255 assets", DOCUMENTS, [("documents.py", "[ASSET, 0, 256]", "[ASSET, 0, 255]")]),
    ("assets of 2^30 + 1 bytes", DOCUMENTS, [("documents.py", "range(2**30 + 1)", "range(2**30 + 2)")]),
    ("assets of 0 bytes are refused", DOCUMENTS, [("documents.py", "range(2**30 + 1)", "range(1, 2**30 + 1)")]),
    ("documents of version 0 are read, too", DOCUMENTS, [
        ("documents.py", "check(int(begin[1]) == VERSION,", "check(int(begin[1]) <= VERSION,")]),
]

PART = 'not self.takes("no such tensor")'  # the reader takes some tensors
ACCEPTED = "if self.held and self.accept is not None and self.commit(number)[1] == self.accept:\n"
GOOD_PATH = '''                for step in path:
                    shards = self.follow(step, shards)
'''
STEP_6, STEP_7_OF_CHAINS = '        if len(shards) == len(commit["shards"]):  # step 6\n', 'for asset in commit["assets"]:  # step 7\n'
PROMISE = "table = dcf.promise(link, base.table)"
UNFAILED = "if step not in self.failed and"
CHAIN = [
    ("R-CHN-13 for the head only", CHAINS, [
        ("chain.py", "check(self.chain_digest == self.held.chain,", "check(version is not None or self.chain_digest == self.held.chain,")]),
    ("R-CHN-14 for a version asked for, too", CHAINS, [("chain.py", "forward = version is not None or ", "forward = ")]),
    ("what is accepted is ignored", CHAINS, [("chain.py", "self.accept is not None and", "False and")]),
    ("anything is accepted", CHAINS, [("chain.py", "self.commit(number)[1] == self.accept:", "self.commit(number):")]),
    ("what was held still counts after a step back", CHAINS, [
        ("chain.py", ACCEPTED + "            self.held = None\n        if self.held:\n",
         ACCEPTED + "            pass\n        elif self.held:\n")]),
    ("what is accepted counts only for a step back", CHAINS, [
        ("chain.py", ACCEPTED, ACCEPTED.replace("self.held and", "self.held and (self.chain_digest != self.held.chain or "
                                                "version is None and number < self.held.version) and"))]),
    ("R-CHN-13 although a commit may be accepted", CHAINS, [
        ("chain.py", "        if self.held and self.accept", '        check(not self.held or self.chain_digest == self.held.chain, '
                     '"R-CHN-13", "")\n        if self.held and self.accept')]),
    ("commits from a lower version to the one held are not checked", CHAINS, [
        ("chain.py", "self.check_commits(min(first, number), max(first, number), final=True)",
         "self.check_commits(min(first, number), number, final=True)")]),
    ("a lower version is as good as a step back", CHAINS, [
        ("chain.py", "forward = version is not None or ", "forward = "),
        ("chain.py", "        if self.held and self.accept", "        if self.held and version is not None and number < self.held.version:\n"
                     "            self.held = None\n        if self.held and self.accept")]),
    ("R-CHN-12 makes the last route unusable", CHAINS, [
        ("chain.py", GOOD_PATH, GOOD_PATH + '''                union = {name: row for shard in shards.values() for name, row in shard.table.items()}
                commit = self.commit(version)[0]
                good = len(shards) < len(commit["shards"]) or table_digest(union).hex() == commit["state"]
                check(good, "R-CHN-12", "")
''')]),
    ("a wrong shard that is held is final", CHAINS, [
        ("chain.py", "            with self.passing_over():\n                shards = self.begin(path)\n",
         "            shards = self.begin(path)\n            with self.passing_over():\n")]),
    ("a wrong shard that is held, when nothing is to be done", CHAINS, [
        ("chain.py", "check(table_digest(table).hex() == digest,", "check(not path or table_digest(table).hex() == digest,")]),
    ("too many shards are held", CHAINS, [("chain.py", "len(self.held.shards) == len(digests)", "len(self.held.shards) >= len(digests)")]),
    ("too few shards are held", CHAINS, [("chain.py", "len(self.held.shards) == len(digests)", "len(self.held.shards) <= len(digests)")]),
    ("a failed link makes its file unusable", CHAINS, [
        ("chain.py", UNFAILED, "if not any(file in bad.files for bad in self.failed if bad for file in step.files) and")]),
    ("a failed link makes all routes from its version unusable", CHAINS, [
        ("chain.py", UNFAILED, "if not any(step[:2] == bad[:2] for bad in self.failed if bad) and")]),
    ("R-CHN-07 makes the document unusable", CHAINS, [
        ("chain.py", UNFAILED, 'if all(len(other.files) == len(commit["shards"]) for other in steps) and step not in self.failed and')]),
    ("R-CHN-07 makes all routes from its version unusable", CHAINS, [
        ("chain.py", UNFAILED, 'if all(len(other.files) == len(commit["shards"]) for other in steps if other.start == step.start) and '
                               'step not in self.failed and')]),
    ("routes documents below the held version are ignored", CHAINS, [
        ("chain.py", "            with self.passing_over():  # for the one before", "            if self.held and version < self.held.version:\n"
                     "                break\n            with self.passing_over():  # for the one before")]),
    ("layouts do not matter in chains", CHAINS, [("chain.py", PROMISE, "link.index.metadata = []\n            " + PROMISE)]),
    ("sums of sizes modulo 2^64", CHAINS, [
        ("chain.py", "for step in path for file in step.files),", "for step in path for file in step.files) % 2**64,")]),
    ("symbolic links are no objects", CHAINS, [
        ("chain.py", "if not (self.folder / name).is_file():", "if not (self.folder / name).is_file() or (self.folder / name).is_symlink():")]),
    ("symbolic links are not listed", CHAINS, [("chain.py", "if path.is_file())", "if path.is_file() and not path.is_symlink())")]),
    ("assets before R-CHN-12", CHAINS, [
        ("chain.py", STEP_6, '        for asset in commit["assets"]:\n            self.object(ASSET, asset, "R-CHN-15", "R-CHN-16")\n' + STEP_6)]),
    ("assets make the last route unusable", CHAINS, [
        ("chain.py", GOOD_PATH, GOOD_PATH + '''                for asset in self.commit(version)[0]["assets"]:
                    self.object(ASSET, asset, "R-CHN-15", "R-CHN-16")
''')]),
    ("assets of all versions of the path", CHAINS, [
        ("chain.py", STEP_7_OF_CHAINS, 'for asset in [asset for step in path for asset in self.commit(step.version)[0]["assets"]]:\n')]),
    ("no assets if the version is held", CHAINS, [("chain.py", STEP_7_OF_CHAINS, 'for asset in commit["assets"] if path else []:\n')]),
    ("only the size of assets", CHAINS, [
        ("chain.py", '        check(same, wrong, "not', '        same = same or wrong == "R-CHN-16" and len(data) == reference["size"]\n'
                     '        check(same, wrong, "not')]),
    ("only the digest of assets", CHAINS, [
        ("chain.py", '        check(same, wrong, "not', '        same = same or wrong == "R-CHN-16" and blake3(data).hexdigest() == '
                     'reference["digest"]\n        check(same, wrong, "not')]),
    ("R-APP-05 is not for who takes some tensors", CHAINS, [
        ("link.py", "def promise(link, table):", "def promise(link, table, part=False):"),
        ("link.py", "check(table_digest(target) ==", "check(part or table_digest(target) =="),
        ("chain.py", PROMISE, f"table = dcf.promise(link, base.table, {PART})")]),
    ("R-APP-02 of the tensors taken alone", CHAINS, [
        ("link.py", "def promise(link, table):", "def promise(link, table, taken=lambda name: True):"),
        ("link.py", "check(fits, ", "check(fits or not taken(entry.name), "),
        ("chain.py", PROMISE, "table = dcf.promise(link, base.table, self.takes)")]),
    ("segments of tensors that are not taken", CHAINS, [
        ("link.py", "if any(taken(part.entry.name) for part in entry.parts):", "if entry.parts:")]),
    ("a name that no shard has", CHAINS, [
        ("chain.py", "        self.failures = []", "        self.wanted = tensors or []\n        self.failures = []"),
        ("chain.py", STEP_6, '        known = {name for shard in shards.values() for name in shard.table}\n'
                             '        check(known >= {*self.wanted}, "R-CHN-08", "")\n' + STEP_6)]),
    ("R-CHN-12 is not for who takes some tensors", CHAINS, [
        ("chain.py", STEP_6, STEP_6.replace('["shards"])', f'["shards"]) and not ({PART})'))]),
    ("R-CHN-12 for who takes some shards", CHAINS, [("chain.py", STEP_6, "        if shards:\n")]),
    ("layouts are not for who takes some tensors", CHAINS, [
        ("chain.py", PROMISE, f"link.index.metadata *= not ({PART})\n            " + PROMISE)]),
    ("what is held is not compared by who takes some tensors", CHAINS, [
        ("chain.py", "check(table_digest(table).hex() == digest,", f"check({PART} or table_digest(table).hex() == digest,")]),
]

GUESSES = [*ORDER, *HEADER_AND_FRAMES, *INDEX_AND_SEGMENT, *LAYOUT, *DOCUMENT, *CHAIN]
