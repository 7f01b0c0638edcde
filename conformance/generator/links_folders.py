"""Layouts with files in folders (SPEC section 12): path names, and tensors whose names begin with the folder."""
from .builder import DENSE
from .coding import Plan, link
from .links import refused, valid
from .links_layout import KEY, file, files
from .model import EMPTY, State, tensor
from .registry import makes_vectors

END = ".safetensors"
LONG = "/".join(["n" * 255] * 3 + ["n" * 127, "n" * 116 + END])  # as long as a path name may be
assert len(LONG) == 1024


def folder(name):
    return name[:name.rfind("/") + 1]


def with_layout(names, value, label="unused"):
    """A snapshot of tensors of one byte."""
    target = State(label, {name: tensor("U8", bytes([number + 1])) for number, name in enumerate(sorted(
        names, key=str.encode))})
    return link(EMPTY, target, Plan(DENSE), metadata=[(KEY, value)])


def listed(pairs):
    """Files with their tensors, in ascending order."""
    return files(*(file(name, sorted(tensors, key=str.encode)) for name, tensors in sorted(
        pairs.items(), key=lambda pair: pair[0].encode())))


@makes_vectors
def good_folders():
    def there(id, pairs, reason):
        names = [name for tensors in pairs.values() for name in tensors]
        value = files(file(*pairs)) if len(pairs) == 1 else listed(pairs)
        return valid(f"folder-{id}", with_layout(names, value, f"folder-{id}"), "12", reason, ["R-LAY-01"],
                     features=["layout"])
    yield there("one-file", {"vae/model.safetensors": ["vae/x", "vae/y"]}, "the only file lies in a folder")
    yield there("two", {"unet/model.safetensors": ["unet/w"], "vae/model.safetensors": ["vae/w"]},
                "two files of one name in two folders, with tensors of one name")
    yield there("pipeline", {"text_encoder/model.safetensors": ["text_encoder/w", "text_encoder/x"],
                             "text_encoder_2/model-1.safetensors": ["text_encoder_2/w"],
                             "text_encoder_2/model-2.safetensors": ["text_encoder_2/x"],
                             "unet/diffusion.safetensors": ["unet/w"]}, "the files of a pipeline")
    yield there("and-root", {"model.safetensors": ["x", "y"], "vae/model.safetensors": ["vae/x"]},
                "a file in a folder, and one in none")
    yield there("name-with-slash-in-root", {"model.safetensors": ["vae/x", "x"], "vae/model.safetensors": ["vae/y"]},
                "a name with a slash in a file without a folder")
    yield there("name-with-more-slashes", {"a/m.safetensors": ["a//", "a/b/x", "a/x"], "a/b/m.safetensors": ["a/b/y"]},
                "names that go on with slashes after the folder")
    yield there("name-of-folder-alone", {"a/m.safetensors": ["a/"], "b/m.safetensors": ["b/x"]},
                "a name that is the folder, so that it is empty in the file")
    yield there("no-tensors", {"a/m.safetensors": [], "b/m.safetensors": ["b/x"]}, "a file in a folder without tensors")
    yield there("8-parts", {f"a/b/c/d/e/f/g/h{END}": ["a/b/c/d/e/f/g/x"]}, "as many parts as a path name may have")
    yield there("1024-bytes", {LONG: [folder(LONG) + "x"]}, "as long as a path name may be")
    yield there("case-in-other-folders", {f"A/a/m{END}": ["A/a/x"], f"B/A/M{END}": ["B/A/x"], f"a{END}": ["x"]},
                "folders and a file that are equal without case, but lie in different folders")
    yield there("names", {f"{part}/m{END}": [f"{part}/x"] for part in (
        " con", "a b", "con_", "com", "x.safetensors.y", "safetensors", "deltachain.x", "n" * 255, "\u00c9", "\u00e9",
        "*?<>|", "a.b", "unet", "1_Pooling")}, "folders that are almost forbidden")


