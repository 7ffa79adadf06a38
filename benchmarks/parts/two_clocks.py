"""Seconds of computations by two clocks: wall time, and processor time, which other processes disturb less."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.parts.harness import Bench, Facts, Runs, interleave
from jobs.bench.record import summary

WALL, PROCESSOR = "seconds", "processor seconds"
FIELDS = {WALL: "wall_s", PROCESSOR: "processor_s"}  # of rows


def on_two_clocks(bench: Bench, runs: Runs, device: torch.device, facts: Facts) -> dict[str, list[list[float]]]:
    """The seconds of each run, by clock; runs take turns. On a GPU, only wall time is measured.

    Adds a row to the results for each run, with `facts`.
    """
    processor: dict[str, list[float]] = {name: [] for name in runs}
    both: Runs = {name: partial(_timed, run, processor[name]) for name, run in runs.items()}
    wall = interleave(both, bench.chosen.repeats)
    of_clocks = {WALL: list(wall.values())}
    if device.type == "cpu":
        of_clocks[PROCESSOR] = [taken[-bench.chosen.repeats :] for taken in processor.values()]  # without the warm-up
    for at, name in enumerate(runs):
        measured = {FIELDS[clock]: summary(seconds[at]) for clock, seconds in of_clocks.items()}
        bench.row(**facts, method=name, **measured)
    return of_clocks


def _timed(run: Callable[[], object], processor: list[float]) -> None:
    """Calls `run` once, and appends the processor seconds of all threads to `processor`."""
    start = time.process_time()
    run()
    processor.append(time.process_time() - start)
