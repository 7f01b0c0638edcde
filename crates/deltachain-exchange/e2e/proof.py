"""Tests the exchange with the real packages: they decode the exports of deltachain-exchange, which imports their
deltas.

For each pair of states and each layout: deltachain-exchange exports a link and the package (or, where a layout has
none, the writer in bench/rivals/methods) gives the target back bit for bit; the package encodes the pair,
deltachain-exchange imports that, the tool applies the link, and the result is the target bit for bit. Prints bytes and
times. Arguments: the tool, deltachain-exchange, and files NAME_step0.safetensors, each with a NAME_step1.safetensors
beside it; without files, generated states alone.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench/rivals"))

from checkpoint import Tensor, parse, write
from method import Method, load

# A layout of deltachain-exchange, its encoding, and the method on the other side.
LAYOUTS = [
    ("arc2", "zlib", "fireworks arc_v1"),
    ("arc2", "zstd", "fireworks arc_v2"),
    ("pulsept1", "v1", "basilica-sdk PULSEPT1 v1"),
    ("pulsept1", "v2", "basilica-sdk PULSEPT1 v2"),
    ("pulsept1", "v3", "basilica-sdk PULSEPT1 v3"),
    ("slime", "xor", "slime xor"),
    ("slime", "overwrite", "slime overwrite"),
    ("trl", "gap-delta", "TRL gap_delta"),
    ("trl", "raw", "TRL raw"),
]
METHODS = load()
INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00001.safetensors"


def generated(seed: int) -> tuple[bytes, bytes]:
    """Makes a pair of BF16 states: scalars, empty tensors, odd lengths, NaN payloads, signed zeros, dense, idle
    tensors."""
    random = np.random.default_rng(seed)
    shapes = {
        "scalar": [], "empty": [2, 0], "one": [1], "odd": [3, 333], "idle": [17], "dense": [257], "large": [900, 1001],
    }
    pair = [{}, {}]
    for name, shape in shapes.items():
        count = int(np.prod(shape, dtype=np.int64))
        # Any bits, among them NaN payloads, infinities, and both zeros.
        old = random.integers(0, 1 << 16, count, dtype=np.uint16) if seed % 2 else (
            (random.standard_normal(count).astype(np.float32) * 0.02).view(np.uint32) >> 16
        ).astype(np.uint16)
        share = {"idle": 0.0, "dense": 1.0, "scalar": 1.0}.get(name, 0.01)
        new = np.where(random.random(count) < share, old ^ random.integers(1, 1 << 16, count, dtype=np.uint16), old)
        if count > 100:
            old[:4], new[:4] = [0x0000, 0x8000, 0x7FC1, 0x7F81], [0x8000, 0x0000, 0xFFC2, 0x7F82]
        if name == "large":
            old[5:-1], new[5:-1] = np.where(np.arange(count - 6) < 200_000, old[5], old[5:-1]), new[5:-1]
            new[5:200_000] = old[5:200_000]
        for state, bits in zip(pair, (old, new.astype(np.uint16))):
            state[name] = Tensor("BF16", shape, bits.view(np.uint8))
    return tuple(bytes(write(state, {})) for state in pair)


class Proof:
    def __init__(self, tool: str, exchange: str, folder: Path):
        self.tool, self.exchange, self.folder = tool, exchange, folder

    def run(self, program: str, *words: object) -> float:
        begin = time.perf_counter()
        subprocess.run([program, *map(str, words), "--quiet"], check=True)
        return time.perf_counter() - begin

    def pair(self, name: str, base: bytes, target: bytes) -> None:
        here = Path(tempfile.mkdtemp(dir=self.folder))
        old, new, link = here / "old.safetensors", here / "new.safetensors", here / "link.dcf"
        old.write_bytes(base), new.write_bytes(target)
        self.run(self.tool, "diff", old, new, "-o", link)
        size = len(target) / 1e9
        dtypes = {tensor.dtype for tensor in parse(memoryview(target))[0].values()}
        print(f"{name}: {len(target):,} bytes; our link {link.stat().st_size:,}")
        for layout, encoding, method in LAYOUTS:
            kind = METHODS[method]
            if kind.facts.bf16_only and dtypes != {"BF16"}:
                refused = subprocess.run(
                    [self.exchange, "export", "--to", layout, "--base", old, link, "-o", here / "no"],
                    capture_output=True,
                )
                assert refused.returncode == 2 and b"BF16 only" in refused.stderr, refused
                assert not (here / "no").exists(), refused
                print(f"  {layout} {encoding}: refused, as it carries BF16 only")
                continue
            rival = kind(memoryview(base), memoryview(target), 2)
            out = here / f"{layout}-{encoding}"
            words = ["--to", layout, "--encoding", encoding, "--base", old, link, "-o", out]
            exported = self.run(self.exchange, "export", *words)
            theirs, count = self.decode(rival, layout, out)
            assert rival.exact(theirs), f"{name}: {layout} {encoding} is not what we exported"

            blob = bytes(rival.encode())
            delta = self.lay_out(rival, layout, encoding, blob, here / f"theirs-{layout}-{encoding}")
            made, again = here / f"{layout}-{encoding}.dcf", here / f"{layout}-{encoding}.safetensors"
            imported = self.run(self.exchange, "import", "--from", layout, "--base", old, delta, "-o", made)
            self.run(self.tool, "apply", "--base", old, made, "-o", again)
            result = parse(memoryview(again.read_bytes()))[0]
            assert rival.exact({tensor: np.array(value.data) for tensor, value in result.items()}), f"{name}: {layout}"
            print(
                f"  {layout} {encoding}: exact both ways; ours {count:,} bytes, theirs {len(blob):,}; "
                f"export {exported / size:.1f} s/GB, import {imported / size:.1f} s/GB"
            )

    def decode(self, rival: Method, layout: str, out: Path) -> tuple[object, int]:
        """Returns the other side's result for an export, and the export's number of bytes."""
        if layout == "slime":
            index = (out / "weight_v000001" / INDEX).read_bytes()
            described = json.loads(index)["metadata"]
            assert (described["version"], described["base_version"]) == ("000001", "000000"), described
            blob = len(index).to_bytes(8, "little") + index + (out / "weight_v000001" / SHARD).read_bytes()
        else:
            name = {"trl": "deltas/step_000001.safetensors", "pulsept1": "step_000001.pulse"}
            blob = (out / name.get(layout, "step_000001.safetensors")).read_bytes()
        if layout == "trl":
            # The method's decoder needs all tensors; TRL lists only the ones that change.
            tensors, metadata = parse(memoryview(blob))
            for name in rival.base:
                tensors.setdefault(f"{name}.idx", Tensor("U16" if rival.gaps else "I32", [0], np.zeros(0, np.uint8)))
                tensors.setdefault(f"{name}.val", Tensor("BF16", [0], np.zeros(0, np.uint8)))
            complete = memoryview(bytes(write(tensors, metadata)))
        else:
            complete = memoryview(blob) if layout != "arc2" and layout != "pulsept1" else blob
        rival.prepare()
        return rival.decode(complete), len(blob)

    def lay_out(self, rival: Method, layout: str, encoding: str, blob: bytes, path: Path) -> Path:
        """Writes the other side's encoding to files."""
        if layout != "slime":
            path.write_bytes(blob)
            return path
        path.mkdir()
        end = 8 + int.from_bytes(blob[:8], "little")
        index = json.loads(blob[8:end])
        index["metadata"]["delta_encoding"] = encoding
        (path / SHARD).write_bytes(blob[end:])
        (path / INDEX).write_text(json.dumps(index))
        return path


def main() -> None:
    tool, exchange, *files = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="exchange-") as folder:
        proof = Proof(tool, exchange, Path(folder))
        for seed in range(4):
            proof.pair(f"generated {seed}", *generated(seed))
        for file in map(Path, files):
            target = file.with_name(file.name.replace("_step0", "_step1"))
            proof.pair(file.name.removesuffix("_step0.safetensors"), file.read_bytes(), target.read_bytes())


main()
