"""JSON texts: documents and layouts, random ones, and damaged ones."""
import json

from .values import damage_bytes

HEX = "0123456789abcdef" * 4
NAMES = ["a", "A", "b", "é", "É", "K", "\u212a", "ſ", "config.json", "Config.JSON", "con", "NUL.txt", "com1", "lpt²",
         "COM٣", "conin$", "aux .x", "con\u00a0", ".x", "x.", "x ", "x/y", "x\\y", "x:y", "\x1f", "\x7f", "\x85", "",
         "n" * 255, "n" * 256, "é" * 127, "é" * 128, "m.safetensors", "M.SAFETENSORS", "m.safetensors.index.json",
         "deltachain.x", "Deltachain.y", "tokenizer.json", "\u2028", "\U0001f980", "\ufeff", "\u202e",
         "vae/config.json", "VAE/Config.json", "vae", "Vae", "vae/x/y", "vae/x", "a/b/c/d/e/f/g/h", "a/b/c/d/e/f/g/h/i",
         "a//b", "/a", "a/", "a ./b", "a./b", "a /b", "../a", "./a", "a/.b", "a/..", "a/nul", "con/a", "a/com1.x",
         "a/b:c", "m.safetensors/a", "a/m.SAFETENSORS/b", "m.safetensors.index.json/a", "a/m.safetensors",
         "a/b.safetensors.index.JSON", "deltachain./a", "deltachain.x/a", "a/deltachain.x", "n" * 255 + "/a",
         "n" * 256 + "/a", "/".join(["n" * 200] * 5 + ["n" * 19]), "/".join(["n" * 200] * 5 + ["n" * 20]),
         "é" * 127 + "/é", "\u212a/k", "k/\u212a"]
GOOD_NAMES = ["A", "b", "é", "É", "K", "\u212a", "ſ", "config.json", "COM٣", "con\u00a0", "n" * 240, "\u2028",
              "\U0001f980"]
FOLDERS = ["", "", "vae/", "vae/x/", "text_encoder/", "É/", "a/b/c/d/e/f/g/"]
DIRECT = "deltachain.direct"
MARKS = ["0", "1", "0 1", "0 2", "1 2 3", "2", "", "00", "01", "1 0", "0 0", "0  1", " 0", "0 ", "9", "0,1", "+0", "٠",
         "0 1 9", "18446744073709551616", "0\u00a01", "-0", "0 01"]
KEYS = ["", "a", "b", "deltachain.x", "deltachain!", "deltachain!x", "Deltachain!x", "é", "\U00010000", "\uff5e",
        "\0", "\""]
NUMBERS = [0, 1, -1, 2, 3, 255, 256, 2**30, 2**30 + 1, 2**40, 2**40 + 1, 2**53 - 1,
           2**53, 2**64, 10**10 - 1, 10**10, 1.5, 3.0, True]
# Pieces of texts, and their replacements.
SPELLINGS = [("\"", "\\\""), (":", ": "), (",", " ,"), ("1", "01"), ("1", "1.0"), ("1", "1e0"), ("0", "-0"),
             ("é", "\\u00e9"), ("a", "\\u0061"), ("\\u0000", "\0"), ("\\u001f", "\\u001F"), ("{", "{ "), ("}", "},"),
             ("null", "NULL"), ("}", "}\n"), ("{", "\ufeff{"), ("[", "[" * 3000), ("\x7f", "\\u007f"), ("/", "\\/"),
             ("\\\\", "\\"), ('"deltachain":1', '"deltachain":0'), ('"deltachain":1', '"deltachain":2'),
             ('"deltachain":1,', ""), ("{}", '{"deltachain!x":""}')]


