"""Chains with assets and weights in folders, limits of assets and of the caller, and objects with reserved names (SPEC
sections 12, 13, 17 and 18)."""
from .chains import Chain, Route, asset_name, bad, digest, good, line, whole
from .chains_assets import CONFIG
from .chains_fallback import damaged
from .coding import Plan, link
from .documents import asset
from .documents_assets import LARGEST
from .documents_folders import LONG
from .links_folders import END, folder
from .links_layout import KEY, file, files
from .model import EMPTY, State, tensor
from .registry import makes_vectors

FOLDERS = {"config.json": b"{}", "unet/config.json": CONFIG, "vae/config.json": CONFIG, "a/b/c/d/e/f/g/h": b"deep"}
TWIN = "assets/folders"


@makes_vectors
def assets_in_folders():
    def one(assets, **others):
        return Chain().publish(whole(0), None, assets=assets, **others)
    chain = one(FOLDERS)
    yield good(TWIN, chain, [0], "assets in folders, two of them with one name", rules=["R-DOC-08"])
    yield good("assets/folder-1024-bytes", one({LONG: b"1"}), [0], "a path name as long as can be", rules=["R-DOC-08"])
    yield good("assets/folder-names", one({"1_Pooling/config.json": b"1", "\u00e9 \U0001f600/x": b"2", "a b/c": b"3",
                                           "-/~": b"4", "x/deltachain.json": b"5"}), [0], "names of folders")
    moved = Chain().publish(whole(0), None, assets={"a": b"1", "b/c": b"2"}).publish(
        whole(1), 0, assets={"a/c": b"1", "b": b"2"})
    yield good("assets/folder-becomes-file", moved, [0, 1], "what was a file is a folder in the next version, and back")
    yield good("assets/folder-held", moved, [1], "what was a file is a folder in the next version, which is fetched",
               held=0)
    lost = asset_name(CONFIG)
    yield bad("assets/folder-missing", chain.without(lost), "R-CHN-15", TWIN, "an asset in two folders is missing",
              path=[0])
    yield bad("assets/folder-damaged", chain.with_object(lost, damaged(CONFIG)), "R-CHN-16", TWIN,
              "an asset in two folders is damaged", path=[0])
    yield bad("assets/folder-as-object", chain.without(lost).with_object("assets/unet/config.json", CONFIG), "R-CHN-15",
              TWIN,
              "an asset's object has its path name", path=[0])
    for id, names in (("above", ["../x"]), ("absolute", ["/x"]), ("in-another", ["a", "a/b"]),
                      ("weights", ["a" + END + "/b"]),
                      ("link", ["a/../../x"]), ("same", ["A/b", "a/b"])):
        listed = {"assets": [asset(name, digest(b""), 0) for name in names]}
        yield bad(f"assets/folder-{id}", one({}, replaced=listed).with_object(asset_name(b""), b""), "R-DOC-08", TWIN,
                  "names that are no path names, or lie in each other")


@makes_vectors
def limits_of_assets():
    def commit(size, number=1):
        return {"assets": [asset(f"{place}", digest(CONFIG), size) for place in range(number)]}
    wrong = Chain().publish(whole(0), None, replaced=commit(LARGEST + 1)).with_object(asset_name(CONFIG), CONFIG)
    yield bad("assets/too-large", wrong, "R-LIM-07", "assets/two", "the head's commit names an asset that is too large")
    middle = line(1).publish(whole(2), 1, replaced=commit(LARGEST + 1)).publish(whole(3), 2)
    yield bad("assets/too-large-on-the-way", middle, "R-LIM-07", "assets/two",
              "a commit on the way names an asset that is too large")
    yield bad("assets/too-large-since-the-held", middle, "R-LIM-07", "assets/two",
              "a commit since the held one names an asset that is too large", held=1)
    low = Chain().publish(whole(0), None, replaced=commit(LARGEST + 1)).publish(whole(1), None, 0)
    yield good("assets/too-large-below", low, [1], "a commit below names an asset that is too large: a path from above",
               rules=["R-LIM-07"])
    gib = Chain().publish(whole(0), None, replaced=commit(1 << 30)).publish(whole(1), 0)
    yield good("assets/large-below", gib, [0, 1], "a commit on the way names an asset of 1 GiB, which is not fetched",
               rules=["R-LIM-07"], features=["assets"])
    yield bad("assets/large-and-missing", gib, "R-CHN-15", "assets/large-below", "an asset of 1 GiB is missing",
              path=[0],
              version=0, features=["assets"])
    yield bad("assets/large-and-small", gib.with_object(asset_name(CONFIG), CONFIG), "R-CHN-16", "assets/large-below",
              "an asset of 1 GiB has a few bytes", path=[0], version=0, features=["assets"])


