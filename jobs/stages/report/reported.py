"""A run as its report shows it: what several parts of the report read is read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluation.report.controls import verdicts
from evaluation.report.faithfulness import Drawn
from evaluation.report.leaderboard import Beyond, method_seconds
from evaluation.report.results import Results
from evaluation.schema import RUNTIME
from evaluation.scoring.controls import ControlRow
from evaluation.scoring.statistics import Comparison
from jobs.plan.node import Run
from jobs.products.control_rows import control_rows
from jobs.stages.report.curves import drawn_curves


@dataclass(frozen=True)
class Reported:
    """A run with its scores, and what parts share."""

    run: Run
    results: Results

    @cached_property
    def drawn(self) -> list[Drawn]:
        """The areas and mean curves of every task, model and perturbation."""
        return list(drawn_curves(self.run, self.results))

    @cached_property
    def controls(self) -> list[ControlRow]:
        """The results of all controls that are done."""
        return list(control_rows(self.run))

    @property
    def beyond(self) -> Beyond:
        """Faithfulness, of the first way in which tokens go, and seconds of methods, for the first screen."""
        faithfulness: dict[tuple[str, str], Comparison] = {}
        for drawn in self.drawn:
            if drawn.areas.comparison is not None:
                faithfulness.setdefault((drawn.model, drawn.task), drawn.areas.comparison)
        return Beyond(faithfulness, method_seconds(self.results, self.runtimes), verdicts(self.controls))

    @cached_property
    def runtimes(self) -> list[dict[str, Any]]:
        """The measured passes of every batch: rows of the runtime schema with their model, task and dtype."""
        store, rows = self.run.store, []
        for (model, task), dtypes in self.results.dtypes.items():
            for dtype in dtypes:
                files = store.files(store.runtime(model, task, dtype))
                place = {"model": model, "task": task, "dtype": dtype}
                rows += [row | place for row in store.read(files, RUNTIME).to_pylist()] if files else []
        return rows
