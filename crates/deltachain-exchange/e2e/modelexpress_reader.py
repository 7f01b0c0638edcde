"""Exports three steps in slime's layout, and reads them with the reader of ModelExpress, which servers of vLLM and
SGLang use: its checkpoint must equal the last step bit for bit, and it must notice damage.

    python modelexpress_reader.py TOOL EXCHANGE TESTDATA

The reader downloads objects from S3. Here files replace S3; everything else is the original.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from modelexpress_rl.inference.receiver import ObjectStorageGeneratorConfig, _LocalCheckpoint, _S3Version
from modelexpress_rl.object_storage import ObjectStorageType
from modelexpress_rl.train import WeightPayloadFormat

INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00001.safetensors"


class Files:
    """The objects of S3, in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, uri: str) -> bytes:
        return (self.folder / uri.removeprefix("s3://bucket/")).read_bytes()

    def size(self, uri: str) -> int:
        return len(self.get(uri))


def checkpoint(folder: Path, seed: Path, objects: Path) -> _LocalCheckpoint:
    config = ObjectStorageGeneratorConfig(
        storage_type=ObjectStorageType.S3,
        initial_base_version_id="000000",
        seed_checkpoint_path=seed,
        refit_checkpoint_dir=folder,
    )
    own = _LocalCheckpoint(model_name="model", config=config, s3=Files(objects))
    own.initialize()
    return own


def main() -> None:
    tool, exchange, testdata = map(Path, sys.argv[1:])
    steps = [testdata / f"rl3e6_step{number}.safetensors" for number in range(4)]

    def run(program: Path, *words: object) -> str:
        return subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True).stdout

    def state(path: Path) -> str:
        return json.loads(run(tool, "digest", path, "--json"))["state"]

    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        for number in (1, 2, 3):
            run(tool, "diff", steps[number - 1], steps[number], "-o", here / f"{number}.dcf")
        links = [here / f"{number}.dcf" for number in (1, 2, 3)]
        words = ["--to", "slime", "--checksum", "adler32", "--base", steps[0], *links, "-o", here / "deltas"]
        run(exchange, "export", *words)
        (here / "seed").mkdir()
        (here / "seed/model.safetensors").write_bytes(steps[0].read_bytes())
        chain = tuple(
            _S3Version(
                version_id=f"{number:06}",
                base_version_id=f"{number - 1:06}",
                payload_format=WeightPayloadFormat.XOR_DELTA,
                uri=f"s3://bucket/weight_v{number:06}/{INDEX}",
            )
            for number in (1, 2, 3)
        )
        prepared = checkpoint(here / "one", here / "seed", here / "deltas").prepare_chain(chain)
        assert state(prepared.path) == state(steps[3])
        print("modelexpress: three steps of slime's layout, read exactly")

        shard = here / "deltas/weight_v000002" / SHARD
        damaged = bytearray(shard.read_bytes())
        damaged[-20] ^= 1
        shard.write_bytes(damaged)
        try:
            checkpoint(here / "two", here / "seed", here / "deltas").prepare_chain(chain)
        except RuntimeError as error:
            print(f"modelexpress: a damaged step is refused: {error}")
        else:
            sys.exit("modelexpress took a damaged step")


if __name__ == "__main__":
    main()
