"""What every benchmark shares: options, interleaved timing, medians and quartiles, one JSON shape, one table.

Needs nothing but torch and the standard library, so that `python -m jobs.bench.lrp` runs on a bare GPU box; only
`--root`, which adds the results to a store as Parquet, asks for pyarrow.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from jobs.versions import versions

#: Options that name a place on the machine: where results go does not matter, what is measured by its kind.
_PLACES = {"--json": "", "--root": "", "--data": "DIR", "--lxt": "PYTHON"}


@dataclass
class Bench:
    """Results of one benchmark: `rows` are measurements, `ratios` are what is promised.

    A row's floats, its summaries and its fields that end in `_bytes` are measured values. Its other fields say what was
    measured, and how.
    """

    name: str
    device: str
    command: str = ""
    quick: bool = False  # of small shapes, for which targets are not meant: they are not judged
    rows: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, dict[str, Any]] = field(default_factory=dict)

    def row(self, **measured: Any) -> None:
        self.rows.append(measured)

    def ratio(
        self,
        name: str,
        value: float,
        target: float,
        better: str,
        *,
        model: str | None = None,
        geometry: str | None = None,
        **details: Any,
    ) -> None:
        """`better` is "lower" (value at most target) or "higher" (at least).

        A ratio of one model says which: `model` is a config's, `geometry` one with random weights.
        """
        known = {"model": model, "geometry": geometry}
        subjects = {kind: subject for kind, subject in known.items() if subject is not None}
        full = ": ".join([*subjects.values(), name])
        self.ratios[full] = {"value": round(value, 4), "target": target, "better": better, **details, **subjects}

    def result(self) -> dict[str, Any]:
        return {
            "bench": self.name,
            "device": self.device,
            "command": self.command or f"closelook bench {self.name}",
            "quick": self.quick,
            "written": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "versions": versions(),
            "rows": self.rows,
            "ratios": self.ratios,
        }

    def finish(self, chosen: argparse.Namespace) -> dict[str, Any]:
        """Prints the table of ratios, writes JSON and Parquet where they are asked for, and returns the JSON."""
        self.command, self.quick = chosen.command, chosen.quick
        result = self.result()
        print(table(result))
        if chosen.json is not None:
            Path(chosen.json).parent.mkdir(parents=True, exist_ok=True)
            Path(chosen.json).write_text(json.dumps(result, indent=1) + "\n")
        if chosen.root is not None:
            from jobs.bench.storage import save

            print(f"added to {save(result, chosen.root)}")
        return result


def met(ratio: Mapping[str, Any]) -> bool:
    return ratio["value"] <= ratio["target"] if ratio["better"] == "lower" else ratio["value"] >= ratio["target"]


def table(result: Mapping[str, Any]) -> str:
    """Value, target, and met or missed, one line a ratio; of small shapes the value alone."""
    width = max([len(name) for name in result["ratios"]] + [5])
    lines = [f"bench {result['bench']} on {result['device']}"]
    if result["quick"]:
        lines.append("small shapes (--quick): that it runs is checked, and no target")
        return "\n".join([*lines, *(f"{name:{width}}  {one['value']:9.3f}" for name, one in result["ratios"].items())])
    lines.append(f"{'ratio':{width}}  {'value':>9}  {'target':>9}")
    for name, ratio in result["ratios"].items():
        sign = "<=" if ratio["better"] == "lower" else ">="
        verdict = "met" if met(ratio) else "MISSED"
        lines.append(f"{name:{width}}  {ratio['value']:9.3f}  {sign} {ratio['target']:6.2f}  {verdict}")
    return "\n".join(lines)


def interleave(
    runs: Mapping[str, Callable[[], float | None]], repeats: int, warmup: int = 1, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each run, A B A B..., so that a drifting machine disturbs all alike.

    A run that returns a number is timed by itself (its number counts), any other by the clock around it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(warmup + repeats):
        for name, run in runs.items():
            synchronise(device)
            start = time.perf_counter()
            own = run()
            synchronise(device)
            if i >= warmup:
                seconds[name].append(time.perf_counter() - start if own is None else own)
    return seconds


def synchronise(device: str) -> None:
    """Waits for the accelerator; nothing to do on a CPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "q1": values[0], "q3": values[0], "n": len(values)}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "n": len(values)}


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of the ratios of runs that stood side by side."""
    return summary([a / b for a, b in zip(numerator, denominator, strict=True)])


def in_own_process(function: Callable[..., Any], *arguments: Any) -> tuple[int, float]:
    """The largest resident memory (bytes) of a new process that calls `function`, and the seconds of the call.

    Raises RuntimeError when it fails.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measured, args=(function, arguments, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} failed in a process of its own") from None
    finally:
        process.join()


def _measured(function: Callable[..., Any], arguments: Sequence[Any], to: Connection) -> None:
    start = time.perf_counter()
    function(*arguments)
    seconds = time.perf_counter() - start
    to.send((_peak_bytes(), seconds))


def _peak_bytes() -> int:
    """The largest resident memory of this process. Linux counts that of its parent in the usage of a spawned one."""
    status = Path("/proc/self/status")
    if status.is_file():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' * (threads > 1)}"


class Options(argparse.ArgumentParser):
    """Command line options; what is wrong with them is one line. `command` is what to type for the same again."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        chosen = super().parse_args(given, namespace)
        chosen.command = shlex.join([*self.prog.split(), *_anywhere(given)])
        return chosen

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")


def _anywhere(given: Sequence[str]) -> Iterator[str]:
    """The words of a command without the places of this machine."""
    words = iter(given)
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in _PLACES:
            yield word
            continue
        if not equals:
            next(words, None)
        if _PLACES[option]:
            yield from (option, _PLACES[option])


def parser(name: str, description: str) -> Options:
    """The options all benchmarks know."""
    options = Options(f"closelook bench {name}", description=description)
    options.add_argument("--quick", action="store_true", help="small shapes, few repeats: checks that it runs")
    options.add_argument("--json", metavar="FILE", help="write the result there")
    options.add_argument("--root", metavar="DIR", help="add the result to this store (a path or URL) as Parquet")
    return options


def _processor() -> str:
    """The processor's marketing name where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
