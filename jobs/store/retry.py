"""Retries of calls to a store or a hub after transient errors, with ever longer waits.

Ray Data retries the reads that it makes itself (`DataContext.retried_io_errors`); this is for all others.
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
STORE_PATIENCE_S = 120.0  # object stores throttle for seconds; a private server restarts within a minute
HUB_PATIENCE_S = 20.0  # shorter: a machine may have no access to the hub at all
HUB_COUNTS_S = 600.0  # after status 429, since the hub limits requests per five minutes
_WORTH_A_WARNING_S = 4.0

_STATUS_CODES = (408, 409, 429, 500, 502, 503, 504)  # 409: S3 met another write of the same file
#: Transient errors by their message, from pyarrow's file systems, transformers and the hub; capitals: AWS and Google.
_MESSAGE = re.compile(
    r"SLOW_?DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|NETWORK_CONNECTION|REQUEST_TIMEOUT|THROTTL|RESOURCE_EXHAUSTED"
    r"|\bUNAVAILABLE\b|DEADLINE_EXCEEDED|HTTP status (?:408|409|429|500|502|503|504)\b|\b429\b.*Too Many Requests"
    r"|connection (?:reset|aborted|refused)|broken pipe|timed? ?out|temporarily unavailable",
    re.IGNORECASE,
)
#: Transient errors of the hub's HTTP client by class name, since it may be one of several packages.
_CLASSES = {"TimeoutException", "NetworkError", "RemoteProtocolError"}
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)

_log = logging.getLogger(__name__)


class StillUnavailable(OSError):
    """A transient error that did not pass in time. The work that needed the call fails; a later run may succeed."""


def retried(call: Callable[[], T], patience_s: float = STORE_PATIENCE_S) -> T:
    """The result of `call`, which must be safe to repeat.

    After a transient error it is called again. Raises StillUnavailable if there still is one after `patience_s` seconds
    (HUB_COUNTS_S for status 429), and any other error at once.
    """
    begun = time.monotonic()
    wait_s, tries = FIRST_WAIT_S, 0
    first = ""  # the first error's message
    while True:
        tries += 1
        try:
            return call()
        except Exception as error:
            if not is_passing(error):
                raise
            reason = one_line(error) or type(error).__name__
            first = first or reason
            passed_s = time.monotonic() - begun
            too_many = any(_status(cause) == 429 for cause in causes(error))
            if passed_s >= (HUB_COUNTS_S if too_many else patience_s):
                tried = f"tried {tries} times in {passed_s:.0f} s; this may pass: run again later"
                if first != reason:
                    tried = f"at first: {first}; {tried}"
                raise StillUnavailable(f"{reason} ({tried})") from error
        pause_s = wait_s * random.uniform(0.5, 1)  # workers that failed together should not return together
        if pause_s >= _WORTH_A_WARNING_S:
            _log.warning("%s; trying again in %.0f s", reason, pause_s)
        time.sleep(pause_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def is_passing(error: BaseException) -> bool:
    """True if the error is transient: the server is busy, restarts or was not reached, so a later call may succeed."""
    chain = causes(error)
    for cause in chain:
        # It was tried long enough, or the hub's client is set to be offline, which it reports as a ConnectionError.
        if isinstance(cause, StillUnavailable) or "OfflineModeIsEnabled" in _classes(cause):
            return False
    return any(map(_passes, chain))


def one_line(error: BaseException) -> str:
    """The error's message without line breaks."""
    return " ".join(str(error).split())


def causes(error: BaseException | None) -> list[BaseException]:
    """The error, then its explicit causes (`raise ... from cause`), the latest first.

    An error that was merely being handled when this one was raised is no cause: a missing file does not pass because it
    was looked for while a connection failed.
    """
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__
    return chain


def _passes(error: BaseException) -> bool:
    """True if the error is transient by its HTTP status, class or message, its causes aside."""
    status = _status(error)
    if status is not None:
        return status in _STATUS_CODES
    if isinstance(error, ConnectionError | TimeoutError) or _classes(error) & _CLASSES:
        return True
    return isinstance(error, OSError) and not isinstance(error, _FINAL) and _MESSAGE.search(str(error)) is not None


def _status(error: BaseException) -> int | None:
    """The status of the HTTP response that the error reports; None if it reports none."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _classes(error: BaseException) -> set[str]:
    """The names of the error's class and its base classes."""
    return {kind.__name__ for kind in type(error).__mro__}
