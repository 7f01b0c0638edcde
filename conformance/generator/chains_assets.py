"""Chains whose versions have assets (SPEC sections 17.2 and 19, step 7), and stores with symbolic links (17.1)."""
from .chains import CHAIN, Chain, Symlink, asset_name, bad, commit_name, digest, good, halves, line
from .chains import moved, routes_name, step, union, whole
from .chains_fallback import damaged
from .documents import asset
from .model import EMPTY
from .registry import makes_vectors

CONFIG, TOKENIZER = b'{"model_type":"x"}\n', bytes(range(256))
BOTH = {"config.json": CONFIG, "tokenizer.model": TOKENIZER}


def with_assets(last):
    """Versions 0 to `last`, all with the same assets."""
    chain = Chain()
    for number in range(last + 1):
        chain.publish(whole(number), number - 1 if number else None, assets=BOTH)
    return chain


@makes_vectors
def good_assets():
    def one(assets):
        return Chain().publish(whole(0), None, assets=assets)
    yield good("assets/two", one(BOTH), [0], "two assets", rules=["R-CHN-15", "R-CHN-16"])
    yield good("assets/shared", with_assets(2), [0, 1, 2], "three versions share two objects")
    yield good("assets/empty", one({"empty": b""}), [0], "an asset of no bytes")
    yield good("assets/one-object", one({"a.txt": CONFIG, "b.txt": CONFIG}), [0], "two assets of one content")
    yield good("assets/like-a-link", one({"x.dcf": step(EMPTY, whole(0)).encode()}), [0],
               "an asset with the bytes of a link, which is another object")
    yield good("assets/names", one({"\u00e9 \U0001f600.txt": b"1", "x y": b"2", '"': b"3", "null_": b"4"}), [0],
               "names beyond ASCII, with a space and a quote")
    changing = Chain().publish(whole(0), None, assets=BOTH).publish(whole(1), 0, assets={"config.json": b"{}"})
    yield good("assets/change", changing, [0, 1], "an asset changes, and another goes")
    yield good("assets/of-an-older-version", changing, [0], "the assets are those of the version wanted", version=0)
    yield good("assets/gone-again", changing.copy().publish(whole(2), 1), [0, 1, 2], "the head has no asset any more")
    yield good("assets/held", with_assets(2), [2], "assets of the new version, of which the reader holds the one before",
               held=1)
    yield good("assets/held-head", with_assets(2), [], "the head is held; its assets are fetched", held=2, head=2)
    yield good("assets/two-shards", Chain().publish(halves(0), None, assets=BOTH), [0], "assets beside two shards")
    yield good("assets/part", Chain().publish(halves(0), None, assets=BOTH), [0],
               "assets beside one shard of two", take={"shards": [1]})
    lost = changing.without(asset_name(TOKENIZER), asset_name(CONFIG))
    yield good("assets/below-are-gone", lost, [0, 1], "assets of versions on the way are not needed")
    extra = changing.with_object(asset_name(b"{}") + ".json", b"bad").with_object("assets/config.json", b"bad")
    yield good("assets/other-names", extra, [0, 1], "objects that are almost called like an asset")


@makes_vectors
def wrong_assets():
    chain, twin = Chain().publish(whole(0), None, assets=BOTH), "assets/two"
    first, second = asset_name(CONFIG), asset_name(TOKENIZER)
    for id, store, rule, reason in (
            ("first-missing", chain.without(first), "R-CHN-15", "the first asset is missing"),
            ("second-missing", chain.without(second), "R-CHN-15", "the second asset is missing"),
            ("with-ending", chain.without(first).with_object(first + ".json", CONFIG), "R-CHN-15",
             "an asset's object has an ending"),
            ("under-its-name", chain.without(first).with_object("assets/config.json", CONFIG), "R-CHN-15",
             "an asset's object has its file name"),
            ("as-a-file", chain.without(first).with_object(first.replace("assets/", "files/") + ".dcf", CONFIG),
             "R-CHN-15", "an asset's object is among the files"),
            ("damaged", chain.with_object(first, damaged(CONFIG)), "R-CHN-16", "an asset has a flipped bit"),
            ("cut-off", chain.with_object(second, TOKENIZER[:-1]), "R-CHN-16", "an asset ends early"),
            ("longer", chain.with_object(second, TOKENIZER + b"\0"), "R-CHN-16", "an asset has a byte more"),
            ("emptied", chain.with_object(first, b""), "R-CHN-16", "an asset is empty"),
            ("swapped", chain.with_object(first, TOKENIZER).with_object(second, CONFIG), "R-CHN-16",
             "two assets have changed places"),
            ("damaged-then-missing", chain.with_object(first, damaged(CONFIG)).without(second), "R-CHN-16",
             "the first asset is damaged, the second missing"),
            ("missing-then-damaged", chain.without(first).with_object(second, b""), "R-CHN-15",
             "the first asset is missing, the second damaged")):
        yield bad(f"assets/{id}", store, rule, twin, reason, path=[0], features=["assets"])
    for id, size in (("size-too-low", len(CONFIG) - 1), ("size-too-high", len(CONFIG) + 1), ("size-zero", 0)):
        store = Chain().publish(whole(0), None, assets={"config.json": CONFIG},
                                replaced={"assets": [asset("config.json", digest(CONFIG), size)]})
        yield bad(f"assets/{id}", store, "R-CHN-16", twin, "the commit names another size than the asset has", path=[0])
    filled = Chain().publish(whole(0), None, assets={"empty": b""}).with_object(asset_name(b""), b"\n")
    yield bad("assets/not-empty", filled, "R-CHN-16", "assets/empty", "an asset of no bytes has one", path=[0])
    held = with_assets(1)
    yield bad("assets/held-head-missing", held.without(second), "R-CHN-15", "assets/held-head",
              "the head is held, but one of its assets is missing", path=[], held=1)
    elsewhere = Chain().publish(whole(0), None).publish(whole(1), None, 0, assets=BOTH).without(first)
    yield bad("assets/missing-with-two-paths", elsewhere, "R-CHN-15", twin,
              "an asset is missing, which no other path mends", path=[1])
    part = Chain().publish(halves(0), None, assets=BOTH).without(first)
    yield bad("assets/missing-of-a-part", part, "R-CHN-15", "assets/part", "who takes a shard takes the assets, too",
              path=[0], take={"shards": [0]})
    state = Chain().publish(halves(0), None, assets=BOTH, replaced={"state": union(halves(1)).digest().hex()})
    yield bad("assets/state-then-missing", state.without(first), "R-CHN-12", twin, "the state before the assets", path=[0])
    route = Chain().publish(whole(0), None, assets=BOTH).without(first)
    yield bad("assets/file-then-missing", route.without(*route.files(None, 0)), "R-CHN-09", twin, "links before the assets",
              path=[0])


