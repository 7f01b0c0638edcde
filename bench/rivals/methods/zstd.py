"""The program zstd, which takes the base as a dictionary."""

from pathlib import Path

from method import Facts, Program


class Zstd(Program):
    """zstd at low levels: level 19 takes minutes for 100 MB, and its files are not smaller."""

    facts = Facts(
        what="program zstd", checks="XXH64 of the target, both ways", proof="every byte, XXH64", reshapes=True
    )
    level = 1

    @classmethod
    def encode(cls, base: Path, target: Path, blob: Path, threads: int) -> list:
        return ["zstd", "-q", "-f", f"-T{threads}", f"--patch-from={base}", f"-{cls.level}", target, "-o", blob]

    @staticmethod
    def decode(base: Path, blob: Path, result: Path, threads: int) -> list:
        return ["zstd", "-q", "-f", f"-T{threads}", f"--patch-from={base}", "-d", "--long=31", blob, "-o", result]


class Zstd3(Zstd):
    level = 3


METHODS = {
    "zstd -1 --patch-from": Zstd,
    "zstd -3 --patch-from": Zstd3,
}
