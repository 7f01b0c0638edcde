"""The package z4ai."""

from method import Facts, Method


class Z4ai(Method):
    """The deltas of whole checkpoints of z4ai."""

    facts = Facts(what="package z4ai", checks="BLAKE2b of the base, both ways", base="BLAKE2b", reshapes=True)

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


METHODS = {
    "z4ai": Z4ai,
}
