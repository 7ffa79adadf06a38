"""Object stores on this machine: a server that counts requests, and a folder whose requests take as long as a server's.

The server needs `moto[server]`. It can be disturbed: requests are refused, listings are slow or out of date.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow.fs as pafs

from closelook.jobs.store import Store
from closelook.lrp_core.records.types import UserError

BUCKET = "closelook"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}
Start = Callable[..., Any]
Answer = Callable[[dict[str, Any], Start], Iterable[bytes]]  # a WSGI application
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class ObjectStore:
    """The counters of the server, and its behaviour, which may be changed while it runs."""

    requests: int = 0  # since it was last set to zero
    latency_s: float = 0.0  # of every request
    failing_share: float = 0.0  # share of all requests that are refused with 503
    delay_s: float = 0.0  # of listings, in addition
    lists_old: bool = False  # whether listings are answered as they were before this was set
    turned_away: int = 0  # refused requests so far
    _listings: dict[str, tuple[str, list[tuple[str, str]], bytes]] = field(default_factory=dict)

    def root(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def answer(self, served: Answer, request: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answers a request as the present behaviour says; `served` is the server's own function."""
        self.requests += 1
        time.sleep(self.latency_s)
        if random.random() < self.failing_share:
            self.turned_away += 1
            start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_BUSY)))])
            return [_BUSY]
        query = request.get("QUERY_STRING", "")
        if request["REQUEST_METHOD"] != "GET" or "list-type" not in query:
            return served(request, start)
        time.sleep(self.delay_s)
        known = self._listings.get(query) if self.lists_old else None
        if known is None:
            known = self._listings[query] = _kept(request, served)
        status, headers, body = known
        start(status, headers)
        return [body]

    def calm(self) -> None:
        """Ends all disturbances."""
        self.failing_share, self.delay_s, self.lists_old = 0.0, 0.0, False


def _kept(request: dict[str, Any], served: Answer) -> tuple[str, list[tuple[str, str]], bytes]:
    """The server's answer to a request, as (status, headers, body)."""
    head: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
        head[:] = [status, headers]

    body = b"".join(served(request, start))
    return head[0], head[1], body


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Starts the server. Inside the `with`, its address and credentials are in the environment.

    Raises UserError if moto is not installed.
    """
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError:
        raise UserError("this benchmark needs an S3 server of its own: pip install 'moto[server]'") from None
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server, state = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False), ObjectStore()
    server.start()
    host, port = server.get_host_and_port()
    served: Any = server._server
    try:
        with patch.dict(os.environ, CREDENTIALS, AWS_ENDPOINT_URL=f"http://{host}:{port}"):
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            served.app = partial(state.answer, served.app)
            yield state
    finally:
        server.stop()


class SlowStore(Store):
    """A store in a local folder that is treated as an object store; each request waits before it is carried out."""

    def __init__(self, root: str, latency_s: float) -> None:
        super().__init__(root)
        self._latency_s = latency_s
        self._fs, self._local = _Slow(self._fs, latency_s), False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return SlowStore, (self.root, self._latency_s)


class _Slow:
    """A file system with the requests that a store makes, each of them delayed."""

    def __init__(self, files: pafs.FileSystem, latency_s: float) -> None:
        self._files, self._latency_s = files, latency_s

    def open_input_file(self, path: str) -> pafs.NativeFile:
        return self._waiting(2).open_input_file(path)  # an object store takes two requests: for size and for content

    def open_output_stream(self, path: str) -> pafs.NativeFile:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return self._waiting().open_output_stream(path)

    def delete_file(self, path: str) -> None:
        self._waiting().delete_file(path)

    def get_file_info(self, where: Any) -> Any:
        return self._waiting().get_file_info(where)

    def _waiting(self, requests: int = 1) -> pafs.FileSystem:
        """Waits for the time that so many requests take, and returns the file system."""
        time.sleep(requests * self._latency_s)
        return self._files
