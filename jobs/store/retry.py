"""Errors of a store or a hub that pass by themselves: the call is made again, after ever longer waits.

Ray Data does so for what it reads itself (`DataContext.retried_io_errors`); this is for what we read and write.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
STORE_PATIENCE_S = 120.0  # object stores ask for less load for seconds; a server of one's own restarts in a minute
HUB_PATIENCE_S = 20.0  # the hub may be out of reach for good
HUB_COUNTS_S = 600.0  # with status 429: the hub counts requests over five minutes
_WORTH_A_WARNING_S = 4.0

_STATUS_CODES = (408, 429, 500, 502, 503, 504)
#: Messages of pyarrow's file systems, transformers and the hub; the names in capitals are of AWS and Google.
_MESSAGE = re.compile(
    r"SLOW_?DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|NETWORK_CONNECTION|REQUEST_TIMEOUT|THROTTL|RESOURCE_EXHAUSTED"
    r"|\bUNAVAILABLE\b|DEADLINE_EXCEEDED|HTTP status (?:408|429|500|502|503|504)\b|\b429\b.*Too Many Requests"
    r"|connection (?:reset|aborted|refused)|broken pipe|timed? ?out|temporarily unavailable",
    re.IGNORECASE,
)
#: Of the hub's HTTP client, whichever module it comes from.
_CLASSES = {"TimeoutException", "NetworkError", "RemoteProtocolError"}
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)

_log = logging.getLogger(__name__)


class StillUnavailable(OSError):
    """An error that should have passed and did not. What needed the call fails now; a later run may succeed."""


def retried(call: Callable[[], T], patience_s: float = STORE_PATIENCE_S) -> T:
    """The result of `call`, which must be safe to repeat.

    Raises StillUnavailable when a passing error occurs after `patience_s` seconds, any other error at once.
    """
    begun = time.monotonic()
    wait_s, tries = FIRST_WAIT_S, 0
    while True:
        tries += 1
        try:
            return call()
        except Exception as error:
            if not is_passing(error):
                raise
            reason = one_line(error) or type(error).__name__
            passed_s = time.monotonic() - begun
            too_many = any(_status(cause) == 429 for cause in causes(error))
            if passed_s >= (HUB_COUNTS_S if too_many else patience_s):
                raise StillUnavailable(f"{reason} (tried {tries} times in {passed_s:.0f} s)") from error
        pause_s = wait_s * random.uniform(0.5, 1)  # workers that failed together should not return together
        if pause_s >= _WORTH_A_WARNING_S:
            _log.warning("%s; trying again in %.0f s", reason, pause_s)
        time.sleep(pause_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def is_passing(error: BaseException) -> bool:
    """True where the call may succeed when it is made again: the other side is busy, restarts, or was not reached."""
    chain = causes(error)
    for cause in chain:
        # It was tried long enough, or the hub's client refused to go online (a connection error to it).
        if isinstance(cause, StillUnavailable) or "OfflineModeIsEnabled" in _classes(cause):
            return False
    return any(map(_passes, chain))


def one_line(error: BaseException) -> str:
    """The error's message without line breaks."""
    return " ".join(str(error).split())


def causes(error: BaseException | None) -> list[BaseException]:
    """The error and the errors that led to it."""
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _passes(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in _STATUS_CODES
    if isinstance(error, ConnectionError | TimeoutError) or _classes(error) & _CLASSES:
        return True
    return isinstance(error, OSError) and not isinstance(error, _FINAL) and _MESSAGE.search(str(error)) is not None


def _status(error: BaseException) -> int | None:
    """The status of the HTTP response that the error is about; None for other errors."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _classes(error: BaseException) -> set[str]:
    """The names of the error's class and its base classes."""
    return {kind.__name__ for kind in type(error).__mro__}
