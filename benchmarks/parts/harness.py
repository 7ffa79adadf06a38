"""The common parts of all benchmarks: options, interleaved timing, peak memory, medians, a table and JSON.

Needs only torch, lrp_core and the standard library, so that `python -m benchmarks lrp` runs on a GPU machine without
other packages; only `--root`, which adds the results to a store as Parquet, needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from jobs.bench.record import Results, device_name, field_of, met, seconds_of, summary
from lrp_core.device.memory import peak_memory
from lrp_core.opening.loading import DTYPES

GIB = 2**30
Runs = Mapping[str, Callable[[], object]]  # computations to time, by name
Facts = Mapping[str, Any]  # columns of a row that say what was measured
Seconds = dict[str, list[float]]  # by run: the seconds of each repeat
SCRATCH = "closelook-bench-"  # prefix of temporary folders
#: Options whose value is a path on this machine, with the word that replaces it in the recorded command ("": left out).
_PATHS = {
    "--json": "",
    "--root": "",
    "--keep": "",
    "--undisturbed": "",
    "--data": "DIR",
    "--lxt": "PYTHON",
    "--captum": "PYTHON",
    "--inseq": "PYTHON",
}


@dataclass(frozen=True)
class RowsInMemory:
    """A computation whose memory grows with the rows that it works on, to be extrapolated to many rows.

    Both functions are called with a new folder, the number of rows and further facts, each in a process of its own.
    """

    prepare: Callable[..., Any]  # writes the rows into the folder
    measure: Callable[..., Any]  # the computation; the memory of its process is measured
    rows: int  # the memory is extrapolated to so many rows
    target_gib: float
    subject: str  # what rows are, as it is printed
    process: str  # which process it is, as it is printed


@dataclass
class Bench(Results):
    """The results of a benchmark, with the options of its command."""

    chosen: argparse.Namespace = field(default_factory=argparse.Namespace)  # the options

    def timed(self, runs: Runs, repeats: int, facts: Facts, column: str = "way", measure: str = "") -> Seconds:
        """Time the runs in turn, and add a row for each: with `facts`, its name in `column`, its summary in `measure`.

        Without `measure` the median and quartiles are columns of the row itself. Returns the seconds.
        """
        seconds = interleave(runs, repeats)
        for name, taken in seconds.items():
            spread = summary(taken)
            measured = {measure: spread} if measure else {**spread, "unit": "s"}
            self.row(**facts, **{column: name}, **measured)
        return seconds

    def peaks(self, runs: Runs, device: torch.device, facts: Facts | None = None) -> list[int]:
        """Measure the peak bytes of each run, and add a row for each with `facts`; returns the bytes.

        Without `facts` they are added to the last rows, which `timed` has added for the same runs.
        """
        measured = [peak_bytes(run, device) for run in runs.values()]
        last = self.rows[-len(runs) :]
        for name, row, peak in zip(runs, last, measured, strict=True):
            if facts is None:
                row["peak_bytes"] = peak
            else:
                self.row(**facts, way=name, peak_bytes=peak)
        return measured

    def memory_of_rows(self, memory: RowsInMemory, sizes: Sequence[int], **facts: Any) -> None:
        """Measure the memory of a computation for two numbers of rows, and add the GiB extrapolated to many rows."""
        peaks = []
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
                in_own_process(memory.prepare, folder, size, *facts.values())
                peak_bytes, seconds = in_own_process(memory.measure, folder, size, *facts.values())
            peaks.append(peak_bytes)
            self.row(what="many rows", rows=size, **facts, peak_bytes=peak_bytes, seconds=seconds)
            print(f"{size} {memory.subject}: {seconds:.1f} s, {peak_bytes / GIB:.2f} GiB at most", flush=True)
        line = statistics.linear_regression(sizes, peaks)
        many_gib = (line.intercept + line.slope * memory.rows) / GIB
        details = {"measured_rows": sizes[-1], "bytes_a_row": round(line.slope, 1)}
        name = f"{memory.rows} {memory.subject}: GiB of {memory.process}"
        self.ratio(name, many_gib, memory.target_gib, "lower", **details)

    def finish(self) -> dict[str, Any]:
        """Print the table of ratios, write JSON and Parquet if the options ask for them, and return the JSON."""
        result = self.result()
        print(table(result))
        if self.chosen.json is not None:
            file = Path(self.chosen.json)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1) + "\n")
        if self.chosen.root is not None:
            from jobs.bench.storage import save

            print(f"added to {save(result, self.chosen.root)}")
        return result


def table(result: Mapping[str, Any]) -> str:
    """The table of a result's ratios as text: value, target, and met or missed; of small shapes the values only."""
    ratios = result["ratios"]
    width = max(5, *map(len, ratios)) if ratios else 5
    lines = [f"bench {result['bench']} on {result['device']}"]
    if result["quick"]:
        lines.append("small shapes (--quick): this checks that it runs; no target applies")
    else:
        lines.append(f"{'ratio':{width}}  {'value':>9}  {'target':>9}")
    for name, ratio in ratios.items():
        line = f"{name:{width}}  {ratio['value']:9.3f}"
        if not result["quick"]:
            sign = "<=" if ratio["better"] == "lower" else ">="
            verdict = "met" if met(ratio) else "MISSED"
            line += f"  {sign} {ratio['target']:6.2f}  {verdict}"
        lines.append(line)
    return "\n".join(lines)


