"""The layouts of slime's deltas on disk, written here."""

import json

import numpy as np
from checkpoint import Tensor, parse, write
from method import Facts, Layout


class SlimeXor(Layout):
    """XOR of each changed tensor's bytes, in a zstd frame, with a checksum of the new bytes."""

    facts = Facts(
        what="layout, written here",
        checks="XXH3-128 of every changed target tensor, both ways",
        proof="every byte of changed tensors, XXH3-128",
        base="a version number",
        place="the only copy, before it is verified",
    )

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
    """Like `SlimeXor`, with byte positions and new bytes: a count, the positions, the bytes."""

    def payload(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        places = np.flatnonzero(old != new).astype(np.uint32)
        count = np.array([places.size], np.uint32)
        return np.concatenate([count.view(np.uint8), places.view(np.uint8), new[places]])

    def restore(self, state: np.ndarray, payload: np.ndarray) -> None:
        count = int(payload[:4].view(np.uint32)[0])
        state[payload[4 : 4 + 4 * count].view(np.uint32)] = payload[4 + 4 * count :]


METHODS = {
    "slime xor": SlimeXor,
    "slime overwrite": SlimeOverwrite,
}
