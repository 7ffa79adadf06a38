"""A run as its report shows it. What several parts of the report need is read from the store once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluation.report.overview.leaderboard import method_seconds
from evaluation.report.overview.standings import OtherNumbers
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
    """A run with its scores, and what several parts of the report share."""

    run: Run
    results: Results

    @cached_property
    def drawn(self) -> list[CurveSet]:
        """The areas and mean curves of every task, model and way of removal."""
        return list(drawn_curves(self.run, self.results))

    @cached_property
    def controls(self) -> list[ControlRow]:
        """The results of all controls that are done."""
        return list(control_rows(self.run))

    def why_lacking(self, lacking: str, keys: Sequence[str], stages: str, needs: str) -> str:
        """The reason why a part of the report shows nothing, and a remedy.

        `lacking` is the beginning of the sentence, which says what is missing. The part needs the config's `keys` and
        the commands `stages`; `needs` is what it needs beyond these, for a config that sets the keys.
        """
        unset = [f"`{key}`" for key in keys if getattr(self.run.config, key) is None]
        if unset:
            return f"{lacking}: set {' and '.join(unset)} in the config and run {stages}."
        are_set = f"{' and '.join(f'`{key}`' for key in keys)} {'is' if len(keys) == 1 else 'are'} set"
        return f"{lacking}, though {are_set}: run {stages}. It needs {needs}."

    @property
    def other_numbers(self) -> OtherNumbers:
        """Faithfulness, seconds and controls of methods, for the first screen.

        Faithfulness is that of the first way of removal, and of the explained number to which the scores beside it
        belong.
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
        return OtherNumbers(faithfulness, method_seconds(self.results, self.runtimes), verdicts(self.controls))

    @cached_property
    def runtimes(self) -> list[dict[str, Any]]:
        """The timings of all passes: rows of schema RUNTIME with their model, task and precision."""
        store, rows = self.run.store, []
        for (model, task), dtypes in self.results.dtypes.items():
            for dtype in dtypes:
                files = store.files(store.runtime(model, task, dtype))
                setting = {"model": model, "task": task, "dtype": dtype}
                rows += [row | setting for row in store.read(files, RUNTIME).to_pylist()] if files else []
        return rows