# measuring


def interleave(runs: Runs, repeats: int, warmup: int = 1) -> Seconds:
    """Time the runs in turn (A B A B ...), so that a machine whose speed drifts disturbs all alike.

    A run that returns a float has timed itself, and the float counts; other runs are timed by the wall clock. The first
    `warmup` turns do not count.
    """
    seconds: Seconds = {name: [] for name in runs}
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


def in_own_process(function: Callable[..., Any], *arguments: Any) -> tuple[int, float]:
    """Call `function` in a new process: (the process's largest resident memory in bytes, the seconds of the call)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measured, function, arguments).result()


def _measured(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[int, float]:
    """The result of `in_own_process`, measured inside the new process."""
    seconds = seconds_of(partial(function, *arguments))
    return _resident_bytes(), seconds


def _resident_bytes() -> int:
    """The largest resident memory of this process, in bytes.

    It is read from /proc if possible, since on Linux getrusage of a spawned process includes its parent's memory.
    """
    status = field_of(Path("/proc/self/status"), "VmHWM")
    if status is not None:
        return 1024 * int(status.split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# options


class Options(argparse.ArgumentParser):
    """Command line options of a benchmark. A mistake in them ends the program with a one-line message.

    Of the parsed options, `command` is the command that repeats the measurement, `on_gpu` is True on a GPU.
    """

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog, description=description)
        self.set_defaults(device="cpu")
        self._usual: dict[str, tuple[int, int, int]] = {}

    def number(self, option: str, usual: int, about: str, quick: int | None = None, on_gpu: int | None = None) -> None:
        """Add an option for a positive number, with other defaults for --quick and on a GPU."""
        defaults = f"default {usual}"
        defaults += f", on a GPU {on_gpu}" if on_gpu else ""
        defaults += f"; quick {quick}" if quick else ""
        added = self.add_argument(option, type=positive, help=f"{about}; {defaults}")
        self._usual[added.dest] = usual, quick or usual, on_gpu or usual

    def layers(self) -> None:
        """Add --layers, the most layers of each model."""
        self.number("--layers", 4, "of each model, at most", quick=2, on_gpu=128)

    def devices(self, dtypes: bool = True) -> None:
        """Add --device and, with `dtypes`, --dtype."""
        if dtypes:
            self.add_argument("--dtype", default="float32", choices=list(DTYPES))
        self.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the options, add `command` and `on_gpu`, and fill in the defaults of `number` options."""
        words = sys.argv[1:] if args is None else list(args)
        chosen = super().parse_args(words, namespace)
        chosen.command = shlex.join([*self.prog.split(), *_anywhere(words)])
        chosen.on_gpu = chosen.device.startswith("cuda")
        if chosen.on_gpu and not torch.cuda.is_available():
            self.error(f"--device {chosen.device}: torch sees no GPU here")
        values = vars(chosen)
        for name, (usual, quick, on_gpu) in self._usual.items():
            default = quick if chosen.quick else on_gpu if chosen.on_gpu else usual
            values[name] = values[name] or default
        return chosen

    def begin(self, arguments: Sequence[str] | None) -> Bench:
        """Parse the options and return the benchmark, which has no results yet."""
        chosen = self.parse_args(arguments)
        return Bench(self.prog.split()[-1], device_name(chosen.device), chosen.command, chosen.quick, chosen=chosen)

    def error(self, message: str) -> NoReturn:
        """End the program with a one-line message and exit code 2."""
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")


def _anywhere(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command without paths of this machine, so that it can be repeated elsewhere."""
    remaining = iter(words)
    for word in remaining:
        option, equals, _ = word.partition("=")
        if option not in _PATHS:
            yield word
            continue
        if not equals:
            next(remaining, None)
        if _PATHS[option]:
            yield from (option, _PATHS[option])


def parser(name: str, description: str | None) -> Options:
    """The options of the benchmark `name`, with those that all benchmarks have."""
    options = Options(f"closelook bench {name}", description)
    options.add_argument("--quick", action="store_true", help="small shapes, few repeats: checks that it runs")
    options.add_argument("--json", metavar="FILE", help="write the result there")
    options.add_argument("--root", metavar="DIR", help="add the result to this store (a path or URL) as Parquet")
    return options


def positive(text: str) -> int:
    """The value of an option that is a positive whole number. Raises ArgumentTypeError for anything else."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)
