"""The results of a benchmark, with the clock and the statistics that they need.

Needs only torch and the standard library: benchmarks run on GPU machines where nothing else is installed.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import torch

from closelook.versions import versions


@dataclass
class Results:
    """Results of one benchmark: `rows` are measurements, `ratios` are compared with targets.

    A row's floats, its summaries and its fields that end in `_bytes` are measured values. Its other fields say what was
    measured, and how.
    """

    name: str
    device: str
    command: str = ""
    quick: bool = False  # small shapes, for which targets are not meant: ratios are not judged
    rows: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The model that rows and ratios are about: {"model": name in a config} or {"geometry": name, random weights}.
    subject: Mapping[str, str] = field(default_factory=dict)

    def about(self, **subject: str) -> Self:
        """The same results, to which rows and ratios of this model are added."""
        return replace(self, subject=subject)

    @property
    def title(self) -> str:
        """The name of the model, for printing."""
        return next(iter(self.subject.values()))

    def row(self, **measured: Any) -> None:
        """Add a row of measured values."""
        self.rows.append({**self.subject, **measured})

    def ratio(self, name: str, value: float, target: float, better: str, **details: Any) -> None:
        """Add a number and its target: `better` is "lower" (at most the target) or "higher" (at least)."""
        full = ": ".join([*self.subject.values(), name])
        promise = {"value": round(value, 4), "target": target, "better": better}
        self.ratios[full] = {**promise, **details, **self.subject}

    def paired(
        self,
        name: str,
        pair: Iterable[Sequence[float]],
        target: float,
        better: str = "lower",
        **details: Any,
    ) -> None:
        """Add the median ratio of two runs that were measured in turn, first over second, with its quartiles."""
        ratio = paired_ratio(*pair)
        median = ratio.pop("median")
        self.ratio(name, median, target, better, **ratio, **details)

    def result(self) -> dict[str, Any]:
        """The JSON of the results."""
        command = self.command or f"closelook bench {self.name}"
        written = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        facts = {"bench": self.name, "device": self.device, "command": command, "quick": self.quick}
        return {**facts, "written": written, "versions": versions(), "rows": self.rows, "ratios": self.ratios}


def met(ratio: Mapping[str, Any]) -> bool:
    """True if the value of a ratio reaches its target."""
    value, target = ratio["value"], ratio["target"]
    return value <= target if ratio["better"] == "lower" else value >= target


def seconds_of(run: Callable[[], object]) -> float:
    """The seconds that one call of `run` takes, until all its work on the GPU is done.

    If `run` returns a float, that counts instead.
    """
    synchronise()
    start = time.perf_counter()
    result = run()
    synchronise()
    elapsed = time.perf_counter() - start
    return result if isinstance(result, float) else elapsed


def synchronise() -> None:
    """Wait until the GPU has done its work, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles and number of values."""
    if len(values) < 2:
        return {"median": values[0], "q1": values[0], "q3": values[0], "n": len(values)}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "n": len(values)}


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of the ratios of two runs that were measured in turn."""
    return summary([a / b for a, b in zip(numerator, denominator, strict=True)])


def device_name(device: str) -> str:
    """The name of the GPU, or of the processor with the number of threads."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    processor = field_of(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()
    return f"{processor}, {threads} thread{'s' * (threads > 1)}"


def field_of(file: Path, name: str) -> str | None:
    """The value of the first line `name: value` in a file; None if there is no such file or line."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
