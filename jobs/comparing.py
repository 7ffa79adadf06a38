"""`closelook.compare`: runs methods on a model and data, and compares them by the tests of the report."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from closelook.evaluation.benchmark.sources.own import as_text
from closelook.explaining.opening import AUTO
from closelook.jobs.commands.init import DEMO_TASKS, first_record, name_of, task_of_samples, usual_methods
from closelook.jobs.commands.roots.runs import summaries
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.config.file import describe
from closelook.jobs.plan.models import ResolvedModel, resolve
from closelook.jobs.results import Run, load
from closelook.jobs.store import Store
from closelook.jobs.tested import Tested
from closelook.lrp_core.records.types import UserError
from closelook.progress import shown
from closelook.versions import extra_of

if TYPE_CHECKING:
    import pandas as pd

STAGES = ("prepare", "attribute", "evaluate", "perturb", "report")
DATA = "data"  # name of the task when the caller passes samples
SHOWN = ("pg", "delta_area")  # metrics that the repr shows


@dataclass(frozen=True, repr=False)
class Comparison:
    """The comparison of methods on the samples that all of them explain, by the tests of the report of a run."""

    run: Run
    failures: tuple[str, ...] = ()  # one message for each part of the run that is not complete

    @cached_property
    def means(self) -> pd.DataFrame:
        """One row for each metric and method: mean, ends of the 95 % interval, number of the method's group."""
        return self.run.means()

    @cached_property
    def differences(self) -> pd.DataFrame:
        """One row for each metric and pair of methods: the difference of their means, ends of its 95 % interval, p.

        p is adjusted for all pairs of methods; `smallest` is the difference that these samples would detect in 4 of 5
        cases.
        """
        return self.run.differences()

    @cached_property
    def groups(self) -> pd.DataFrame:
        """One row for each metric and group of methods, the best first.

        No method is shown to be better than a method of its own group or of a group before it.
        """
        return self.run.groups()

    @property
    def report(self) -> str:
        """The path or URL of the report's first page."""
        return self.run.store.url("report/index.html")

    def __repr__(self) -> str:
        lines = [f"<Comparison in {self.run.store.root}"]
        for test in self.run.tests:
            metrics = [metric for metric in test.comparison.metrics if metric in SHOWN]
            lines += [f"  {_title(test, metric)}: {_groups(test, metric)}" for metric in metrics]
        return "\n".join([*lines, *(f"  not complete: {failure}" for failure in self.failures)]) + ">"

    def _repr_html_(self) -> str:
        shown = self.means[self.means["metric"].isin(SHOWN)]
        columns = [name for name in shown.columns if shown[name].astype(str).str.len().any()]
        return shown[columns].to_html(index=False, na_rep="–", float_format=lambda value: f"{value:.1f}")


def _title(test: Tested, metric: str) -> str:
    """The model, task, number of samples and metric of a comparison, in words."""
    way = f" of {test.explained} by {test.way}" if test.way else ""
    return f"{test.model} on {test.task}, {test.comparison.n} samples, {metric}{way}"


def _groups(test: Tested, metric: str) -> str:
    """The groups of methods with their means, and the smallest difference that these samples would detect, in words."""
    lines = []
    for number, group in enumerate(test.groups(metric), start=1):
        values = [f"{name} {test.comparison.mean[test.comparison.at(name, metric)]:.1f}" for name in group]
        lines.append(f"{number}. {', '.join(values)}")
    if test.comparison.smallest is None:
        return "; ".join(lines)
    smallest = float(test.comparison.smallest[test.comparison.metrics.index(metric)])
    power = f" (differences from {smallest:.1f} are told four times in five)" if isfinite(smallest) else ""
    return "; ".join(lines) + power


