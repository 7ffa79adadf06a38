"""An S3 server on this machine that counts requests, delays them and refuses a share of them. Needs `moto[server]`."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from closelook.lrp_core.records.types import UserError

BUCKET = "closelook"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class ObjectStore:
    """The counters of the server, and its behaviour, which may be changed while it runs."""

    requests: int = 0  # since it was last set to zero
    refused: int = 0
    latency_s: float = 0.0  # of every request
    failing_share: float = 0.0  # share of all requests that are refused with 503

    def root(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def answer(self, served: Callable[..., Iterable[bytes]], request: Any, start: Any) -> Iterable[bytes]:
        """Answer a request, a WSGI environment, by the server's own function `served`, or refuse it."""
        self.requests += 1
        time.sleep(self.latency_s)
        if random.random() >= self.failing_share:
            return served(request, start)
        self.refused += 1
        start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_BUSY)))])
        return [_BUSY]


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start the server. Inside the `with`, its address and credentials are in the environment.

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
