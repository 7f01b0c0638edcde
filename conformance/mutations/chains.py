"""Small chains with routes, routes documents, shards and assets; damaged, and read in all ways."""
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from deltachain_py import safetensors, writer
from deltachain_py.chain import COMMIT, FILE, ROUTES, Store
from deltachain_py.errors import DcfError
from deltachain_py.model import BY_NAME, state_digest
from tests.publisher import init, make_routes, publish, put_routes

from . import links
from .states import change_state, random_tensor
from .texts import DIRECT, HEX, MARKS, change_value, damage_text, encode, metadata
from .values import damage_bytes

# Errors of reading a text that was damaged before; the last is for deep nesting.
NOT_READ = OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError


@dataclass
class Example:
    folder: Path   # `chain` and `states`, files of the shards
    states: list   # of each version its shards


def digest_of(path):
    return blake3(path.read_bytes()).hexdigest()


def example(rng, folder):
    """Makes a chain whose objects are all right."""
    store, versions, shards = Store(folder / "chain"), rng.choice([2, 3, 4, 5]), rng.choice([1, 1, 2])
    result = Example(folder, [])
    (folder / "states").mkdir(parents=True)
    (folder / "chain").mkdir()
    init(store, rng.randbytes(16).hex())
    for version in range(versions):
        if version == 0:
            result.states.append([{f"{i}.{name}": random_tensor(rng, BY_NAME[dtype], 8) for name, dtype in (
                ("a", "U8"), ("b", "BF16"))} for i in range(shards)])
        else:
            result.states.append([change_state(rng, shard, 0.4) for shard in result.states[-1]])
        starts = {rng.choice([None, version - 1]) if version else None}
        starts |= {None, *range(version)} if rng.random() < 0.3 else set()
        starts |= {start for start in range(version) if rng.random() < 0.3}
        bases = {start: start if start is None else result.states[start] for start in starts}
        assets = {"config.json": b"{}", f"v{version % 2}": b"", "é": rng.randbytes(5), "vae/config.json": b"[]",
                  "vae/x/é": b"{}"} if rng.random() < 0.5 else {}
        publish(store, result.states[-1], bases, metadata(rng, 0.4), assets)
    for version in range(versions):
        if rng.random() < 0.4:
            starts = [start for start in (None, *range(version)) if rng.random() < 0.5]
            bases = {start: None if start is None else result.states[start] for start in starts}
            put_routes(store, version, make_routes(store, result.states[version], bases), metadata(rng, 0.5))
    for version, parts in enumerate(result.states):
        for number, part in enumerate(parts):
            safetensors.write(folder / "states" / f"{version}-{number}.safetensors", part)
    return result


def of_documents_alone(rng, chain):
    """Makes a chain without files, for plans: many routes, of which many cost the same. Returns its versions and
    shards."""
    versions, shards = rng.randrange(1, 9), rng.choice([1, 1, 1, 2, 3])

    def routes(version, least):
        starts = sorted(rng.choice([-1, *range(version)]) for _ in range(rng.randrange(least, 5)))
        found = [{"from": None if start < 0 else start, "files": [
            {"digest": rng.randbytes(32).hex(), "size": rng.choice([1, 1, 2, 3, 2**53 - 1])}
            for _ in range(shards + (rng.random() < 0.03))]} for start in starts]
        return sorted(found, key=lambda route: (-1 if route["from"] is None else route["from"], sum(
            file["size"] for file in route["files"]), [file["digest"] for file in route["files"]]))

    def marks(count):
        numbers = [str(number) for number in range(count) if rng.random() < 0.5]
        return rng.choice([{}, {DIRECT: " ".join(numbers)}, {DIRECT: " ".join(numbers)}, {DIRECT: rng.choice(MARKS)}])

    def put(name, value):
        (chain / name).parent.mkdir(parents=True, exist_ok=True)
        (chain / name).write_bytes(encode(value))
        return digest_of(chain / name)

    parent = put("chain.json", {"deltachain": 1, "chain": HEX[:32], "metadata": {}})
    for version in range(versions):
        own = [route for route in routes(version, 1) if len(route["files"]) == shards] or [
            {"from": None, "files": [{"digest": HEX, "size": 1}] * shards}]
        parent = put(COMMIT.format(version), {
            "deltachain": 1, "version": version, "parent": parent, "state": HEX, "shards": [HEX] * shards,
            "routes": own, "assets": [], "metadata": marks(len(own))})
        for generation in range(1, rng.choice([1, 1, 2, 3])):
            own = routes(version, 0)
            put(ROUTES.format(version, generation), {
                "deltachain": 1, "version": version, "generation": generation, "commit": parent, "routes": own,
                "metadata": marks(len(own))})
    return versions, shards