def compare(
    model: str | PathLike[str],
    data: Any = None,
    methods: str | Sequence[str | Mapping[str, Any]] | None = None,
    *,
    root: str | PathLike[str] | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    faithfulness: bool = True,
    dtype: str = "float32",
    device: str = AUTO,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
) -> Comparison:
    """Compare methods on samples: by how well relevance finds evidence, and by the effect of removing tokens.

        closelook.compare("demo/gpt2", "mine.jsonl", ["attnlrp", "lrp", "random"]).differences

    `model` is an id or folder: workers open it. `data` is a file or folder of samples as the README describes them, a
    pandas frame or a list of such rows, or settings of tasks as in a config, such as `{"sva": {"source": "demo"}}`;
    None: a task of the demo. `columns` gives the file's name for each known column, and at most `limit` samples are
    read. `methods` are names, or names with options as in a config; None: the cheap and stable methods. `faithfulness`
    adds deletion and insertion curves, and `resamples` is the number of the bootstrap's.

    This is a run as by the command line, computed by Ray workers on this machine. The folder `root` keeps its results,
    and the same call resumes it. Without `root`, results are in a temporary folder that is removed together with the
    returned object.

    Raises UserError if the run is impossible, or nothing can be compared.
    """
    _check_ray()
    with _root(root) as folder:
        store = Store(folder)
        store.create()
        settings = {"name": name_of(str(model)), "id": str(model), "dtype": dtype}
        resolved = resolve(_model_config(settings))
        chosen = [methods] if isinstance(methods, str) else methods
        usual = [record.name for record in usual_methods(resolved.capabilities)]
        keys: dict[str, Any] = {"name": "compare", "device": device, "seed": seed, "models": [settings]}
        keys["tasks"] = _tasks(data, resolved, store, columns, limit)
        keys |= {"methods": list(chosen or usual), "report": {"resamples": resamples}}
        keys["perturb"] = {"measures": ["areas"]} if faithfulness else None
        failures = _computed(keys, store, progress)
        compared = Comparison(load(store.root), failures)
        if not compared.run.tests:
            why = failures[0] if failures else "no method has scores or curves: give evidence, or leave faithfulness on"
            raise UserError(f"nothing can be compared: {why}")
    if root is None:
        weakref.finalize(compared, shutil.rmtree, folder, ignore_errors=True)
    return compared


def _computed(keys: dict[str, Any], store: Store, progress: bool | None) -> tuple[str, ...]:
    """Compute all stages of the run with these config `keys`. Returns the reasons of what failed."""
    failures: list[str] = []
    with shown(progress) as tell:
        config = RunConfig.load(keys, store.root, ())
        for done, summary in enumerate(summaries(config, store, STAGES, 0.0, lambda line: None), start=1):
            tell("stages", min(done, len(STAGES)), len(STAGES))
            failures += summary.failures
    return tuple(failures)


@contextmanager
def _root(root: str | PathLike[str] | None) -> Iterator[str]:
    """The folder of the run: `root`, or a temporary folder, which is removed if the block raises an error."""
    if root is not None:
        yield str(root)
        return
    folder = tempfile.mkdtemp(prefix="closelook-compare-")
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_ray() -> None:
    """Raise UserError if Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(f"runs need Ray: pip install 'closelook[{extra_of('ray') or 'run'}]'") from None


def _model_config(settings: dict[str, Any]) -> ModelConfig:
    """The model of these settings. Raises UserError, in one line, for a value that it cannot have."""
    try:
        return ModelConfig.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"`model`: {describe(error, settings, ModelConfig)}") from None


def _tasks(
    data: Any, resolved: ResolvedModel, store: Store, columns: Mapping[str, str] | None, limit: int | None
) -> dict[str, Any]:
    """The config's `tasks` for the argument `data` of `compare`: None, settings of tasks, a file, or rows in memory.

    The first row tells whether samples have evidence. Raises UserError for data that are no samples.
    """
    limited = {} if limit is None else {"limit": limit}
    if data is None:
        return {DEMO_TASKS[resolved.output]: {"source": "demo", **limited}}
    if isinstance(data, Mapping):
        return {name: {**settings, **limited} for name, settings in data.items()}
    path = str(data) if isinstance(data, str | PathLike) else _written(data, store)
    columns = columns or {}
    has_evidence = first_record(Path(path)).get(columns.get("evidence", "evidence")) not in (None, "", [])
    return {DATA: {**task_of_samples(path, resolved.output, columns, has_evidence), **limited}}


def _written(data: Any, store: Store) -> str:
    """Write rows in memory to a file in the root; returns its path. Raises UserError if `data` is no frame or list."""
    rows = data
    if hasattr(data, "iterrows"):  # a frame, whose cells may be arrays, times, and missing values of several kinds
        rows = json.loads(data.to_json(orient="records", double_precision=15, date_format="iso"))
    if isinstance(rows, str | bytes | Set) or not isinstance(rows, Iterable):
        raise UserError(f"`data` is a file, a folder, a frame or a list of rows, not a {type(data).__name__}")
    lines = [json.dumps(row, ensure_ascii=False, default=as_text) for row in _rows(rows)]
    if "://" in store.root:
        raise UserError(
            f"rows in memory are written into the root: give `root` as a path, not {store.root}, or write the rows to "
            "a file and give its path"
        )
    store.write_bytes("data.jsonl", "\n".join([*lines, ""]).encode())
    return str(Path(store.root) / "data.jsonl")


def _rows(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Rows as mappings, without values that are missing in a frame; a string becomes a row with this text."""
    for row in rows:
        if isinstance(row, str):
            yield {"text": row}
        elif isinstance(row, Mapping):
            yield {name: value for name, value in row.items() if value is not None and value == value}
        else:
            raise UserError(f"a row of `data` is a text or a mapping of columns, not a {type(row).__name__}")
