"""JSON texts: documents and layouts, random ones, and damaged ones."""
import json

from .values import damage_bytes

HEX = "0123456789abcdef" * 4
NAMES = ["a", "A", "b", "é", "É", "K", "\u212a", "ſ", "config.json", "Config.JSON", "con", "NUL.txt", "com1", "lpt²",
         "COM٣", "conin$", "aux .x", "con\u00a0", ".x", "x.", "x ", "x/y", "x\\y", "x:y", "\x1f", "\x7f", "\x85", "",
         "n" * 255, "n" * 256, "é" * 127, "é" * 128, "m.safetensors", "M.SAFETENSORS", "m.safetensors.index.json", "deltachain.x",
         "Deltachain.y", "tokenizer.json", "\u2028", "\U0001f980", "\ufeff", "\u202e"]
GOOD_NAMES = ["A", "b", "é", "É", "K", "\u212a", "ſ", "config.json", "COM٣", "con\u00a0", "n" * 240, "\u2028",
              "\U0001f980"]
KEYS = ["", "a", "b", "deltachain.x", "deltachain!", "deltachain!x", "Deltachain!x", "é", "\U00010000", "\uff5e",
        "\0", "\""]
NUMBERS = [0, 1, -1, 2, 3, 255, 256, 2**30, 2**30 + 1, 2**53 - 1, 2**53, 2**64, 10**10 - 1, 10**10, 1.5, 3.0, True]
# Pieces of texts, and what could be written instead of them.
SPELLINGS = [("\"", "\\\""), (":", ": "), (",", " ,"), ("1", "01"), ("1", "1.0"), ("1", "1e0"), ("0", "-0"),
             ("é", "\\u00e9"), ("a", "\\u0061"), ("\\u0000", "\0"), ("\\u001f", "\\u001F"), ("{", "{ "), ("}", "},"),
             ("null", "NULL"), ("}", "}\n"), ("{", "\ufeff{"), ("[", "[" * 3000), ("\x7f", "\\u007f"), ("/", "\\/"),
             ("\\\\", "\\"), ('"deltachain":1', '"deltachain":0'), ('"deltachain":1', '"deltachain":2'),
             ('"deltachain":1,', ""), ("{}", '{"deltachain!x":""}')]


def encode(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def some_names(rng, count):
    """In ascending order; mostly good ones."""
    return sorted(rng.sample(GOOD_NAMES if rng.random() < 0.8 else NAMES, count))


def metadata(rng):
    return {key: rng.choice(NAMES) for key in sorted(rng.sample(KEYS[:4] + KEYS[7:], rng.choice([0, 0, 1, 3])))}


def document(rng, kind):
    """A good document, mostly."""
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
                       "routes": routes, "metadata": metadata(rng)})
    assets = [{"name": name, "digest": HEX, "size": rng.choice([0, 5, 2**30])}
              for name in some_names(rng, rng.choice([0, 1, 1, 2, 3]))]
    return encode({"deltachain": 1, "version": version, "parent": HEX, "state": HEX, "shards": [HEX] * shards,
                   "routes": routes or [{"from": None, "files": [{"digest": HEX, "size": 1}] * shards}],
                   "assets": assets, "metadata": metadata(rng)})


def layout_of(rng, tensors):
    """A good layout of these tensors, mostly."""
    tensors = sorted(tensors)
    if len(tensors) < 2 or rng.random() < 0.4:
        names = [None, "model.safetensors", some_names(rng, 1)[0] + ".safetensors"]
        files = [{"name": rng.choice(names), "metadata": rng.choice([None, metadata(rng)]), "tensors": None}]
    else:
        names = sorted(name + ".safetensors" for name in some_names(rng, rng.choice([2, 2, 3])))
        files = [{"name": name, "metadata": None, "tensors": []} for name in names]
        for tensor in tensors:
            rng.choice(files)["tensors"].append(tensor)
    return encode({"files": files}).decode()


def places(value, found):
    """Each container of a value, with the key of each item."""
    items = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, item in items:
        found.append((value, key))
        places(item, found)
    return found


def change_value(rng, value):
    """One item is another one, is gone, is there twice, or has moved."""
    found = places(value, [])
    if not found:
        return
    container, key = rng.choice(found)
    kind = rng.randrange(7)
    if kind < 3:
        same = {str: NAMES + KEYS + [HEX, HEX.upper(), "\ud800"], int: NUMBERS}.get(type(container[key]), NUMBERS)
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
    """Bytes give bytes, a string gives a string."""
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
        joined = old.join(parts[:at]) + (new if 0 < at else "") + old.join(parts[at:])
        return joined.encode("utf-8", "surrogatepass")
    return damage_bytes(rng, text)
