"""The common parts of all benchmarks: options, interleaved timing, peak memory, a table and JSON.

Needs only torch, lrp_core and the standard library, so that `python -m benchmarks lrp` runs on a GPU machine without
other packages; only `--root`, which adds the results to a store as Parquet, needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from closelook.jobs.bench.record import Results, device_name, met, seconds_of, summary
from closelook.jobs.geometries import GEOMETRIES
from closelook.lrp_core.device.memory import peak_memory
from closelook.lrp_core.opening.loading import DTYPES

GIB = 2**30
Runs = Mapping[str, Callable[[], object]]  # computations to time, by name


@dataclass
class Bench(Results):
    """The results of a benchmark, with the options of its command. Every row is printed when it is added."""

    chosen: argparse.Namespace = field(default_factory=argparse.Namespace)  # the options

    def row(self, **measured: Any) -> None:
        super().row(**measured)
        print(json.dumps(self.rows[-1]), flush=True)

    def timed(self, runs: Runs, repeats: int, **facts: Any) -> list[list[float]]:
        """Time the runs in turn, and add a row for each; returns the seconds of each run."""
        seconds = interleave(runs, repeats)
        for name, taken in seconds.items():
            self.row(**facts, method=name, wall_s=summary(taken))
        return list(seconds.values())

    def peaks(self, runs: Runs, device: torch.device, **facts: Any) -> list[int]:
        """Measure the peak bytes of each run, and add a row for each; returns the bytes."""
        measured = []
        for name, run in runs.items():
            measured.append(peak_bytes(run, device))
            self.row(**facts, method=name, peak_bytes=measured[-1])
        return measured

    def finish(self) -> dict[str, Any]:
        """Print the table of ratios, write JSON and Parquet if the options ask for them, and return the JSON."""
        result = self.result()
        print(table(result))
        if self.chosen.json is not None:
            file = Path(self.chosen.json)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1) + "\n")
        if self.chosen.root is not None:
            from closelook.jobs.bench.storage import save

            print(f"added to {save(result, self.chosen.root)}")
        return result


def table(result: Mapping[str, Any]) -> str:
    """The table of a result's ratios as text: value, target, and met or missed; of small shapes the values only."""
    lines = [f"bench {result['bench']} on {result['device']}"]
    if result["quick"]:
        lines.append("small shapes (--quick): this checks that it runs; no target applies")
    width = max(map(len, result["ratios"]), default=0)
    for name, ratio in result["ratios"].items():
        line = f"{name:{width}}  {ratio['value']:9.3f}"
        if not result["quick"]:
            sign = "<=" if ratio["better"] == "lower" else ">="
            line += f"  {sign} {ratio['target']:6.2f}  {'met' if met(ratio) else 'MISSED'}"
        lines.append(line)
    return "\n".join(lines)


def interleave(runs: Runs, repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """Time the runs in turn (A B A B ...), so that a machine whose speed drifts disturbs all alike.

    Returns the seconds of each repeat, by run. A run that returns a float has timed itself, and the float counts. The
    first `warmup` turns do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warmup + repeats):
        for name, run in runs.items():
            elapsed = seconds_of(run)
            if turn >= warmup:
                seconds[name].append(elapsed)
    return seconds


def peak_bytes(run: Callable[[], object], device: torch.device | str) -> int:
    """The most bytes that tensors hold during a call of `run`, besides those that exist before it."""
    with peak_memory(device) as peak:
        run()
    return peak.peak_bytes


class Options(argparse.ArgumentParser):
    """Command line options of a benchmark. A mistake in them ends the program with a one-line message."""

    def __init__(self, name: str, description: str | None, parts: Iterable[str]) -> None:
        super().__init__(f"closelook bench {name}", description=description)
        self._usual: dict[str, tuple[Any, Any, Any]] = {}  # of an option: as usual, with --quick, and on a GPU
        self.set_defaults(device="cpu")
        self.add_argument("--quick", action="store_true", help="small shapes, few repeats: checks that it runs")
        self.add_argument("--json", metavar="FILE", help="write the result there")
        self.add_argument("--root", metavar="DIR", help="add the result to this store (a path or URL) as Parquet")
        names = list(parts)
        self.add_argument("--parts", nargs="+", choices=names, default=names, help="what is measured; default all")

    def number(self, option: str, usual: int, about: str, quick: int | None = None, on_gpu: int | None = None) -> None:
        """Add an option for a positive number, with other defaults for --quick and on a GPU."""
        defaults = f"default {usual}"
        defaults += f", on a GPU {on_gpu}" if on_gpu else ""
        defaults += f"; quick {quick}" if quick else ""
        added = self.add_argument(option, type=positive, help=f"{about}; {defaults}")
        self._usual[added.dest] = usual, quick or usual, on_gpu or usual

    def geometries(self, *usual: str) -> None:
        """Add --geometry, the shapes of models to measure, which are `usual` by default."""
        about = f"repeat for several (default {', '.join(usual)})"
        self.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help=about)
        self._usual["geometry"] = usual, usual, usual

    def devices(self, dtypes: bool = True) -> None:
        """Add --device and, with `dtypes`, --dtype."""
        if dtypes:
            self.add_argument("--dtype", default="float32", choices=list(DTYPES))
        self.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")

    def begin(self, arguments: Sequence[str] | None) -> Bench:
        """Parse the options and return the benchmark, which has no results yet."""
        words = sys.argv[1:] if arguments is None else list(arguments)
        chosen = self.parse_args(words)
        chosen.on_gpu = chosen.device.startswith("cuda")
        if chosen.on_gpu and not torch.cuda.is_available():
            self.error(f"--device {chosen.device}: torch sees no GPU here")
        for name, (usual, quick, on_gpu) in self._usual.items():
            default = quick if chosen.quick else on_gpu if chosen.on_gpu else usual
            setattr(chosen, name, getattr(chosen, name) or default)
        # Paths of this machine are left out of the recorded command: it is repeated on others.
        command = re.sub(r" --\w+[ =](?!-)\S*/\S*", "", shlex.join([*self.prog.split(), *words]))
        return Bench(self.prog.split()[-1], device_name(chosen.device), command, chosen.quick, chosen=chosen)

    def error(self, message: str) -> NoReturn:
        """End the program with a one-line message and exit code 2."""
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")


def positive(text: str) -> int:
    """The value of an option that is a positive whole number. Raises ArgumentTypeError for anything else."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)
