"""An S3 server that holds objects in memory and lists millions of keys fast. It accepts no writes.

Other benchmarks use moto, which walks through all keys of a bucket for every page of a listing.
"""

from __future__ import annotations

import multiprocessing
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from benchmarks.parts.stores.object_store import BUCKET, CREDENTIALS

PAGE = 1000  # keys that S3 lists in one answer
_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # of every object in a listing; a request for the object says one day later
TIME_NS = int(_TIME.timestamp()) * 10**9

#: The content of each object by key, or only its size in bytes where nobody reads the content.
Objects = Mapping[str, bytes | int]


@dataclass
class Served:
    """Counts of what a server has answered."""

    _counts: Any

    @property
    def requests(self) -> int:
        return self._counts[0]

    @property
    def listings(self) -> int:
        """The number of requests that listed keys."""
        return self._counts[1]

    @property
    def bytes_read(self) -> int:
        """The bytes of contents that were sent."""
        return self._counts[2]


@contextmanager
def listed_store(objects: Objects) -> Iterator[Served]:
    """Starts the server in another process. Inside the `with`, its address and credentials are in the environment."""
    forked = multiprocessing.get_context("fork")  # the objects are not copied
    counts, port = forked.Array("q", 3), forked.Value("i", 0)
    ready = forked.Event()
    process = forked.Process(target=_serve, args=(objects, counts, port, ready), daemon=True)
    process.start()
    ready.wait()
    try:
        with patch.dict(os.environ, CREDENTIALS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port.value}"):
            yield Served(counts)
    finally:
        process.kill()
        process.join()


def _serve(objects: Objects, counts: Any, port: Any, ready: Any) -> None:
    """Answers requests for the objects on a free port, which it writes to `port`; then it sets `ready`.

    `counts` are requests, listings and bytes of contents. Runs until its process is ended.
    """
    keys = sorted(objects)
    entries = [_entry(key, _size(objects[key])) for key in keys]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(is_head=True)

        def do_GET(self) -> None:
            self._answer(is_head=False)

        def _answer(self, is_head: bool) -> None:
            counts[0] += 1
            parts = urlsplit(self.path)
            key = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
            asked = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            if "list-type" in asked:
                body = _page(keys, entries, asked).encode()
                counts[1] += 1
                return self._send(200, body, {"Content-Type": "application/xml"})
            content = objects.get(key)
            if content is None:
                return self._send(404, b"", {})
            facts = {"ETag": '"0"', "Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"}
            if is_head:
                return self._send(200, None, facts | {"Content-Length": str(_size(content))})
            data = content if isinstance(content, bytes) else bytes(content)
            asked_range = self.headers.get("Range")
            if asked_range is not None:
                first, _, last = asked_range.removeprefix("bytes=").partition("-")
                data = data[int(first) : int(last) + 1]
                facts["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{_size(content)}"
            counts[2] += len(data)
            self._send(206 if asked_range else 200, data, facts)

        def _send(self, status: int, body: bytes | None, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if body is not None:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    port.value = server.server_address[1]
    ready.set()
    server.serve_forever()


def _size(content: bytes | int) -> int:
    return content if isinstance(content, int) else len(content)


def _entry(key: str, size: int) -> str:
    """An object in a listing, as XML."""
    facts = f"<LastModified>{_TIME:%Y-%m-%dT%H:%M:%S}.000Z</LastModified><ETag>&quot;0&quot;</ETag><Size>{size}</Size>"
    return f"<Contents><Key>{escape(key)}</Key>{facts}<StorageClass>STANDARD</StorageClass></Contents>"


def _page(keys: list[str], entries: list[str], asked: Mapping[str, str]) -> str:
    """One page of a listing, as XML: the keys that begin with the prefix, from after the continuation token on.

    With a delimiter, keys that contain it after the prefix are listed as folders.
    """
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    most = min(PAGE, int(asked.get("max-keys") or PAGE))
    token = unquote(asked.get("continuation-token", ""))
    at = bisect_right(keys, token) if token else bisect_left(keys, prefix)
    contents: list[str] = []
    folders: list[str] = []
    last = ""
    while at < len(keys) and keys[at].startswith(prefix) and len(contents) + len(folders) < most:
        key = keys[at]
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        if end >= 0:
            folder = key[: end + len(delimiter)]
            folders.append(folder)
            last = folder + "\U0010ffff"
            at = bisect_right(keys, last)
            continue
        contents.append(entries[at])
        last = key
        at += 1
    more = at < len(keys) and keys[at].startswith(prefix)
    common = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
    following = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(contents) + len(folders)}</KeyCount>"
        f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{following}"
        f"{''.join(contents)}{common}</ListBucketResult>"
    )