@makes_vectors
def documents_with_unknown_keys():
    metadata = {"deltachain.x": "1", "note": "x"}
    chain = Chain(metadata=metadata).publish(whole(0), None, metadata=metadata).publish(whole(1), 0)
    yield good("valid/metadata-everywhere", chain.put_routes(1, 1, None, 0, metadata=metadata), [1],
               "metadata of all documents, with an unknown key that may be ignored", section="18")
    twin, required = "valid/metadata-everywhere", {"deltachain!x": ""}
    yield bad("documents/required-key-of-chain", Chain(metadata=required).publish(whole(0), None), "R-DOC-07", twin,
              "chain.json with a key that the reader must know")
    yield bad("documents/required-key-of-head", Chain().publish(whole(0), None, metadata=required), "R-DOC-07", twin,
              "the head's commit with a key that the reader must know")
    yield good("passed-over/required-key-to-commit", line(2).put_routes(2, 1, None, metadata=required), [0, 1, 2],
               "a routes document with a key that the reader must know: the routes of the commit are in force",
               section="18", rules=["R-DOC-07"])
    bad_name = Chain().publish(whole(0), None, replaced={"assets": [asset("model.safetensors", digest(b""), 0)]})
    yield bad("documents/asset-called-like-weights", bad_name, "R-DOC-08", twin, "an asset with the name of a weights file")


@makes_vectors
def symbolic_links():
    """Objects that a directory keeps elsewhere: only the result of reading the name counts."""
    def linked(id, store, path, reason, **others):
        return good(f"symbolic-links/{id}", store, path, reason, section="17.1", features=["symbolic-links"], **others)
    chain = line(2)
    files = [*chain.files(None, 0), *chain.files(0, 1)]
    yield linked("files", moved(chain, *files), [0, 1, 2], "files are links to elsewhere")
    yield linked("commit", moved(chain, commit_name(2)), [0, 1, 2], "the head's commit is a link to elsewhere")
    yield linked("chain-json", moved(chain, CHAIN), [0, 1, 2], "chain.json is a link to elsewhere")
    routes = line(2).put_routes(2, 1, None)
    yield linked("routes", moved(routes, routes_name(2, 1)), [2], "a routes document is a link to elsewhere")
    yield linked("assets", moved(Chain().publish(whole(0), None, assets=BOTH), asset_name(CONFIG)), [0],
                 "an asset is a link to elsewhere")
    twice = moved(chain, *files)
    twice.objects |= {"elsewhere/9": twice.objects.pop("elsewhere/0"), "elsewhere/0": Symlink("9")}
    yield linked("twice", twice, [0, 1, 2], "a link to a link")
    dangling = chain.with_object(commit_name(3), Symlink("../elsewhere/none"))
    yield linked("dangling", dangling, [0, 1, 2], "a commit's name that leads nowhere is no commit")
    loop = chain.with_object(commit_name(3), Symlink(commit_name(3).removeprefix("commits/")))
    yield linked("loop", loop, [0, 1, 2], "a commit's name that leads to itself is no commit")
    folder = chain.with_object(commit_name(3), Symlink("../files"))
    yield linked("folder", folder, [0, 1, 2], "a commit's name that leads to a folder is no commit")
    lost = chain.with_object(chain.files(1, 2)[0], Symlink("../elsewhere/none"))
    yield bad("symbolic-links/file-missing", lost, "R-CHN-09", "symbolic-links/files",
              "a file's name that leads nowhere", path=[0, 1, 2], section="17.1", features=["symbolic-links"])
