"""Writes vectors/ and index.json, and checks existing ones."""
import hashlib
import json
import os
import tempfile

import jsonschema

from . import beside, published
from .links import CLASSES
from .model import State
from .registry import SPEC, collect

HERE = os.path.normpath(os.path.join(os.path.dirname(__file__), ".."))
LINE = 120


def everything():
    """Returns {path below conformance/: bytes} of all files, including the index."""
    files, states = {}, {}

    def resolve(value):
        """Replaces states by their paths."""
        if isinstance(value, State):
            path, data = f"vectors/states/{value.label}{value.suffix}", value.file()
            assert files.setdefault(path, data) == data, f"two different states are called {value.label}"
            states[path] = sha256(data)
            return path
        if isinstance(value, dict):
            return {name: resolve(item) for name, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    entries, vectors = [], collect()
    for vector in vectors:
        entry = resolve(vector.entry())
        files[entry["file"]] = vector.file
        entries.append({"id": entry.pop("id"), "kind": entry.pop("kind"), "file": entry["file"],
                        "sha256": sha256(vector.file)} | entry)
    index = {"format": 3, "spec": SPEC, "licence": "CC0-1.0", "states": dict(sorted(states.items())),
             "vectors": entries, "minimal": beside.minimal(vectors), "routes": beside.routes(vectors),
             "belongs": beside.belongs(vectors)}
    files["index.json"] = (pretty(index) + "\n").encode()
    return files


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def pretty(value, depth=0, room=LINE):
    """Returns JSON with one line for each value that fits in one."""
    line = json.dumps(value)
    if (depth > 2 and len(line) + depth <= room) or not isinstance(value, (dict, list)) or not value:
        return line
    inside = "\n" + " " * (depth + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {pretty(item, depth + 1, room - len(name) - 6)}" for name, item in value.items()]
        return "{" + inside + ("," + inside).join(items) + "\n" + " " * depth + "}"
    items = [pretty(item, depth + 1, room) for item in value]
    return "[" + inside + ("," + inside).join(items) + "\n" + " " * depth + "]"


def write(folder, files):
    """Writes missing files, and removes everything else below vectors/."""
    for path in read(folder).keys() - files.keys():
        os.remove(os.path.join(folder, path))
    for path, data in files.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if not os.path.exists(full) or read_bytes(full) != data:
            with open(full, "wb") as file:
                file.write(data)


def read(folder):
    """Returns {path: bytes} of index.json and of everything below vectors/."""
    found = {}
    for directory, _, names in os.walk(os.path.join(folder, "vectors")):
        for name in names:
            full = os.path.join(directory, name)
            found[os.path.relpath(full, folder).replace(os.sep, "/")] = full
    found["index.json"] = os.path.join(folder, "index.json")
    return {path: read_bytes(full) for path, full in found.items() if os.path.exists(full)}


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def differences(committed, made):
    """Yields the differences that `--check` finds, as lines of text."""
    for path in sorted({*committed, *made}):
        if path not in committed:
            yield f"missing: {path}"
        elif path not in made:
            yield f"nothing makes it: {path}"
        elif committed[path] != made[path]:
            yield f"differs from what the generator makes: {path}"


def faults(files):
    """Yields the faults of the index itself, as lines of text."""
    index = json.loads(files["index.json"])
    schema = json.loads(read_bytes(os.path.join(HERE, "index.schema.json")))
    for error in jsonschema.Draft202012Validator(schema).iter_errors(index):
        yield f"schema: {error.json_path}: {error.message[:200]}"
    by_id = {vector["id"]: vector for vector in index["vectors"]}
    if len(by_id) != len(index["vectors"]):
        yield "ids are not unique"
    if list(by_id) != sorted(by_id):
        yield "ids are not sorted"
    named = {"index.json", *index["states"], *(vector["file"] for vector in index["vectors"])}
    yield from (f"no vector names {path}" for path in sorted({*files} - named))
    broken = dict.fromkeys(CLASSES, 0)
    for id, vector in by_id.items():
        yield from faults_of(id, vector, by_id)
        for rule in refusals(vector):
            broken[rule] = broken.get(rule, 0) + 1
    yield from (f"{rule} has {count} invalid vectors" for rule, count in broken.items() if count < 2)


def refusals(vector):
    """Returns the rules by which the vector is refused."""
    return {answer["rule"] for answer in vector["expect"].values() if answer.get("rule")}


def faults_of(id, vector, by_id):
    yield from (f"{id}: SPEC.md has no rule {rule}" for rule in vector["rules"] if rule not in CLASSES)
    yield from (f"{id}: there is no {other}" for other in vector.get("then", []) if other not in by_id)
    if not refusals(vector):
        if vector["twin"] is not None:
            yield f"{id}: a valid vector has a twin"
    elif vector["twin"] not in by_id:
        yield f"{id}: its twin does not exist"
    elif refusals(by_id[vector["twin"]]):
        yield f"{id}: its twin is invalid"
    if len(refusals(vector)) > 1:
        yield f"{id}: it is refused by different rules"


def check():
    """Makes all files again in another folder, and compares."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder, everything())
        made = read(folder)
    return [*differences(read(HERE), made), *faults(made), *published.faults(made)]
