"""The rivals that run inside a Python process: each encodes a pair of checkpoints and decodes what it has encoded.

If a package has a function for checkpoints, that function is used. Layouts without a package are written here as their
projects publish them. The time of a rival includes its own checks. Packages are imported where they are used, so that a
missing one removes only its own rows.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from checkpoint import Tensor, parse, write


class Method:
    """A rival. `base` and `target` are mapped files; `threads` is what it may use at most."""

    # What its times contain beside coding, for the table.
    checks = ""
    # What shows that a result is wrong, if anything does.
    proof = ""
    # Whether it takes BF16 only.
    bf16_only = False

    def __init__(self, base: memoryview, target: memoryview, threads: int):
        self.base_file, self.target_file, self.threads = base, target, threads
        self.base, _ = parse(base)
        self.target, _ = parse(target)
        # Reads all pages, so that what encoding and decoding need beyond the inputs can be told.
        for file in (base, target):
            np.frombuffer(file, np.uint8).max()
        self.setup()

    def setup(self) -> None:
        """What a process that follows a model holds before a step; not timed."""

    def encode(self) -> bytes:
        raise NotImplementedError

    def prepare(self) -> None:
        """Sets back what decoding changes in place; not timed."""

    def decode(self, blob: bytes) -> object:
        raise NotImplementedError

    def exact(self, result: object) -> bool:
        """Whether the result holds the target, bit for bit."""
        return set(result) == set(self.target) and all(
            np.array_equal(as_bytes(result[name]), tensor.data) for name, tensor in self.target.items()
        )


def as_bytes(tensor: object) -> np.ndarray:
    """The bytes of an array, or of a tensor of torch."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8)
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy()


def torch_tensors(tensors: dict[str, Tensor]) -> dict:
    """The same bytes as tensors of torch, of shape and dtype."""
    import torch

    types = {
        "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return {
        name: torch.from_numpy(tensor.data).view(types[tensor.dtype]).reshape(tensor.shape)
        for name, tensor in tensors.items()
    }


class Basilica(Method):
    """PULSEPT1 of basilica-sdk. The snapshot that both sides hold is its own, and is made before a step."""

    checks = "XXH3-128 of every target tensor, both ways"
    proof = "every byte, XXH3-128"
    bf16_only = True
    version = 1

    def setup(self) -> None:
        from basilica._pulse.codec import ModelMeta, Snapshot

        # It has a pool for encoding; decoding uses threads within a tensor (version 3 only).
        os.environ["BASILICA_PULSE_EXPCTX_THREADS"] = str(self.threads)
        self.snapshot_of = lambda: Snapshot(torch_tensors(self.base))
        self.publisher = self.snapshot_of()
        self.model = ModelMeta("model", self.publisher.digest(), self.publisher.param_count())
        self.update = list(torch_tensors(self.target).items())

    def encode(self) -> bytes:
        patch, _ = self.publisher.encode_step(
            self.update, step=1, base_step=0, model=self.model, workers=self.threads, format_version=self.version
        )
        self.publisher.rollback_last_encode()
        return patch

    def prepare(self) -> None:
        self.follower = self.snapshot_of()

    def decode(self, blob: bytes) -> object:
        from basilica._pulse.codec import parse_patch

        self.follower.apply_patch(parse_patch(blob))
        return dict(self.follower.named_tensors())


class Basilica2(Basilica):
    version = 2


class Basilica3(Basilica):
    version = 3


class Fireworks(Method):
    """ARC of fireworks-delta-compression, by tensors, in the safetensors file that it writes."""

    checks = "Adler-32 of every target tensor, both ways"
    proof = "every byte, Adler-32"
    format = "arc_v1"

    def setup(self) -> None:
        self.src, self.dst = torch_tensors(self.base), torch_tensors(self.target)
        self.pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None

    def encode(self) -> bytes:
        from fireworks_delta_compression import compression
        from safetensors.torch import save

        diffs, checksums = compression.delta_compress_dicts(self.src, self.dst, self.format, executor=self.pool)
        return save(diffs, metadata=checksums)

    def decode(self, blob: bytes) -> object:
        from fireworks_delta_compression import compression
        from safetensors.torch import load

        _, checksums = parse(blob)
        diffs = load(blob)

        def one(name: str):
            return compression.delta_decompress(
                src=self.src[name], compressed_diff=diffs[name], checksum=checksums[name],
                compression_format=self.format,
            )

        return dict(zip(diffs, (self.pool.map if self.pool else map)(one, diffs)))


class Fireworks2(Fireworks):
    format = "arc_v2"


class Fireworks3(Fireworks):
    format = "arc_v3"


class Z4ai(Method):
    """The deltas of whole checkpoints of z4ai."""

    checks = "BLAKE2b of the base, both ways"

    def setup(self) -> None:
        # It takes bytes, and would copy anything else.
        self.old, self.new = bytes(self.base_file), bytes(self.target_file)

    def encode(self) -> bytes:
        from z4ai import model_delta

        return model_delta.compress(self.new, self.old, threads=self.threads)

    def decode(self, blob: bytes) -> object:
        from z4ai import model_delta

        return model_delta.decompress(blob, self.old)

    def exact(self, result: object) -> bool:
        return result == self.new


class ZipNN(Method):
    """The byte deltas of ZipNN, over the whole file."""

    checks = "none"

    def setup(self) -> None:
        from zipnn import ZipNN as Codec

        self.old, self.new = bytes(self.base_file), bytes(self.target_file)
        dtypes = {tensor.dtype for tensor in self.target.values()}
        self.codec = Codec(
            bytearray_dtype="float32" if dtypes == {"F32"} else "bfloat16",
            delta_compressed_type="byte", threads=self.threads,
        )

    def encode(self) -> bytes:
        return bytes(self.codec.compress(self.new, delta_second_data=self.old))

    def decode(self, blob: bytes) -> object:
        return self.codec.decompress(blob, delta_second_data=self.old)

    def exact(self, result: object) -> bool:
        return bytes(result) == self.new


