"""Times `dc.fleet` with many members, a tenth of which hang.

    python python/benchmarks/fleet.py [MEMBERS]

Members have addresses of their own in 127.0.0.0/8, on two ports of this machine: one server answers
with the status of a follower, and the other one accepts connections and says nothing. Linux only,
since other systems do not have all of these addresses.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import deltachain as dc


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024


def _answering(status: bytes) -> int:
    """Starts a server that gives this status to everybody, and returns its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(status)))
            self.end_headers()
            self.wfile.write(status)

        def log_message(self, *_: Any) -> None:
            pass

    server = _Server(("0.0.0.0", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def main() -> None:
    members = int(sys.argv[1]) if sys.argv[1:] else 1000
    with tempfile.TemporaryDirectory() as folder, socket.socket() as hanging:
        chain = str(Path(folder) / "chain")
        with dc.Publisher(chain) as publisher:
            publisher.publish({"w": dc.Tensor("U8", (3,), bytes(3))})
        with dc.Subscriber(chain) as subscriber:
            subscriber.prepare().apply()
            status = json.dumps(subscriber.status()).encode()
        hanging.bind(("0.0.0.0", 0))
        hanging.listen(1024)
        ports = [_answering(status), hanging.getsockname()[1]]
        addresses = [
            f"127.{number % 10 == 0:d}.{number // 250}.{number % 250 + 1}:{ports[number % 10 == 0]}"
            for number in range(members)
        ]
        for _ in range(3):
            begin = time.monotonic()
            report = dc.fleet(chain, addresses)
            seconds = time.monotonic() - begin
            good = sum(one.condition == "holds" for one in report.members)
            print(f"{members} members, {members - good} silent: {seconds:.1f} s")


if __name__ == "__main__":
    main()
