"""The package zipnn."""

from method import Facts, Method


class ZipNN(Method):
    """The byte deltas of ZipNN, of the whole file."""

    facts = Facts(what="package zipnn", reshapes=True)

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


METHODS = {
    "ZipNN": ZipNN,
}