@makes_vectors
def coded_bytes():
    """Like `links_of_other_kinds`, which is about the bytes of set tensors."""
    states = [State(f"chain-codes-{number}", {name: tensor("U8", b"12345678") for name in "abc"[:number + 1]})
              for number in range(3)]
    chain = Chain().publish(states[0], None).publish(states[1], 0).publish(states[2], None, 1)
    yield good("valid/coded-bytes", chain, [2], "the snapshot codes 24 bytes, as many as the caller allows",
               coded_bytes=24,
               rules=["R-LIM-08"])
    yield good("fallback/coded-bytes", chain, [2],
               "the snapshot codes more than the caller allows; each step codes less",
               coded_bytes=23, rules=["R-LIM-08"])
    yield bad("links/coded-bytes", chain, "R-LIM-08", "valid/coded-bytes",
              "every path codes more than the caller allows",
              path=[2], coded_bytes=7)
    yield good("valid/coded-bytes-unchanged", line(0).publish(whole(0), 0), [1], "the step codes nothing",
               coded_bytes=0,
               held=0, rules=["R-LIM-08"])
    yield bad("links/set-bytes-and-coded-bytes", chain, "R-LIM-04", "valid/coded-bytes",
              "every path sets and codes more than the caller allows", path=[2], set_bytes=7, coded_bytes=7)


@makes_vectors
def reserved_names():
    lists = {f"lists/{digest(b'list')}": b"list", "lists/00000000000000000009.json": b"x", "lists/chain.json": b"x"}
    store = line(2)
    store.objects |= lists
    yield good("foreign/lists", store, [0, 1, 2], "objects with names that are reserved for lists", section="22.1")


@makes_vectors
def layouts_in_folders():
    """Links with layouts whose files are in folders; `replay` writes each shard as one file all the same."""
    def state(number):
        return State(f"chain-folders-{number}", {name: tensor("U8", [number, 1]) for name in (
            "text_encoder/w", "text_encoder_2/w", "w")})

    def laid_out(base, target, layout):
        made = link(base, target, Plan())
        made.metadata = [(KEY, layout)]
        return made
    pairs = [(f"m{END}", ["w"]), (f"text_encoder/m{END}", ["text_encoder/w"]), (f"text_encoder_2/m{END}",
                                                                                ["text_encoder_2/w"])]
    good_one = files(*(file(name, tensors) for name, tensors in pairs))
    wrong = files(*(file(name, tensors) for name, tensors in zip([name for name, _ in pairs],
                                                                 [["w"], ["text_encoder_2/w"],
                                                                                              ["text_encoder/w"]])))
    assert folder(pairs[1][0]) == "text_encoder/"
    chain = Chain().publish(state(1), Route(None, links=[laid_out(EMPTY, state(1), good_one)]), assets=FOLDERS)
    chain.publish(state(2), Route(0, links=[laid_out(state(1), state(2), good_one)]), assets=FOLDERS)
    yield good("valid/layout-in-folders", chain, [0, 1], "weights and assets in folders", section="12",
               features=["layout"],
               rules=["R-LAY-01"])
    spoilt = Chain().publish(state(1), None).publish(state(2), Route(0, links=[laid_out(state(1), state(2), wrong)]))
    yield bad("links/layout-in-folders", spoilt, "R-LAY-01", "valid/layout-in-folders",
              "a layout with tensors outside the folders of their files", path=[0, 1], section="12",
              features=["layout"])
    both = Chain().publish(state(1), None).publish(state(2), Route(0, links=[laid_out(state(1), state(2), wrong)]),
                                                   Route(0, 900))
    yield good("fallback/layout-in-folders", both, [0, 1],
               "a layout with tensors outside the folders of their files; another "
               "route leads there", section="12", features=["layout"], rules=["R-LAY-01"])
