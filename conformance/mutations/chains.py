"""Small chains with routes, routes documents, shards and assets; damaged, and asked for in all ways."""
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from deltachain_py import safetensors
from deltachain_py.chain import COMMIT, Store
from deltachain_py.model import BY_NAME
from tests.publisher import init, make_routes, publish, put_routes

from .states import change_state, random_tensor
from .texts import change_value, damage_text, encode
from .values import damage_bytes


@dataclass
class Example:
    folder: Path   # `chain` and `states`, files of the shards
    states: list   # of each version its shards
    commits: list  # digests


def example(rng, folder):
    """A chain whose objects are all right."""
    store, versions, shards = Store(folder / "chain"), rng.choice([2, 3, 4, 5]), rng.choice([1, 1, 2])
    result = Example(folder, [], [])
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
        assets = {"config.json": b"{}", f"v{version % 2}": b"", "é": rng.randbytes(5)} if rng.random() < 0.5 else {}
        result.commits.append(publish(store, result.states[-1], bases, assets=assets)[1])
    for version in range(versions):
        if rng.random() < 0.4:
            starts = [start for start in (None, *range(version)) if rng.random() < 0.5]
            bases = {start: None if start is None else result.states[start] for start in starts}
            put_routes(store, version, make_routes(store, result.states[version], bases))
    for version, parts in enumerate(result.states):
        for number, part in enumerate(parts):
            safetensors.write(folder / "states" / f"{version}-{number}.safetensors", part)
    return result


def damage_object(rng, path):
    """One object is gone, or another one, or behind a symbolic link."""
    kind = rng.randrange(7)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(rng.choice(["elsewhere", "elsewhere", "nowhere"]))
    elif kind == 2:
        path.write_bytes(damage_bytes(rng, path.read_bytes()))
    elif path.suffix != ".json":
        path.write_bytes(rng.choice([other.read_bytes() for other in sorted(path.parent.iterdir()) if other.is_file()]))
    elif kind == 3:
        path.write_bytes(damage_text(rng, path.read_bytes()))
    elif kind == 4:  # a document of another number
        other = path.with_name(rng.choice(sorted(path.parent.iterdir())).name.replace("1", rng.choice("0129")))
        shutil.copy(path, other) if not other.exists() else None
    else:
        value = json.loads(path.read_bytes())
        if rng.random() < 0.5 and value.get("routes"):
            rng.choice(value["routes"])["files"][0]["size"] += rng.choice([-1, 1, 2**50])
        elif rng.random() < 0.5 and len(value.get("routes", [])) > 1:
            value["routes"].remove(rng.choice(value["routes"]))
        elif rng.random() < 0.3 and "metadata" in value:
            value["metadata"] = {"k": "v"}
        else:
            change_value(rng, value)
        path.write_bytes(encode(value))


def mend_parents(chain, versions):
    """Each commit names the one before, whatever happened to it; so that later faults show."""
    parent = chain / "chain.json"
    for version in range(versions):
        path = chain / COMMIT.format(version)
        try:
            commit = json.loads(path.read_bytes())
            commit["parent"] = blake3(parent.read_bytes()).hexdigest()
        except (OSError, ValueError, TypeError, RecursionError):  # the last for deep nesting
            return
        path.write_bytes(encode(commit))
        parent = path


def damage(rng, chain, versions):
    objects = [path for path in sorted(chain.rglob("*")) if path.is_file()]
    rng.shuffle(objects)
    objects.sort(key=lambda path: path.suffix != ".json" and rng.random() < 0.6)  # documents more often
    for path in objects[:rng.choice([0, 1, 1, 2, 3])]:
        damage_object(rng, path)
    if rng.random() < 0.3:
        mend_parents(chain, versions)


def question(rng, made, chain):
    """The members of a request about a chain, for `replay`."""
    versions = len(made.states)
    version = rng.choice([None, None, *range(versions + 1)])
    held = None
    if rng.random() < 0.6:
        number = rng.randrange(versions)
        shards = [str(made.folder / "states" / f"{number}-{i}.safetensors") for i in range(len(made.states[0]))]
        kind = rng.randrange(12)
        if kind == 0:
            shards[0] = str(made.folder / "states" / f"{rng.randrange(versions)}-0.safetensors")
        elif kind == 1:
            shards = rng.choice([shards[:-1], shards + shards[:1]])
        digest = blake3((made.folder / "chain" / "chain.json").read_bytes()).hexdigest()
        held = {"version": number, "commit": made.commits[number] if kind != 2 else rng.choice(made.commits),
                "chain": digest if kind != 3 else "0" * 64, "shards": shards}
    accept = rng.choice([None, None, None, "0" * 64, rng.choice(made.commits)])
    names = [name for parts in made.states[0] for name in parts]
    count = len(made.states[0])
    shards = rng.choice([None, None, sorted(rng.sample(range(count), rng.randrange(count + 1)))])
    tensors = rng.choice([None, None, rng.sample([*names, "none"], rng.randrange(len(names) + 1))])
    return {"chain": str(chain), "version": version, "held": held, "accept": accept, "shards": shards,
            "tensors": tensors, "set_bytes": None}