@makes_vectors
def wrong_folders():
    def wrong(id, name, reason, tensors=None):
        names = [folder(name) + "x"] if tensors is None else tensors
        return refused(f"layout/folder-{id}", with_layout(names, files(file(name))), "R-LAY-01", reason,
                       "folder-one-file",
                       "12", check=None, features=["layout"])
    for id, name, reason in (
            ("9-parts", f"a/b/c/d/e/f/g/h/i{END}", "a part more than a path name may have"),
            ("1025-bytes", LONG.removesuffix(END) + "n" + END, "a byte more than a path name may have"),
            ("empty-first", f"/a{END}", "an absolute path"), ("empty-middle", f"a//b{END}", "an empty part"),
            ("empty-twice", f"//a{END}", "two empty parts"), ("last-empty", f"a{END}/", "a slash at the end"),
            ("parent", f"../a{END}", "the folder above"), ("parent-inside", f"a/../b{END}", "the folder above"),
            ("here", f"./a{END}", "this folder"), ("hidden", f".a/b{END}", "a hidden folder"),
            ("hidden-last", f"a/.b{END}", "a hidden file in a folder"), ("only-ending", f"a/{END}", "only the ending"),
            ("backslash", f"a\\b/c{END}", "a folder in a folder on Windows"), ("colon", f"c:/a{END}", "a drive"),
            ("control", f"a\x1f/b{END}", "a control character"), ("part-of-256-bytes", f"{'n' * 256}/a{END}",
                                                                  "a long part"),
            ("last-of-256-bytes", f"a/{'n' * 244}{END}", "a last part of 256 bytes"),
            ("device", f"aux/a{END}", "a device name"), ("device-before-dot", f"Com1.x/b{END}",
                                                         "a device name before a dot"),
            ("device-last", f"a/nul{END}", "a device name"), ("device-and-space", f"con .x/b{END}", "a device name"),
            ("space", f"a /b{END}", "a folder that ends in a space"), ("dot", f"a./b{END}",
                                                                       "a folder that ends in a dot"),
            ("weights", f"a{END}/b{END}", "a folder with the name of a weights file"),
            ("weights-capitals", f"a.SafeTensors/b{END}", "a folder with the name of a weights file, without case"),
            ("weight-map", f"a{END}.index.json/b{END}", "a folder with the name of an index of shards"),
            ("ending-capitals", "a/b.SAFETENSORS", "the ending in capitals"), ("no-ending", "a/b.bin",
                                                                               "another ending")):
        yield wrong(id, name, reason)
    for id, tensors, reason in (
            ("tensor-outside", ["x"], "a tensor whose name does not begin with the folder of the only file"),
            ("tensor-outside-too", ["vae/x", "x"], "one of two tensors does not begin with the folder"),
            ("tensor-of-other-case", ["VAE/x"], "a tensor that begins with the folder in capitals"),
            ("tensor-without-slash", ["vae"], "a tensor that is called like the folder, without its slash"),
            ("tensor-of-longer-folder", ["vae2/x"], "a tensor that begins with a longer folder"),
            ("tensor-empty", [""], "the empty name")):
        yield wrong(id, f"vae/model{END}", reason, tensors)
    yield wrong("tensor-of-upper-folder", f"a/b/m{END}", "a tensor in the folder above that of the file", ["a/x"])

    def several(id, pairs, reason, twin="folder-two"):
        names = [name for tensors in pairs.values() for name in tensors]
        return refused(f"layout/folder-{id}", with_layout(names, listed(pairs)), "R-LAY-01", reason, twin, "12",
                       check=None,
                       features=["layout"])
    yield several("tensors-swapped", {f"unet/m{END}": ["vae/w"], f"vae/m{END}": ["unet/w"]},
                  "each file has a tensor of the other's folder")
    yield several("tensor-of-root", {f"unet/m{END}": ["unet/w", "w"], f"vae/m{END}": ["vae/w"]},
                  "a tensor of no folder in a file that lies in one")
    yield several("second-name", {f"unet/m{END}": ["unet/w"], f"vae /m{END}": ["vae /w"]},
                  "the second folder ends in a space")
    yield several("same-without-case", {f"Vae/m{END}": ["Vae/w"], f"vae/m{END}": ["vae/x"]},
                  "names that differ in the case of the folder only")
    for id, one, other, reason in (
            ("case", "A/m", "a/n", "two folders that differ in case only"),
            ("case-outer", "A/b/m", "a/c/m", "folders that lie in two folders that differ in case only"),
            ("case-inner", "a/B/m", "a/b/n", "two folders in one that differ in case only"),
            ("case-and-outer", "A/m", "a/b/m", "a folder, and one that lies in another that differs in case only")):
        yield several(id, {name + END: [folder(name) + "x"] for name in (one, other)}, reason,
                      "folder-case-in-other-folders")
    order = files(file(f"a/m{END}", ["a/x"]), file(f"a-b/m{END}", ["a-b/x"]))
    yield refused("layout/folder-order-by-parts", with_layout(["a/x", "a-b/x"], order), "R-LAY-01",
                  "files that ascend only if they are compared part by part", "folder-two", "12", check=None,
                  features=["layout"])
