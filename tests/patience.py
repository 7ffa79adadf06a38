"""The longest time that tests wait: far above what any machine needs, so that only endless waits reach it."""

import time
from collections.abc import Callable

PATIENCE_S = 900.0


def wait_for(condition: Callable[[], object], describe: Callable[[], str] = str) -> None:
    """Wait until `condition()` is true. Fails with `describe()` where that takes longer than `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.05)
