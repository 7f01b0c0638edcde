"""The layout of safetensors files that a link may carry (section 12): which file holds which tensors."""
import json
import unicodedata

from .errors import fail

KEY = "deltachain.layout"
DEVICES = {b"con", b"prn", b"aux", b"nul", *(b"%s%d" % (port, n) for port in (b"com", b"lpt") for n in range(10))}


def parse(text, tensors):
    """The files of the layout (R-LAY-01); `tensors` are the names of the target's."""
    try:
        layout = json.loads(text, object_pairs_hook=members)
        json.dumps(layout, ensure_ascii=False).encode("utf-8")  # JSON can hold lone surrogates, a string cannot
    except (ValueError, RecursionError) as error:
        fail("R-LAY-01", f"no layout: {error}", KEY)
    files = layout.get("files") if type(layout) is dict and len(layout) == 1 else None
    if type(files) is not list or not files or not all(map(_is_file, files)):
        fail("R-LAY-01", "not the members of a layout", KEY)
    names = [file["name"] for file in files if "name" in file]
    if len(names) < len(files) > 1 or not all(map(_is_plain, names)) or len({*map(_caseless, names)}) < len(names):
        fail("R-LAY-01", "file names are not plain and distinct", KEY)
    if len(files) > 1 or "tensors" in files[0]:
        listed = [name for file in files for name in file.get("tensors", [])]
        if sorted(listed) != sorted(tensors) or not all("tensors" in file for file in files):
            fail("R-LAY-01", "not each tensor exactly once", KEY)
    return files


def members(pairs):
    """The object of a JSON text; safetensors headers are as strict."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a member is repeated")
    return dict(pairs)


def _is_file(file):
    def texts(kind, items):
        return type(items) is kind and all(type(text) is str for text in (items if kind is list else items.values()))
    return (type(file) is dict and not file.keys() - {"name", "metadata", "tensors"}
            and type(file.get("name", "")) is str and texts(dict, file.get("metadata", {}))
            and texts(list, file.get("tensors", [])))


def _is_plain(name):
    return (len(name.encode("utf-8")) <= 255 and name.endswith(".safetensors") and not name.startswith(".")
            and not any(char in "/\\:" or unicodedata.category(char) == "Cc" for char in name)
            and _caseless(name.split(".")[0]) not in DEVICES)


def _caseless(name):
    return name.encode("utf-8").lower()  # of bytes, `lower` knows only ASCII letters
