"""Names of files below a folder: files of a layout, and assets (section 12)."""
import re
import unicodedata

DEVICE = re.compile("(con|prn|aux|nul|conin[$]|conout[$]|(com|lpt)[0-9¹²³])", re.ASCII | re.IGNORECASE)


def is_plain(name):
    return (1 <= len(name.encode("utf-8")) <= 255 and not name.startswith(".")
            and not any(char in "/\\:" or unicodedata.category(char) == "Cc" for char in name)
            and not DEVICE.fullmatch(name.split(".")[0].rstrip(" ")))


def is_path(name):
    parts = name.split("/")
    return (len(parts) <= 8 and len(name.encode("utf-8")) <= 1024
            and all(is_plain(part) and not part.endswith((" ", ".")) for part in parts)
            and not any(is_of_layouts(part) for part in parts[:-1]))


def is_of_layouts(name):
    """True if the name is reserved for files of a layout."""
    return caseless(name).endswith((b".safetensors", b".safetensors.index.json"))


def folder(name):
    """Returns the folder of a path name: up to and including the last slash."""
    return name[:name.rfind("/") + 1]


def folders(name):
    """Returns the folder of a path name, and the folders above it."""
    return [name[:end + 1] for end, char in enumerate(name) if char == "/"]


def apart(names):
    """True if no name is a folder of another one."""
    known = {*map(caseless, names)}
    return not any(low[:end] in known for low in known for end, byte in enumerate(low) if byte == ord("/"))


def caseless(name):
    """Returns equal bytes for names that differ only in the case of ASCII letters."""
    return name.encode("utf-8").lower()  # on bytes, `lower` changes only ASCII letters


def distinct(names):
    return len({*map(caseless, names)}) == len(names)


def ascending(items):
    """True if items ascend strictly. Python compares strings by code points, which is the order of their bytes."""
    return all(one < two for one, two in zip(items, items[1:]))
