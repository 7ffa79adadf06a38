"""An S3 server on this machine that counts requests and delays each of them. It needs `moto[server]`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from lrp_core.records.types import UserError

BUCKET = "closelook"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass
class ObjectStore:
    """The counters and the behaviour of the server.

    `requests` counts requests since it was last set to zero. Each request waits `latency_s` before it is answered. If
    `disturb` is set, it answers requests; it is given the request and the server's own function.
    """

    requests: int = 0
    latency_s: float = 0.0
    disturb: Callable[[Any, Any, Any], Any] | None = None

    def root(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"


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
    answer = served.app

    def counted(environment: Any, start: Any) -> Any:
        state.requests += 1
        time.sleep(state.latency_s)
        return answer(environment, start) if state.disturb is None else state.disturb(environment, start, answer)

    try:
        with patch.dict(os.environ, CREDENTIALS, AWS_ENDPOINT_URL=f"http://{host}:{port}"):
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            served.app = counted
            yield state
    finally:
        server.stop()
