"""Disturbances of an S3 server: refused requests, slow listings, and listings that are out of date."""

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
    """The present disturbance of requests, and the number of disturbed ones."""

    failing_share: float = 0.0  # share of all requests that are refused with 503
    delay_s: float = 0.0  # of listings
    lists_old: bool = False  # whether listings are answered as they were before this was set
    turned_away: int = 0  # refused requests so far
    listed_old: int = 0  # listings so far that were out of date
    _listings: dict[str, tuple[str, list[tuple[str, str]], bytes]] = field(default_factory=dict)

    def answer(self, request: dict[str, Any], start: Start, served: Answer) -> Iterable[bytes]:
        """Answers a request as the present disturbances say; `served` is the server's own function."""
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
        """Ends all disturbances."""
        self.failing_share, self.delay_s, self.lists_old = 0.0, 0.0, False


def _kept(request: dict[str, Any], served: Answer) -> tuple[str, list[tuple[str, str]], bytes]:
    """The server's answer to a request, as (status, headers, body)."""
    head: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
        head[:] = [status, headers]

    body = b"".join(served(request, start))
    return head[0], head[1], body