def damage_object(rng, path):
    """Removes an object, replaces it, or puts it behind a symbolic link or into a folder."""
    kind = rng.randrange(9)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(rng.choice(["elsewhere", "elsewhere", "nowhere", "."]))
    elif kind == 2:
        path.write_bytes(damage_bytes(rng, path.read_bytes()))
    elif kind == 3:
        path.unlink()
        path.mkdir()
    elif path.suffix != ".json":
        others = [other.read_bytes() for other in sorted(path.parent.iterdir()) if other.is_file()]
        path.write_bytes(rng.choice(others))
    elif kind == 4:
        path.write_bytes(damage_text(rng, path.read_bytes()))
    elif kind == 5:  # a document of another number
        other = path.with_name(rng.choice(sorted(path.parent.iterdir())).name.replace("1", rng.choice("0129")))
        shutil.copy(path, other) if not other.exists() else None
    else:
        value = json.loads(path.read_bytes())
        change_document(rng, value)
        path.write_bytes(encode(value))


def change_document(rng, value):
    kind = rng.random()
    if kind < 0.2 and value.get("routes"):
        rng.choice(value["routes"])["files"][0]["size"] += rng.choice([-1, 1, 2**50])
    elif kind < 0.4 and len(value.get("routes", [])) > 1:
        value["routes"].remove(rng.choice(value["routes"]))
    elif kind < 0.6 and "metadata" in value:
        value["metadata"] = rng.choice([{"k": "v"}, {DIRECT: rng.choice(MARKS)}, {DIRECT: rng.choice(MARKS)}])
    else:
        change_value(rng, value)


def documents(chain):
    """Returns name -> value of the documents that can be parsed."""
    found = {}
    for path in sorted(chain.rglob("*.json")):
        try:
            found[str(path.relative_to(chain))] = json.loads(path.read_bytes())
        except NOT_READ:
            pass
    return found


def mend(chain):
    """Makes each commit name the previous one, and each routes document its commit, whatever was damaged, so that later
    faults show."""
    parent = chain / "chain.json"
    for name, value in documents(chain).items():
        path = chain / name
        try:
            if name.startswith("commits/"):
                value["parent"], parent = digest_of(parent), path
            elif name.startswith("routes/"):
                value["commit"] = digest_of(chain / "commits" / f"{path.name[:20]}.json")
        except NOT_READ:
            continue
        path.write_bytes(encode(value))


def relink(rng, made, chain):
    """Gives a route other files, with their right digests: damaged links, others that lead there, or elsewhere; or
    makes it a second route beside the old one."""
    values = documents(chain)
    name = rng.choice([name for name in values if not name.startswith("chain")] or [None])
    try:
        value = values[name]
        route = rng.choice(value["routes"])
        number = rng.randrange(len(route["files"]))
        old, version, start = dict(route["files"][number]), value["version"], route["from"]
        base = {} if start is None else made.states[start][number]
        kind, target = rng.randrange(5), made.states[version][number]
        if kind < 2:
            data = links.mutate(rng, base, (chain / FILE.format(old["digest"])).read_bytes())[2]
        elif kind == 2:  # another link of the same states
            options = writer.Options(profile=rng.choice(["direct", "compact"]))
            data = writer.diff(base, target, options, [("a", "b")])
        else:            # to another state, which its commit may name
            target = change_state(rng, target, 0.3)
            data = writer.diff(base, target)
            if kind == 4:
                rename_state(values, COMMIT.format(version), number, state_digest(target).hex())
    except (*NOT_READ, DcfError, AssertionError):
        return
    new = {"digest": blake3(data).hexdigest(), "size": len(data)}
    (chain / "files").mkdir(exist_ok=True)
    (chain / FILE.format(new["digest"])).write_bytes(data)
    if rng.random() < 0.3:
        route = {"from": start, "files": [dict(file) for file in route["files"]]}
        value["routes"].append(route)
    route["files"][number] = new
    if rng.random() < 0.9:
        value["routes"].sort(key=lambda route: (-1 if route["from"] is None else route["from"], sum(
            file["size"] for file in route["files"]), [file["digest"] for file in route["files"]]))
    for name, value in values.items():
        (chain / name).write_bytes(encode(value))


