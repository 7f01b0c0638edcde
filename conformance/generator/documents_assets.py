"""Documents with assets, and metadata that a reader must know (SPEC section 18, R-DOC-07 and R-DOC-08)."""
from .documents import FILE, LEFT, OTHER, RIGHT, STATE, asset, bad, chain_document, commit, good, routes_document
from .documents import COMMIT, SNAPSHOT, spoilt, text
from .registry import makes_vectors

LARGEST = 1 << 40  # bytes that no asset may exceed


def plain(*names):
    return [asset(name, f"{number:064x}", number) for number, name in enumerate(names)]


@makes_vectors
def good_assets():
    two = plain("config.json", "tokenizer.model")
    yield good("assets", "commit", commit(assets=two), "two assets", ["R-DOC-08"])
    yield good("assets-1024", "commit", commit(assets=plain(*(f"{i:04}" for i in range(1024)))),
               "as many assets as every reader supports", ["R-LIM-07"])
    yield good("assets-1-gib", "commit", commit(assets=[asset("empty", FILE, 0), asset("large", OTHER, 1 << 30)]),
               "an empty asset, and one as large as every reader supports", ["R-LIM-07"])
    yield good("assets-one-digest", "commit", commit(assets=[asset("a", FILE, 5), asset("b", FILE, 5)]),
               "two names for one object", ["R-DOC-08"])
    names = sorted((
        "A" * 255, "\u00e9" * 127 + "n", "a b", " a", "Model.bin", "com10", "conin", "model.safetensors.x",
        "safetensors", "safetensors.index.json", "deltachain", "deltachain-x", "x.deltachain.json", "null.json", "~",
        "\u00a0", "\u202e", "\u212a", "k", "\u00c9", "\u00e8", "\u00e9", '"', "*?<>|"), key=str.encode)
    yield good("assets-names", "commit", commit(assets=plain(*names)),
               "names that are almost forbidden, and some that differ in the case of a letter that is not ASCII",
               ["R-DOC-08"])
    yield good("assets-order", "commit", commit(assets=plain("A", "B.txt", "Z", "a0", "b", "b.txt.gz", "c", "\uffff",
                                                             "\U00010000")),
               "names ascend as UTF-8: capitals first, U+FFFF before U+10000", ["R-DOC-08"])


@makes_vectors
def assets_of_another_form():
    one = text(asset("config.json", "0" * 64, 0))
    for id, new, reason in (
            ("order-of-members", f'{{"digest":"{"0" * 64}","name":"config.json","size":0}}', "another order of members"),
            ("missing-size", one.replace(',"size":0', ""), "an asset without its size"),
            ("unknown-member", one.replace("}", ',"mode":420}'), "an unknown member"),
            ("string", '"config.json"', "a name instead of an object"),
            ("null", "null", "null"),
            ("name-null", one.replace('"config.json"', "null"), "the name is null"),
            ("name-number", one.replace('"config.json"', "1"), "the name is a number"),
            ("name-surrogate", one.replace("config.json", "\\ud83d"), "a surrogate is no character"),
            ("digest-capitals", one.replace("0" * 64, "A" * 64), "capital digits"),
            ("digest-short", one.replace("0" * 64, "0" * 63), "63 digits"),
            ("size-negative", one.replace(":0", ":-1"), "a negative number"),
            ("size-null", one.replace(":0", ":null"), "null"),
            ("size-2-53", one.replace(":0", f":{1 << 53}"), "2^53, which is no integer of a document")):
        yield from spoilt("assets", "R-DOC-03", [(id, "assets", one, new, reason)])