def encode(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def some_names(rng, count):
    """Returns names in ascending order; mostly good ones."""
    names = rng.sample(GOOD_NAMES if rng.random() < 0.8 else NAMES, count)
    return sorted(rng.choice(FOLDERS if rng.random() < 0.4 else [""]) + name for name in names)


def metadata(rng, marks=0.0):
    keys = rng.sample(KEYS[:4] + KEYS[7:], rng.choice([0, 0, 1, 3])) + [DIRECT] * (rng.random() < marks)
    return {key: rng.choice(MARKS if key == DIRECT else NAMES) for key in sorted(keys)}


def document(rng, kind):
    """Returns a document, mostly a good one."""
    if kind == "chain":
        return encode({"deltachain": 1, "chain": HEX[:32], "metadata": metadata(rng)})
    shards, version = rng.choice([1, 1, 2]), rng.choice([0, 1, 3, 2**53 - 1])
    routes = []
    for start in [None, *range(min(version, 4))]:
        for size in sorted(rng.choice([1, 7, 2**53 - 1]) for _ in range(rng.choice([0, 1, 1, 2]))):
            files = [{"digest": rng.randbytes(32).hex(), "size": size} for _ in range(shards)]
            routes.append({"from": start, "files": files})
    if rng.random() < 0.9:
        routes.sort(key=lambda route: (-1 if route["from"] is None else route["from"], route["files"][0]["size"],
                                       [file["digest"] for file in route["files"]]))
    if kind == "routes":
        return encode({"deltachain": 1, "version": version, "generation": rng.choice([1, 10**10 - 1]), "commit": HEX,
                       "routes": routes, "metadata": metadata(rng, 0.3)})
    names = some_names(rng, rng.choice([0, 1, 1, 2, 3]))
    if rng.random() < 0.03:
        names = [f"{number:05}" for number in range(rng.choice([255, 256, 257, 1023, 1024, 1025]))]
    assets = [{"name": name, "digest": HEX, "size": rng.choice([0, 5, 2**30, 2**30 + (rng.random() < 0.05)])}
              for name in names]
    return encode({"deltachain": 1, "version": version, "parent": HEX, "state": HEX, "shards": [HEX] * shards,
                   "routes": routes or [{"from": None, "files": [{"digest": HEX, "size": 1}] * shards}],
                   "assets": assets, "metadata": metadata(rng, 0.3)})


def layout_of(rng, tensors):
    """Returns a layout of these tensors, mostly a good one."""
    tensors = sorted(tensors, key=str.encode)
    if len(tensors) < 2 or rng.random() < 0.4:
        folder = tensors[0][:tensors[0].rfind("/") + 1] if tensors else ""
        names = [None, folder + "model.safetensors", some_names(rng, 1)[0] + ".safetensors"]
        files = [{"name": rng.choice(names), "metadata": rng.choice([None, metadata(rng)]), "tensors": None}]
    else:
        files = {name + ".safetensors": [] for name in some_names(rng, rng.choice([2, 2, 3]))}
        for tensor in tensors:
            ends = [at + 1 for at, letter in enumerate(tensor) if letter == "/"]
            if ends and rng.random() < 0.8:  # a file in one of its folders
                files.setdefault(tensor[:rng.choice(ends)] + rng.choice(["x.safetensors", "y.safetensors"]), [])
            fitting = [name for name in files if tensor.startswith(name[:name.rfind("/") + 1])]
            files[rng.choice(fitting or [*files])].append(tensor)
        files = [{"name": name, "metadata": None, "tensors": files[name]} for name in sorted(files, key=str.encode)]
    return encode({"files": files}).decode()


def places(value, found):
    """Returns each container of a value, with the key of each item."""
    items = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, item in items:
        found.append((value, key))
        places(item, found)
    return found


def change_value(rng, value):
    """Replaces, removes, duplicates or moves one item."""
    found = places(value, [])
    if not found:
        return
    container, key = rng.choice(found)
    kind = rng.randrange(7)
    if kind < 3:
        strings = NAMES + KEYS + MARKS + [HEX, HEX.upper(), "\ud800"]
        same = {str: strings, int: NUMBERS}.get(type(container[key]), NUMBERS)
        container[key] = rng.choice(same if rng.random() < 0.8 else [None, True, "", [], {}, {"a": 1}, [None], 0])
    elif kind == 3:
        del container[key]
    elif type(container) is list:
        container.insert(rng.randrange(len(container) + 1), container[key])
    elif kind == 4:
        container[rng.choice(NAMES + KEYS)] = container.pop(key)
    else:  # the member goes to the end
        container[key] = container.pop(key)
        if kind == 5:
            container["more"] = ""


def damage_text(rng, text):
    """Damages a text. Bytes give bytes, a string gives a string."""
    if isinstance(text, str):
        return damage_text(rng, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    kind = rng.random()
    if kind < 0.6:
        value = json.loads(text)
        for _ in range(rng.choice([1, 1, 2])):
            change_value(rng, value)
        if kind < 0.5:
            return encode(value) if type(value) is dict else text
        return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if kind < 0.8:
        old, new = rng.choice(SPELLINGS)
        parts = text.decode("utf-8", "surrogatepass").split(old)
        at = rng.randrange(len(parts))
        joined = old.join(parts[:at]) + (new if at > 0 else "") + old.join(parts[at:])
        return joined.encode("utf-8", "surrogatepass")
    return damage_bytes(rng, text)