class Layout(Method):
    """A layout without a package: tensors are coded one by one, on a pool, and decoded in place."""

    def setup(self) -> None:
        self.pool = ThreadPoolExecutor(self.threads)

    def prepare(self) -> None:
        self.state = {name: tensor.data.copy() for name, tensor in self.base.items()}

    def each(self, work, names) -> list:
        return list((self.pool.map if self.threads > 1 else map)(work, names))


class Trl(Layout):
    """Positions and new values, by tensor, as the asynchronous GRPO trainer of TRL proposed them."""

    checks = "none"
    bf16_only = True
    gaps = False

    def encode(self) -> bytes:
        def one(name: str):
            new = self.target[name].data.view(np.uint16)
            places = np.flatnonzero(new != self.base[name].data.view(np.uint16))
            if not self.gaps:
                return places.astype(np.int32), new[places], "I32"
            gaps = np.diff(places, prepend=-1) - 1
            wide = gaps.size > 0 and gaps.max() > 0xFFFF
            return gaps.astype(np.uint32 if wide else np.uint16), new[places], "U32" if wide else "U16"

        tensors = {}
        for name, (places, values, dtype) in zip(self.target, self.each(one, self.target)):
            tensors[f"{name}.idx"] = Tensor(dtype, [places.size], places.view(np.uint8))
            tensors[f"{name}.val"] = Tensor("BF16", [values.size], values.view(np.uint8))
        return write(tensors, {"encoding": "gap_delta" if self.gaps else "raw"})

    def decode(self, blob: bytes) -> object:
        tensors, metadata = parse(blob)
        types = {"I32": np.int32, "U32": np.uint32, "U16": np.uint16}

        def one(name: str) -> None:
            places = tensors[f"{name}.idx"]
            places = places.data.view(types[places.dtype])
            if metadata["encoding"] == "gap_delta":
                places = np.cumsum(places.astype(np.int64) + 1) - 1
            self.state[name].view(np.uint16)[places] = tensors[f"{name}.val"].data.view(np.uint16)

        self.each(one, self.state)
        return self.state


class TrlGaps(Trl):
    gaps = True


class SlimeXor(Layout):
    """XOR of each changed tensor's bytes, in a zstd frame, with a checksum of the new bytes."""

    checks = "XXH3-128 of every changed target tensor, both ways"
    proof = "every byte of changed tensors, XXH3-128"

    def payload(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.bitwise_xor(old, new)

    def restore(self, state: np.ndarray, payload: np.ndarray) -> None:
        np.bitwise_xor(state, payload, out=state)

    def encode(self) -> bytes:
        import xxhash
        import zstandard

        def one(name: str):
            old, new = self.base[name].data, self.target[name].data
            if np.array_equal(old, new):
                return None
            frame = zstandard.ZstdCompressor(level=1).compress(self.payload(old, new))
            return np.frombuffer(frame, np.uint8), xxhash.xxh3_128_hexdigest(new)

        coded = {name: result for name, result in zip(self.target, self.each(one, self.target)) if result}
        file = write(
            {name: Tensor("U8", [frame.size], frame) for name, (frame, _) in coded.items()},
            {name: checksum for name, (_, checksum) in coded.items()},
        )
        index = {
            "metadata": {
                "version": "000001", "base_version": "000000", "delta_encoding": type(self).__name__,
                "compression_format": "zstd", "checksum_format": "xxh3-128",
            },
            "weight_map": dict.fromkeys(coded, "model-00001-of-00001.safetensors"),
        }
        text = json.dumps(index).encode()
        return len(text).to_bytes(8, "little") + text + file

    def decode(self, blob: bytes) -> object:
        import xxhash
        import zstandard

        begin = 8 + int.from_bytes(blob[:8], "little")
        tensors, checksums = parse(memoryview(blob)[begin:])

        def one(name: str) -> None:
            payload = np.frombuffer(zstandard.ZstdDecompressor().decompress(tensors[name].data), np.uint8)
            self.restore(self.state[name], payload)
            if xxhash.xxh3_128_hexdigest(self.state[name]) != checksums[name]:
                raise ValueError(f"{name}: wrong checksum")

        self.each(one, tensors)
        return self.state


class SlimeOverwrite(SlimeXor):
    """The same with byte positions and new bytes: a count, the positions, the bytes."""

    def payload(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        places = np.flatnonzero(old != new).astype(np.uint32)
        count = np.array([places.size], np.uint32)
        return np.concatenate([count.view(np.uint8), places.view(np.uint8), new[places]])

    def restore(self, state: np.ndarray, payload: np.ndarray) -> None:
        count = int(payload[:4].view(np.uint32)[0])
        state[payload[4 : 4 + 4 * count].view(np.uint32)] = payload[4 + 4 * count :]


METHODS: dict[str, type[Method]] = {
    "basilica-sdk PULSEPT1 v1": Basilica,
    "basilica-sdk PULSEPT1 v2": Basilica2,
    "basilica-sdk PULSEPT1 v3": Basilica3,
    "fireworks arc_v1": Fireworks,
    "fireworks arc_v2": Fireworks2,
    "fireworks arc_v3": Fireworks3,
    "z4ai": Z4ai,
    "ZipNN": ZipNN,
    "TRL gap_delta": TrlGaps,
    "TRL raw": Trl,
    "slime xor": SlimeXor,
    "slime overwrite": SlimeOverwrite,
}
