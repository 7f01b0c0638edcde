"""ARC of fireworks-delta-compression."""

from concurrent.futures import ThreadPoolExecutor

from checkpoint import parse
from method import Facts, Method, torch_tensors


class Fireworks(Method):
    """ARC of fireworks-delta-compression, tensor by tensor, in the safetensors file that the package writes."""

    facts = Facts(
        what="package fireworks-delta-compression",
        checks="Adler-32 of every target tensor, both ways",
        proof="every byte, Adler-32",
    )
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


METHODS = {
    "fireworks arc_v1": Fireworks,
    "fireworks arc_v2": Fireworks2,
    "fireworks arc_v3": Fireworks3,
}
