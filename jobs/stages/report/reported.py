"""A run as its report shows it: what several parts of the report read is read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluation.report.overview.leaderboard import method_seconds
from evaluation.report.overview.standings import Beyond
from evaluation.report.results import Results
from evaluation.report.sections.controls import verdicts
from evaluation.report.sections.faithfulness import CurveSet
from evaluation.schema import RUNTIME
from evaluation.scoring.controls import ControlRow
from evaluation.scoring.faithfulness.flips import CONTRAST, TARGET_LOGIT
from evaluation.scoring.statistics import Comparison
from jobs.plan.node import Run
from jobs.products.controls.rows import control_rows
from jobs.stages.report.curves import drawn_curves
from lrp_core.records.explained import CONTRASTIVE


@dataclass(frozen=True)
class Reported:
    """A run with its scores, and what parts share."""

    run: Run
    results: Results

    @cached_property
    def drawn(self) -> list[CurveSet]:
        """The areas and mean curves of every task, model and perturbation."""
        return list(drawn_curves(self.run, self.results))

    @cached_property
    def controls(self) -> list[ControlRow]:
        """The results of all controls that are done."""
        return list(control_rows(self.run))

    def why_lacking(self, lacking: str, keys: Sequence[str], stages: str, needs: str) -> str:
        """The reason why a part shows nothing, from the beginning of a sentence that says what is `lacking`.

        It needs the config's `keys`, the commands `stages` and, where the keys are set, what `needs` says.
        """
        unset = [f"`{key}`" for key in keys if getattr(self.run.config, key) is None]
        if unset:
            return f"{lacking}: set {' and '.join(unset)} in the config and run {stages}."
        are_set = f"{' and '.join(f'`{key}`' for key in keys)} {'is' if len(keys) == 1 else 'are'} set"
        return f"{lacking}, though {are_set}: run {stages}. It needs {needs}."

    @property
    def beyond(self) -> Beyond:
        """Facts of the first screen: faithfulness is of the first way in which tokens go, and of the explained number
        that the scores beside it are of.
        """
        faithfulness: dict[tuple[str, str], Comparison] = {}
        defaults = self.results.defaults
        contrastive = {
            model_task[:2] for model_task, variant in defaults.items() if variant.explanation == CONTRASTIVE.name
        }
        for drawn in self.drawn:
            model_task = drawn.model, drawn.task
            explained = CONTRAST if model_task in contrastive else TARGET_LOGIT
            if drawn.areas.comparison is not None and drawn.score == explained:
                faithfulness.setdefault(model_task, drawn.areas.comparison)
        return Beyond(faithfulness, method_seconds(self.results, self.runtimes), verdicts(self.controls))

    @cached_property
    def runtimes(self) -> list[dict[str, Any]]:
        """The measured passes of every batch: rows of the runtime schema with their model, task and dtype."""
        store, rows = self.run.store, []
        for (model, task), dtypes in self.results.dtypes.items():
            for dtype in dtypes:
                files = store.files(store.runtime(model, task, dtype))
                setting = {"model": model, "task": task, "dtype": dtype}
                rows += [row | setting for row in store.read(files, RUNTIME).to_pylist()] if files else []
        return rows
