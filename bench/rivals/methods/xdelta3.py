"""The program xdelta3, at its default level. It has no threads."""

from pathlib import Path

from method import Facts, Program


class Xdelta(Program):
    facts = Facts(
        what="program xdelta3", checks="Adler-32 by window, both ways", proof="every byte, Adler-32", reshapes=True
    )

    @staticmethod
    def window(base: Path) -> list:
        return ["xdelta3", "-f", "-B", str(max(base.stat().st_size, 1 << 20)), "-s", base]

    @classmethod
    def encode(cls, base: Path, target: Path, blob: Path, threads: int) -> list:
        return [*cls.window(base), "-e", target, blob]

    @classmethod
    def decode(cls, base: Path, blob: Path, result: Path, threads: int) -> list:
        return [*cls.window(base), "-d", blob, result]


METHODS = {"xdelta3": Xdelta}
