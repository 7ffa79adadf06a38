"""The common parts of all benchmarks: options, interleaved timing, peak memory, medians, a table and JSON.

Needs only torch, lrp_core and the standard library, so that `python -m benchmarks lrp` runs on a GPU machine without
other packages; only `--root`, which adds the results to a store as Parquet, needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, NoReturn

import torch

from closelook.jobs.bench.record import Results, device_name, field_of, met, seconds_of, summary
from closelook.jobs.geometries import GEOMETRIES
from closelook.lrp_core.device.memory import is_out_of_memory, peak_memory
from closelook.lrp_core.opening.loading import DTYPES

MIB, GIB = 2**20, 2**30
Runs = Mapping[str, Callable[[], object]]  # computations to time, by name
Facts = Mapping[str, Any]  # columns of a row
Curve = Mapping[float, float]  # measured numbers by what grows, such as tokens; both are positive
Seconds = dict[str, list[float]]  # by run: the seconds of each repeat
SCRATCH = "closelook-bench-"  # prefix of temporary folders
WALL, PROCESSOR = "seconds", "processor seconds"  # two clocks: other processes disturb the second less
_FIELDS = {WALL: "wall_s", PROCESSOR: "processor_s"}  # of rows, by clock
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


@dataclass
class Bench(Results):
    """The results of a benchmark, with the options of its command. Every row is printed when it is added."""

    chosen: argparse.Namespace = field(default_factory=argparse.Namespace)  # the options

    def row(self, **measured: Any) -> None:
        super().row(**measured)
        print(", ".join(starmap(_shown, self.rows[-1].items())), flush=True)

    def timed(self, runs: Runs, repeats: int, **facts: Any) -> dict[str, list[list[float]]]:
        """Time the runs in turn, and add a row for each; returns the seconds of each run, by clock.

        The clocks are wall time and, on a CPU, the processor time of all threads.
        """
        processor: Seconds = {name: [] for name in runs}
        wall = interleave({name: partial(_clocked, run, processor[name]) for name, run in runs.items()}, repeats)
        of_clocks = {WALL: list(wall.values())}
        if not torch.cuda.is_initialized():
            of_clocks[PROCESSOR] = [taken[-repeats:] for taken in processor.values()]  # without the warm-up
        for at, name in enumerate(runs):
            measured = {_FIELDS[clock]: summary(seconds[at]) for clock, seconds in of_clocks.items()}
            self.row(**facts, method=name, **measured)
        return of_clocks

    def peaks(self, runs: Runs, device: torch.device, **facts: Any) -> list[int]:
        """Measure the peak bytes of each run, and add a row for each; returns the bytes."""
        measured = []
        for name, run in runs.items():
            measured.append(peak_bytes(run, device))
            self.row(**facts, method=name, peak_bytes=measured[-1])
        return measured

    def peak_that_fits(self, run: Callable[[], object], device: torch.device, **facts: Any) -> int | None:
        """The peak bytes of a run; None, and a row with `facts` that says so, if there is too little memory for it."""
        try:
            return peak_bytes(run, device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.row(**facts, state="out of memory")
            return None
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()

    def by_rows(
        self,
        prepare: Callable[..., Any],
        measure: Callable[..., Any],
        sizes: Sequence[int],
        note: Callable[[str], Facts] = lambda folder: {},
        **facts: Any,
    ) -> list[dict[str, Any]]:
        """Measure a computation for several numbers of rows, and return the rows that are added for them.

        `prepare` and `measure` are called with a new folder, the number of rows and the values of `facts`, each in a
        process of its own; the memory and the seconds of the latter are measured. `note(folder)` gives further columns.
        """
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
                in_own_process(prepare, folder, size, *facts.values())
                peak, seconds = in_own_process(measure, folder, size, *facts.values())
                self.row(what="many rows", rows=size, **facts, peak_bytes=peak, seconds=seconds, **note(folder))
        return self.rows[-len(sizes) :]

    def extrapolate(
        self, name: str, rows: Sequence[Facts], to: int, unit: int, target: float, column: str = "peak_bytes"
    ) -> None:
        """Add a ratio: the bytes in `column` of `rows`, in units of `unit` bytes, at `to` rows, by a straight line."""
        line = statistics.linear_regression([row["rows"] for row in rows], [row[column] for row in rows])
        value = (line.intercept + max(0.0, line.slope) * to) / unit
        details = {"measured_rows": rows[-1]["rows"], "bytes_a_row": round(line.slope, 1)}
        self.ratio(name, value, target, "lower", **details)

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


def _shown(column: str, value: Any) -> str:
    """An entry of a row for the screen: a summary by its median, bytes in MiB."""
    if isinstance(value, Mapping):
        value = value.get("median", value)
    if column.endswith("_bytes"):
        return f"{column.removesuffix('_bytes')} {value / MIB:.1f} MiB"
    return f"{column} {value:.4g}" if isinstance(value, float) else f"{column} {value}"


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


def _clocked(run: Callable[[], object], processor: list[float]) -> object:
    """The result of `run`; the processor seconds that it takes are appended to `processor`."""
    start = time.process_time()
    result = run()
    processor.append(time.process_time() - start)
    return result


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


def exponent_of(curve: Curve) -> float | None:
    """The exponent of the power law `factor * x ** exponent` that is fitted by least squares to the logarithms.

    None if the curve has fewer than two points.
    """
    if len(curve) < 2:
        return None
    return statistics.linear_regression([math.log(x) for x in curve], [math.log(y) for y in curve.values()]).slope


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
        self._usual: dict[str, tuple[Any, Any, Any]] = {}  # the default of an option, with --quick, and on a GPU

    def number(self, option: str, usual: int, about: str, quick: int | None = None, on_gpu: int | None = None) -> None:
        """Add an option for a positive number, with other defaults for --quick and on a GPU."""
        defaults = f"default {usual}"
        defaults += f", on a GPU {on_gpu}" if on_gpu else ""
        defaults += f"; quick {quick}" if quick else ""
        added = self.add_argument(option, type=positive, help=f"{about}; {defaults}")
        self._usual[added.dest] = usual, quick or usual, on_gpu or usual

    def geometries(self, *usual: str, among: Iterable[str] = GEOMETRIES) -> None:
        """Add --geometry, the shapes of models to measure, which are `usual` by default."""
        about = f"repeat for several (default {', '.join(usual)})"
        self.add_argument("--geometry", action="append", choices=sorted(among), help=about)
        self._usual["geometry"] = usual, usual, usual

    def layers(self) -> None:
        """Add --layers, the most layers of each model."""
        self.number("--layers", 4, "of each model, at most", quick=2, on_gpu=128)

    def devices(self, dtypes: bool = True) -> None:
        """Add --device and, with `dtypes`, --dtype."""
        if dtypes:
            self.add_argument("--dtype", default="float32", choices=list(DTYPES))
        self.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the options, add `command` and `on_gpu`, and fill in the defaults of `number` and `geometries`."""
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
