"""Progress bars on the screen and in notebooks, which appear if work takes longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from closelook import terminal
from closelook.lrp_core.device.progress import watched_by

Tell = Callable[[str, int, int], None]  # called with the name of a unit, how many are done, and how many there are
_QUIET_S = 1.0  # seconds before a bar is shown


@contextmanager
def shown(show_bars: bool | None = None) -> Iterator[Tell]:
    """Yield a function that reports progress, which is drawn as a bar for each unit until the end of the block.

    The rows of forward passes that methods run are reported too. `show_bars` None: draw bars on a terminal, or in a
    notebook where ipywidgets is installed (without it, rich draws a warning there instead); True: always; False: never.
    """
    console = terminal.errors
    can_draw = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    if show_bars and not can_draw:
        console = Console(stderr=True, force_terminal=True, force_jupyter=False)
    visible = can_draw if show_bars is None else show_bars
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True, disable=not visible)
    tasks: dict[str, TaskID] = {}
    begun = time.monotonic()

    def tell(unit: str, done: int, total: int) -> None:
        if time.monotonic() - begun < _QUIET_S:
            return
        if unit not in tasks:
            bars.start()
            tasks[unit] = bars.add_task(unit)
        bars.update(tasks[unit], completed=done, total=total)

    try:
        with watched_by(partial(tell, "forwards")):
            yield tell
    finally:
        bars.stop()