def rename_state(values, name, number, digest):
    commit = values[name]
    commit["shards"][number] = digest
    if len(commit["shards"]) == 1:
        commit["state"] = digest


def new_generation(rng, chain, versions):
    """Adds routes documents of more generations, from commits and from each other."""
    version, generation = rng.randrange(versions), rng.choice([0, 1, 2, 3, 9, 10**10 - 1])
    sources = [chain / COMMIT.format(version), *sorted((chain / "routes").glob(f"{version:020}-*.json"))]
    try:
        value = json.loads(rng.choice(sources).read_bytes())
        routes = [route for route in value["routes"] if rng.random() < 0.8]
        value = {"deltachain": 1, "version": version, "generation": generation + (rng.random() < 0.1),
                 "commit": digest_of(sources[0]), "routes": routes, "metadata": metadata(rng, 0.5)}
    except NOT_READ:
        return
    (chain / "routes").mkdir(exist_ok=True)
    path = chain / ROUTES.format(version, generation)
    if not path.exists():
        path.write_bytes(encode(value))


def damage(rng, made, chain):
    versions = len(made.states)
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        relink(rng, made, chain) if rng.random() < 0.7 else new_generation(rng, chain, versions)
    if rng.random() < 0.8:
        mend(chain)
    objects = [path for path in sorted(chain.rglob("*")) if path.is_file()]
    rng.shuffle(objects)
    objects.sort(key=lambda path: path.suffix != ".json" and rng.random() < 0.6)  # documents more often
    for path in objects[:rng.choice([0, 0, 1, 1, 2, 3])]:
        damage_object(rng, path)
    if rng.random() < 0.3:
        mend(chain)


def record(rng, chain, versions, right=0.85):
    """Returns the record of a reader about a version that it holds."""
    def digest(name):
        try:
            return digest_of(chain / name) if rng.random() < right else "0" * 64
        except OSError:
            return "0" * 64

    version = rng.randrange(versions)
    return {"version": version, "commit": digest(COMMIT.format(version)), "chain": digest("chain.json")}


def question(rng, made, chain):
    """Returns the members of a request about a chain, for `replay`."""
    versions, count = len(made.states), len(made.states[0])
    held = None
    if rng.random() < 0.6:
        # From before the damage, or from after it.
        held = record(rng, rng.choice([chain, made.folder / "chain"]), versions)
        shards = [str(made.folder / "states" / f"{held['version']}-{i}.safetensors") for i in range(count)]
        kind = rng.randrange(10)
        if kind == 0:
            shards[0] = str(made.folder / "states" / f"{rng.randrange(versions)}-0.safetensors")
        elif kind == 1:
            shards = rng.choice([shards[:-1], shards + shards[:1]])
        held["shards"] = shards
    names = [name for parts in made.states[0] for name in parts]
    shards = rng.choice([None, None, sorted(rng.sample(range(count), rng.randrange(count + 1)))])
    if rng.random() < 0.05:
        shards = sorted({*(shards or []), count + rng.choice([0, 0, 1, 2**31])})
    tensors = rng.choice([None, None, rng.sample([*names, "none"], rng.randrange(len(names) + 1))])
    return about(rng, chain, versions, held) | {"shards": shards, "tensors": tensors, "set_bytes": None,
                                                "coded_bytes": rng.choice([None] * 9 + [20])}


def about(rng, chain, versions, held):
    """Returns the members that `plan` and `replay` share."""
    accept = rng.choice([None] * 4 + ["0" * 64, record(rng, chain, versions, 1)["commit"], held and held["commit"]])
    return {"chain": str(chain), "version": rng.choice([None, None, *range(versions)] * 4 + [versions]), "held": held,
            "accept": accept}


def plans(request):
    """Returns requests for plans about the same chain as a request for `replay`."""
    held = request["held"] and {name: request["held"][name] for name in ("version", "commit", "chain")}
    plan = {name: request[name] for name in ("chain", "version", "accept")} | {"operation": "plan", "held": held}
    return [plan | {"direct": direct} for direct in (False, True)]
