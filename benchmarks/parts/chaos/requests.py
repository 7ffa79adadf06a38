"""Disturbances of an S3 server: requests that are turned away, that take long, and listings of some time ago."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Start = Callable[..., Any]
Answer = Callable[[dict[str, Any], Start], Iterable[bytes]]  # a WSGI application
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class Disturbances:
    """The present disturbances of requests. `lists_old` answers listings as they were before it was set."""

    failing_share: float = 0.0
    delay_s: float = 0.0  # of listings
    lists_old: bool = False
    turned_away: int = 0
    listed_old: int = 0
    _listings: dict[str, tuple[str, list[tuple[str, str]], bytes]] = field(default_factory=dict)

    def answer(self, request: dict[str, Any], start: Start, served: Answer) -> Iterable[bytes]:
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
        else:
            self.listed_old += 1
        status, headers, body = known
        start(status, headers)
        return [body]

    def calm(self) -> None:
        """End all disturbances."""
        self.failing_share, self.delay_s, self.lists_old = 0.0, 0.0, False


def _kept(request: dict[str, Any], served: Answer) -> tuple[str, list[tuple[str, str]], bytes]:
    """The answer of the server as (status, headers, body)."""
    head: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
        head[:] = [status, headers]

    body = b"".join(served(request, start))
    return head[0], head[1], body
