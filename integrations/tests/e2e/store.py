"""A bucket of s3s-fs on this machine, for the other programs of this folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

KEY, SECRET = "engines", "not-a-secret"


class Store:
    """The server, on a free port, while the block lasts. Its bucket is `models`, and empty.

    Args:
        program: the server of the crate s3s-fs, which `run.py` builds.
        folder: the folder of the objects; its old content is removed.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "models").mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = [str(program), "--host", "127.0.0.1", "--port", str(self.port)]
        words += ["--access-key", KEY, "--secret-key", SECRET, str(folder)]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Store:
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()


def surroundings(port: int) -> dict[str, str]:
    """The environment variables with which a client finds the bucket, directly or behind a
    proxy."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
