"""published.sha256: digests of everything that may never change or disappear. One line, as sha256sum writes it, for
each file of a published vector, each state, and each entry of the index: an entry's name is index.json# and its id, its
digest that of its canonical JSON (sorted members, no white space, ASCII)."""
import hashlib
import json
import os

NAME = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "published.sha256"))


def files_of(value):
    """Returns the paths that an entry names: its own file and states."""
    if isinstance(value, str):
        return {value} if value.startswith("vectors/") else set()
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {path for item in inside for path in files_of(item)}


def digests(files):
    """Returns {name: SHA-256} of everything to publish."""
    vectors = json.loads(files["index.json"])["vectors"]
    named = {path for entry in vectors for path in files_of(entry)}
    found = {path: hashlib.sha256(data).hexdigest() for path, data in files.items() if path in named}
    for entry in vectors:
        canonical = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
        found[f"index.json#{entry['id']}"] = hashlib.sha256(canonical).hexdigest()
    return found


def listed():
    """Returns {name: SHA-256} of everything that has been published."""
    if not os.path.exists(NAME):
        return {}
    with open(NAME, encoding="ascii") as file:
        return {name: digest for digest, name in (line.rstrip("\n").split("  ", 1) for line in file)}


def faults(files):
    """Yields changed and missing entries, as lines of text."""
    there = digests(files)
    for name, digest in listed().items():
        if name not in there:
            yield f"published, and gone: {name}"
        elif there[name] != digest:
            yield f"published, and changed: {name}"


def add(files):
    """Adds lines of new files and entries; existing lines stay. Returns how many it added."""
    old = listed()
    new = {name: digest for name, digest in digests(files).items() if name not in old}
    with open(NAME, "w", encoding="ascii") as file:
        for name, digest in sorted((old | new).items()):
            file.write(f"{digest}  {name}\n")
    return len(new)
