"""Costs and gains of a stream of several zstd frames, for snapshots of safetensors files (SPEC
Appendix A).

    python python/benchmarks/frames.py FILE.safetensors...     needs numpy and zstandard

Compresses the planes of segments of 32 MiB with the library's parameters: as one frame each, and as
frames of 1 MiB and of 256 KiB. Prints the stored bytes and the time to decompress all frames with
one and with two threads (the best of seven). Raw planes (the ones that zstd does not shorten) take
no time. All tensors of a file must have one lane width.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zstandard

SEGMENT = 32 << 20
WIDTHS = {b'"BF16"': 2, b'"F16"': 2, b'"F32"': 4}
PARAMETERS = zstandard.ZstdCompressionParameters(
    compression_level=1, strategy=zstandard.STRATEGY_FAST, min_match=7, window_log=20, hash_log=6
)


def planes(path):
    """The planes of absolute values (SPEC 8.2) of the file's data, segment by segment."""
    file = Path(path).read_bytes()
    begin = 8 + int.from_bytes(file[:8], "little")
    width = next((width for name, width in WIDTHS.items() if name in file[:begin]), 1)
    data = file[begin : begin + (len(file) - begin) // width * width]
    lanes = np.frombuffer(data, f"<u{width}")
    rotated = (lanes << lanes.dtype.type(1)) | (lanes >> lanes.dtype.type(8 * width - 1))
    bytes_of = rotated.view(np.uint8).reshape(-1, width)
    step = SEGMENT // width
    return [
        bytes_of[at : at + step, plane].tobytes()
        for at in range(0, len(lanes), step)
        for plane in range(width)
    ]


def decompressed(frames, threads):
    """Returns the seconds to decompress all frames."""
    local = threading.local()

    def one(frame):
        if not hasattr(local, "decompressor"):
            local.decompressor = zstandard.ZstdDecompressor()
        local.decompressor.decompress(frame)

    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(7):
            begin = time.perf_counter()
            list(pool.map(one, frames))
            best = min(best, time.perf_counter() - begin)
    return best


def main():
    compressor = zstandard.ZstdCompressor(compression_params=PARAMETERS)
    for path in sys.argv[1:]:
        raw = planes(path)
        print(f"{path}: {sum(map(len, raw))} bytes in {len(raw)} planes")
        for name, size in (
            ("one frame a plane", 1 << 62),
            ("1 MiB", 1 << 20),
            ("256 KiB", 1 << 18),
        ):
            pieces = [
                plane[at : at + size]
                for plane in raw
                for at in range(0, len(plane), min(size, len(plane)))
            ]
            stored = [(compressor.compress(piece), len(piece)) for piece in pieces]
            total = sum(min(len(frame), length) for frame, length in stored)
            frames = [frame for frame, length in stored if len(frame) < length]
            one, two = (1e3 * decompressed(frames, threads) for threads in (1, 2))
            shown = f"{one:6.1f} ms  {two:6.1f} ms with two threads"
            print(f"  {name:18} {total:>10} bytes  {len(frames):>4} frames  {shown}")


if __name__ == "__main__":
    main()
