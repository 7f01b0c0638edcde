"""The S3 deltas of NVIDIA's ModelExpress, as the packages of vLLM and SGLang use them: the writer and the reader of its
package. Objects are kept in memory in place of S3, and its trainer is one process that needs no network; everything
else is the original.
"""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

from checkpoint import map_file, parse
from method import Facts, Method, torch_tensors

INDEX = "model.safetensors.index.json"


class Objects(dict):
    """Stands in for S3."""

    def put(self, *, uri: str, data: bytes) -> None:
        self[uri] = data

    def get(self, uri: str) -> bytes:
        return self[uri]

    def size(self, uri: str) -> int:
        return len(self[uri])


def uri(version: int) -> str:
    return f"s3://bucket/weight_v{version:06}/{INDEX}"


class ModelExpress(Method):
    """Version 0 is the checkpoint that both sides start with, version 1 the base, version 2 the target. Version 1
    changes nothing, so the base is a checkpoint that the reader owns and patches, as in every step except the first, in
    which it copies the model.
    """

    facts = Facts(
        what="package modelexpress",
        checks="Adler-32 of every changed target tensor, both ways",
        proof="every byte of changed tensors, Adler-32",
        base="a version number",
        place="its copy on disk, before it is verified; the engine loads that afterwards",
    )

    def setup(self) -> None:
        os.environ["MX_REFIT_DELTA_WORKERS"] = str(self.threads)
        import torch.distributed as dist
        from modelexpress_rl import refit_pb2
        from modelexpress_rl.train.methods.canonical_delta import CanonicalDeltaPublicationMethod
        from modelexpress_rl.version import WeightVersionRef

        group = Path(tempfile.mkdtemp()) / "group"
        dist.init_process_group("gloo", init_method=f"file://{group}", rank=0, world_size=1)
        target = refit_pb2.WeightVersion(
            model_name="model", base_version_id="000001",
            payload_format=refit_pb2.WEIGHT_PAYLOAD_FORMAT_XOR_DELTA,
            object_storage=refit_pb2.ObjectStorageSource(
                storage_type=refit_pb2.OBJECT_STORAGE_TYPE_S3, uri=uri(2)),
        )
        known = SimpleNamespace(
            GetWeightVersion=lambda request, timeout: refit_pb2.GetWeightVersionResponse(version=target))
        self.sent = Objects()
        self.publisher = CanonicalDeltaPublicationMethod(
            config=SimpleNamespace(initial_base_version_id="000001", uri_prefix="s3://bucket"), model_name="model",
            service=lambda: known, rpc_timeout_seconds=1.0, process_group=dist.group.WORLD,
            read_seed_tensor=lambda name: self.base[name].data, s3=self.sent,
        )
        self.version = WeightVersionRef(version_id="000002")
        # One tensor per bucket: the pool of ModelExpress takes buckets, and a model of this size would be a single one.
        self.buckets = [[tensor] for tensor in torch_tensors(self.target).items()]
        self.publisher.prepare_base(hf_tensor_iter=self.buckets)
        self.held = self.publisher.snapshot

    def encode(self) -> bytes:
        self.publisher.snapshot, self.publisher.current_base_version_id = self.held, "000001"
        self.sent.clear()
        staged = self.publisher.stage(version=self.version, hf_tensor_iter=self.buckets)
        self.publisher.publish(version=self.version, staged=staged)
        index = self.sent.pop(uri(2))
        # One process writes at most one file.
        return b"".join([len(index).to_bytes(8, "little"), index, *self.sent.values()])

    def prepare(self) -> None:
        from modelexpress_rl.inference.receiver import ObjectStorageGeneratorConfig, _LocalCheckpoint
        from modelexpress_rl.object_storage import ObjectStorageType

        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        (folder / "seed").mkdir()
        (folder / "seed/model.safetensors").write_bytes(self.base_file)
        config = ObjectStorageGeneratorConfig(
            storage_type=ObjectStorageType.S3, initial_base_version_id="000000", seed_checkpoint_path=folder / "seed",
            refit_checkpoint_dir=folder / "own",
        )
        self.got = Objects()
        self.follower = _LocalCheckpoint(model_name="model", config=config, s3=self.got)
        self.follower.initialize()
        nothing = {
            "version": "000001", "base_version": "000000", "delta_encoding": "xor", "compression_format": "zstd",
            "checksum_format": "adler32",
        }
        self.got[uri(1)] = json.dumps({"metadata": nothing, "weight_map": {}}).encode()
        self.follower.prepare(self.step(1))
        self.follower.store.activate("000001")

    @staticmethod
    def step(version: int) -> object:
        from modelexpress_rl.inference.receiver import _S3Version
        from modelexpress_rl.train import WeightPayloadFormat

        return _S3Version(
            version_id=f"{version:06}", base_version_id=f"{version - 1:06}",
            payload_format=WeightPayloadFormat.XOR_DELTA, uri=uri(version),
        )

    def decode(self, blob: bytes) -> object:
        end = 8 + int.from_bytes(blob[:8], "little")
        self.got[uri(2)] = blob[8:end]
        for shard in set(json.loads(blob[8:end])["weight_map"].values()):
            self.got[uri(2).replace(INDEX, shard)] = blob[end:]
        return self.follower.prepare(self.step(2)).path

    def exact(self, result: object) -> bool:
        tensors, _ = parse(map_file(result / "model.safetensors"))
        same = super().exact({name: tensor.data for name, tensor in tensors.items()})
        self.folder.cleanup()
        return same


METHODS = {"ModelExpress xor": ModelExpress}
