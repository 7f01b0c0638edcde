"""Names of files in a folder: those of a layout and of assets (section 12)."""
import re
import unicodedata

DEVICE = re.compile("(con|prn|aux|nul|conin[$]|conout[$]|(com|lpt)[0-9¹²³])", re.ASCII | re.IGNORECASE)


def is_plain(name):
    return (1 <= len(name.encode("utf-8")) <= 255 and not name.startswith(".")
            and not any(char in "/\\:" or unicodedata.category(char) == "Cc" for char in name)
            and not DEVICE.fullmatch(name.split(".")[0].rstrip(" ")))


def caseless(name):
    """Equal for names that differ only in the case of ASCII letters."""
    return name.encode("utf-8").lower()  # of bytes, `lower` knows only ASCII letters


def distinct(names):
    return len({*map(caseless, names)}) == len(names)


def ascending(items):
    """Strictly. Python compares strings by code points, which is the order of their bytes."""
    return all(one < two for one, two in zip(items, items[1:]))
