"""A small in-memory server that speaks enough of S3 for one chain, and that can stall uploads and
downloads of links."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import deltachain as dc


class StallingStore:
    """The server, on a free port of this machine, while the block lasts. `stall` is the number of
    seconds that each request waits before the server reads its body, if its method is in `methods`
    and its name contains `part` (by default that of a link). `stands` is set when a request waits.
    `requests` are the answered ones: method and path."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        # The parts of each upload that has not ended, by their numbers.
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.stall = 0.0
        self.methods = ("PUT",)
        self.part = "/files/"
        self.stands = threading.Event()
        self.left = threading.Event()
        self.requests: list[str] = []
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_request(self, *_: object) -> None:
                store.requests.append(f"{self.command} {self.path}")

            def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_PUT(self) -> None:
                name = unquote(urlsplit(self.path).path)
                store.stand(self.command, name)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                query = self.query()
                with store.lock:
                    if "partNumber" in query:
                        parts = store.uploads.get(query["uploadId"])
                        if parts is None:
                            self.refuse(404, "NoSuchUpload")
                            return
                        parts[int(query["partNumber"])] = body
                        self.answer(200, ETag=tag(body))
                        return
                    if self.headers["If-None-Match"] == "*" and name in store.objects:
                        self.answer(412)
                        return
                    store.objects[name] = (body, time.time())
                self.answer(200, ETag=tag(body))

            def query(self) -> dict[str, str]:
                values = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
                return {key: each[0] for key, each in values.items()}

            def refuse(self, status: int, code: str) -> None:
                self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

            def do_DELETE(self) -> None:
                query = self.query()
                if "uploadId" in query:
                    with store.lock:
                        store.uploads.pop(query["uploadId"], None)
                    self.answer(204)
                    return
                with store.lock:
                    store.objects.pop(unquote(urlsplit(self.path).path), None)
                self.answer(204)

            def begin_upload(self) -> None:
                with store.lock:
                    name = f"upload-{len(store.requests)}-{len(store.uploads)}"
                    store.uploads[name] = {}
                text = (
                    "<InitiateMultipartUploadResult>"
                    f"<UploadId>{name}</UploadId>"
                    "</InitiateMultipartUploadResult>"
                )
                self.answer(200, text.encode(), Content_Type="application/xml")

            def complete_upload(self, upload: str) -> None:
                name = unquote(urlsplit(self.path).path)
                with store.lock:
                    if self.headers["If-None-Match"] == "*" and name in store.objects:
                        self.answer(412)
                        return
                    parts = store.uploads.get(upload)
                    if parts is None:
                        self.refuse(404, "NoSuchUpload")
                        return
                    ordered = [parts[number] for number in sorted(parts)]
                    # As S3: only the last part may be shorter than 5 MiB.
                    if any(len(part) < 5 << 20 for part in ordered[:-1]):
                        self.refuse(400, "EntityTooSmall")
                        return
                    body = b"".join(ordered)
                    store.objects[name] = (body, time.time())
                    del store.uploads[upload]
                text = (
                    "<CompleteMultipartUploadResult>"
                    f"<ETag>{escape(tag(body))}</ETag>"
                    "</CompleteMultipartUploadResult>"
                )
                self.answer(200, text.encode(), Content_Type="application/xml")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
                query = self.query()
                if "uploads" in query:
                    self.begin_upload()
                    return
                if "uploadId" in query:
                    self.complete_upload(query["uploadId"])
                    return
                # A request to remove several objects.
                bucket = "/" + unquote(urlsplit(self.path).path).strip("/") + "/"
                keys = re.findall("<Key>(.*?)</Key>", body)
                with store.lock:
                    for key in keys:
                        store.objects.pop(bucket + unescape(key), None)
                rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                self.answer(
                    200,
                    f"<DeleteResult>{rows}</DeleteResult>".encode(),
                    Content_Type="application/xml",
                )

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = self.query()
                if "list-type" in query:
                    store.stand(self.command, parts.path + query.get("prefix", ""))
                    self.answer(
                        200,
                        store.listed(unquote(parts.path), query),
                        Content_Type="application/xml",
                    )
                    return
                store.stand(self.command, parts.path)
                with store.lock:
                    found = store.objects.get(unquote(parts.path))
                if found is None:
                    self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                    return
                body, stored = found
                headers = {"ETag": tag(body), "Last_Modified": formatdate(stored, usegmt=True)}
                asked = self.headers["Range"]
                if asked:
                    first, _, last = asked.removeprefix("bytes=").partition("-")
                    begin, end = int(first), min(int(last or len(body)) + 1, len(body))
                    headers["Content_Range"] = f"bytes {begin}-{end - 1}/{len(body)}"
                    self.answer(206, body[begin:end], **headers)
                else:
                    self.answer(200, body, **headers)

            do_HEAD = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def chain(self, url: str = "s3://bucket/chain", **settings: Any) -> dc.Store:
        """Returns a chain in the server, with settings of `deltachain.Store`."""
        return dc.Store(url, storage_options=self.storage_options, **settings)

    @property
    def storage_options(self) -> dict[str, str]:
        """Settings with which a store finds the server."""
        return {
            "endpoint": self.url,
            "region": "x",
            "access_key_id": "x",
            "secret_access_key": "x",
            "allow_http": "true",
        }

    def stand(self, method: str, name: str) -> None:
        if self.stall and method in self.methods and self.part in name:
            self.stands.set()
            self.left.wait(self.stall)

    def listed(self, bucket: str, query: dict[str, str]) -> bytes:
        """Lists the names of objects, a thousand at a time."""
        bucket = "/" + bucket.strip("/") + "/"
        after = query.get("continuation-token") or query.get("start-after", "")
        with self.lock:
            inside = (name.removeprefix(bucket) for name in self.objects if name.startswith(bucket))
            names = sorted(
                name for name in inside if name.startswith(query.get("prefix", "")) and name > after
            )
            rows = [row(name, *self.objects[bucket + name]) for name in names[:1000]]
        more = len(names) > 1000
        token = (
            f"<NextContinuationToken>{escape(names[999])}</NextContinuationToken>" if more else ""
        )
        return (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
        ).encode()

    def __enter__(self) -> StallingStore:
        threading.Thread(target=self._server.serve_forever).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left.set()
        self._server.shutdown()
        self._server.server_close()


def tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def stamp(stored: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored))


def row(name: str, body: bytes, stored: float) -> str:
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{stamp(stored)}</LastModified><ETag>{tag(body)}</ETag>"
        f"<Size>{len(body)}</Size></Contents>"
    )
