"""Documents whose assets lie in folders, and limits of assets (SPEC sections 12, 13 and 18, R-DOC-08 and R-LIM-07)."""
from .documents import FILE, MOST, OTHER, asset, bad, commit, good
from .documents_assets import LARGEST, plain
from .registry import makes_vectors

LONG = "/".join(["n" * 255] * 3 + ["n" * 127, "n" * 128])  # as long as a path name may be
assert len(LONG) == 1024


@makes_vectors
def good_folders():
    def there(id, names, reason):
        return good(f"assets-{id}", "commit", commit(assets=plain(*sorted(names, key=str.encode))), reason,
                    ["R-DOC-08"])
    yield there("folders", ["config.json", "unet/config.json", "vae/config.json", "1_Pooling/config.json",
                            "text_encoder/tokenizer/vocab.txt"], "assets in folders, of which some have the same name")
    yield there("folder-8-parts", ["a/b/c/d/e/f/g/h"], "as many parts as a path name may have")
    yield there("folder-1024-bytes", [LONG], "as long as a path name may be")
    yield there("folder-1024-bytes-utf-8", [LONG.replace("nn", "\u00e9")], "1,024 bytes, but fewer characters")
    yield there("folder-beside", ["a", "a b/c", "a-b/c", "a.b/c", "a0/c", "aa/b", "\u00e9", "\u00c9/b"],
                "names that begin with that of another asset, but do not lie in it")
    yield there("folder-shared", ["a/b", "a/b.c", "a/bc/d", "b/a"], "folders that several assets lie in")
    yield there("folder-names", [" a/ b", "con_/x", "com/x", "a.safetensors.x/y", "safetensors/x", "x/deltachain.json",
                                 "deltachain/x", "deltachain-x/y", "a/\u00a0", "~/x", "-/x", "*?<>|/\""],
                "parts that are almost forbidden")
    yield there("space-before-a-device", [" con.safetensors.txt", " nul"], "a space before the name of a device")
    yield there("required-key", ["deltachain!x", "deltachain!"], "names like metadata keys that a reader must know")


@makes_vectors
def wrong_folders():
    def wrong(id, *names, reason):
        assets = plain(*sorted(names, key=str.encode))
        return bad("assets", f"folder-{id}", "assets-folders", commit(assets=assets), "R-DOC-08", reason)
    for id, name, reason in (
            ("9-parts", "a/b/c/d/e/f/g/h/i", "a part more than a path name may have"),
            ("1025-bytes", LONG + "n", "a byte more than a path name may have"),
            ("1025-bytes-utf-8", LONG[:-1] + "\u00e9", "1,025 bytes, but 1,024 characters"),
            ("slash", "/", "a slash alone"), ("empty-first", "/a", "an absolute path"),
            ("empty-middle", "a//b", "an empty part"), ("empty-last", "a/", "a slash at the end"),
            ("parent", "../a", "the folder above"), ("parent-inside", "a/../b", "the folder above"),
            ("parent-last", "a/..", "the folder above"), ("here", "./a", "this folder"),
            ("here-inside", "a/./b", "this folder"), ("hidden", ".git/config", "a hidden folder"),
            ("hidden-inside", "a/.b/c", "a hidden folder in another"), ("hidden-last", "a/.b",
                                                                        "a hidden file in a folder"),
            ("backslash", "a/b\\c", "another folder on Windows"), ("colon", "c:/a", "a drive"),
            ("control", "a\x1f/b", "a control character"), ("delete", "a/b\x7f", "U+007F"),
            ("part-of-256-bytes", "n" * 256 + "/a", "a part of 256 bytes"),
            ("device", "aux/a", "a device name"), ("device-before-dot", "a/Com1.x/b",
                                                   "a device name before the first dot"),
            ("device-last", "a/nul", "a device name"), ("device-superscript", "lpt\u00b2/a", "a device name"),
            ("space", "a /b", "a folder that ends in a space"), ("dot", "a./b", "a folder that ends in a dot"),
            ("space-last", "a/b ", "a file that ends in a space"), ("dot-last", "a/b.", "a file that ends in a dot"),
            ("weights", "a.safetensors/b", "a folder with the name of a weights file"),
            ("weights-capitals", "a/B.SafeTensors/c", "a folder with the name of a weights file, without case"),
            ("weight-map", "a.safetensors.index.json/b", "a folder with the name of an index of shards"),
            ("weights-last", "unet/model.safetensors", "a name that a layout writes"),
            ("weight-map-last", "unet/MODEL.safetensors.INDEX.json", "a name that a layout writes"),
            ("notes", "deltachain.x/a", "a folder that is left for notes of tools"),
            ("notes-capitals", "DeltaChain./a", "a folder that is left for notes of tools, and ends in a dot")):
        yield wrong(id, name, reason=reason)
    yield wrong("second", "a/b", "a/c ", reason="the second asset's name ends in a space")
    yield wrong("same", "a/B", "A/b", reason="names that differ in case only")
    yield wrong("in-another", "a", "a/b", reason="an asset that lies in another")
    yield wrong("in-another-apart", "a", "a b", "a-b", "a.b", "a/b",
                reason="an asset that lies in another, with others between")
    yield wrong("in-another-deep", "a/b", "a/b/c/d", reason="an asset that lies in another, two folders below")
    yield wrong("in-another-case", "A", "a/b", reason="an asset that lies in another without case")
    yield wrong("in-another-case-after", "A/b", "a", reason="an asset that lies in a later one without case")
    names = ["b/a", "a/b"]
    yield bad("assets", "folder-order", "assets-folders", commit(assets=plain(*names)), "R-DOC-08",
              "two assets in the wrong order")
    yield bad("assets", "folder-order-by-parts", "assets-folders", commit(assets=plain("a/b", "a-b/c")), "R-DOC-08",
              "names that ascend only if they are compared part by part")


@makes_vectors
def limits():
    def wrong(id, assets, reason):
        return bad("limits", id, "assets-1-gib", commit(assets=assets), "R-LIM-07", reason)
    yield wrong("assets-65537", [asset(f"{i:05x}", FILE, 0) for i in range(65537)],
                "an asset more than a commit may have")
    yield wrong("asset-size", [asset("a", FILE, LARGEST + 1)], "a byte more than an asset may have")
    yield wrong("asset-size-of-the-second", [asset("a", FILE, 1), asset("b", OTHER, LARGEST + 1)],
                "a byte more than an asset may have, in the second")
    yield wrong("asset-size-2-53", [asset("a", FILE, MOST)], "the highest integer as a size")
    yield wrong("asset-size-2-48", [asset("a", FILE, 1 << 48)], "2^48, which is 0 in 48 bits")