@makes_vectors
def wrong_assets():
    def wrong(id, names, reason):
        return bad("assets", id, "assets", commit(assets=plain(*names)), "R-DOC-08", reason)
    yield wrong("order", ["b", "a"], "two assets in the wrong order")
    yield wrong("order-prefix", ["ab", "a"], "a proper prefix comes first")
    yield wrong("order-without-case", ["a", "B"], "names that ascend without case only")
    yield wrong("order-utf-16", ["\U00010000", "\uff5e"], "names that ascend as UTF-16 only")
    yield wrong("twice", ["a", "a"], "an asset twice")
    yield wrong("same-without-case", ["Config.json", "config.json"], "names that differ in case only")
    yield wrong("same-without-case-apart", ["Ab", "B", "aB"], "names that differ in case only, with another between")
    for id, name, reason in (
            ("empty", "", "the empty name"), ("hidden", ".gitattributes", "a name that begins with a dot"),
            ("parent", "..", "the folder above"),
            ("absolute", "/etc/passwd", "an absolute path"), ("backslash", "a\\b", "another folder on Windows"),
            ("colon", "c:a", "a drive, or a stream of a file"), ("nul", "a\0", "U+0000"), ("escape", "a\x1b[31m", "U+001B"),
            ("delete", "a\x7f", "U+007F"), ("c1", "a\x80", "U+0080, a control character beyond ASCII"),
            ("256-bytes", "n" * 256, "256 bytes"), ("256-bytes-utf-8", "\u00e9" * 128, "256 bytes, but 128 characters"),
            ("device", "nul", "a device name"), ("device-before-dot", "Aux.json", "a device name before the first dot"),
            ("device-and-space", "con .txt", "a device name with a space"), ("conout", "CONOUT$", "a device name"),
            ("superscript", "com\u00b3.txt", "a device name with a superscript digit"),
            ("space-at-the-end", "a ", "a space at the end"), ("dot-at-the-end", "a.", "a dot at the end"),
            ("weights", "model.safetensors", "a name that a layout writes"),
            ("weights-capitals", "model.SafeTensors", "a name that a layout writes, without case"),
            ("weight-map", "model.safetensors.index.json", "the index of shards"),
            ("weight-map-capitals", "x.SAFETENSORS.INDEX.JSON", "an index of shards, without case"),
            ("notes", "deltachain.json", "a name that is left for notes of tools"),
            ("notes-capitals", "DeltaChain.Layout", "a name that is left for notes of tools, without case")):
        yield wrong(f"name-{id}", [name], reason)
        if id in ("parent", "weights", "notes"):
            yield wrong(f"second-name-{id}", ["!", name], f"{reason}, in the second asset")


@makes_vectors
def keys_that_must_be_known():
    chain = "00112233445566778899aabbccddeeff"
    yield good("metadata-almost-required", "commit", commit(metadata={
        "deltachain": "", "deltachain ": "", "deltachain#": "", "deltachain.!": "", "deltachain\\!": "", "x.deltachain!": "",
        "Deltachain!x": "", "!deltachain!": "", "k": "deltachain!x"}), "keys that do not begin with deltachain!",
        ["R-DOC-07"])
    for id, key in (("x", "deltachain!x"), ("only", "deltachain!"), ("dot", "deltachain!deltachain.x"),
                    ("escaped", "deltachain!\n")):
        yield bad("metadata", f"required-{id}", "commit", commit(metadata={key: ""}), "R-DOC-07",
                  "a key that the reader must know")
    yield bad("metadata", "required-among-others", "commit", commit(metadata={"a": "", "deltachain!x": "1", "z": ""}),
              "R-DOC-07", "a key that the reader must know, among others")
    yield bad("metadata", "required-chain", "chain", chain_document(chain, {"deltachain!x": ""}), "R-DOC-07",
              "a chain document with a key that the reader must know")
    yield bad("metadata", "required-routes", "routes", routes_document(7, 1, COMMIT, [], {"deltachain!x": ""}),
              "R-DOC-07", "a routes document with a key that the reader must know")


@makes_vectors
def two_faults():
    key, hidden = {"deltachain!x": ""}, plain(".x")
    for id, rule, document, reason in (
            ("form-then-key", "R-DOC-03", commit(metadata=key) + b"\n", "the form before the key"),
            ("routes-then-key", "R-DOC-04", commit(metadata=key, routes=[SNAPSHOT, SNAPSHOT]),
             "the order of routes before the key"),
            ("files-then-shard", "R-DOC-05", commit(shards=[LEFT], routes=[dict(SNAPSHOT, files=SNAPSHOT["files"] * 2)]),
             "the number of files before the only shard's digest"),
            ("shard-then-key", "R-DOC-06", commit(shards=[LEFT], metadata=key), "the only shard's digest before the key"),
            ("key-then-asset", "R-DOC-07", commit(metadata=key, assets=hidden), "the key before the asset's name"),
            ("routes-then-asset", "R-DOC-04", commit(routes=[SNAPSHOT, SNAPSHOT], assets=hidden),
             "the order of routes before the asset's name"),
            ("shard-then-asset", "R-DOC-06", commit(shards=[RIGHT], state=STATE, assets=hidden),
             "the only shard's digest before the asset's name"),
            ("key-then-size", "R-DOC-07", commit(metadata=key, assets=[asset("a", FILE, LARGEST + 1)]),
             "the key before an asset that is too large"),
            ("name-then-size", "R-DOC-08", commit(assets=[asset("a", FILE, LARGEST + 1), asset("b.", FILE, 1)]),
             "the name of the second asset before the size of the first")):
        yield bad("order", id, "commit", document, rule, reason)
