"""A run as its report shows it. What several parts of the report need, such as curves, is read from the store once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from closelook.evaluation.report.overview.leaderboard import method_seconds
from closelook.evaluation.report.overview.standings import OtherNumbers
from closelook.evaluation.report.page import Figure, Part
from closelook.evaluation.report.results import CellKey, Methods, Results
from closelook.evaluation.report.sections.controls import verdicts
from closelook.evaluation.report.sections.faithfulness import CurveSet
from closelook.evaluation.report.table import Table
from closelook.evaluation.schema import CURVES, RUNTIME
from closelook.evaluation.scoring.controls import ControlRow
from closelook.evaluation.scoring.faithfulness.areas import (
    AREA_COLUMNS,
    CURVE_COLUMNS,
    JointScores,
    areas_of,
    joint_scores,
    mean_curves,
    of_score,
    scores_of,
    shown_variant,
)
from closelook.evaluation.scoring.faithfulness.flips import AREAS, CONTRAST, TARGET_LOGIT, Flips
from closelook.evaluation.scoring.faithfulness.scores import Summary, summarise
from closelook.evaluation.scoring.metrics import METRICS, applicable, lead, overlap
from closelook.evaluation.scoring.statistics import Comparison
from closelook.jobs.plan.node import ModelPlan, Node, Run
from closelook.jobs.products.controls.rows import control_rows
from closelook.jobs.products.curves import curves_of
from closelook.jobs.stages.report.results import cell_key_of, samples_of_variant
from closelook.jobs.store import Ledger
from closelook.lrp_core.records.explained import CONTRASTIVE

_COLUMNS = list(dict.fromkeys([*AREA_COLUMNS, *CURVE_COLUMNS]))


@dataclass(frozen=True)
class Perturbed:
    """The complete curves of a model on a task, for one score, by method.

    Methods whose relevance is, or may be, rounding error are in `noise`, as NOISE or NEAR_NOISE, and have no table.
    """

    model: ModelPlan
    cell_key: CellKey  # with an empty method
    flips: Sequence[Flips]
    tables: Mapping[str, pa.Table]
    noise: Mapping[str, str]
    score: str = TARGET_LOGIT  # the number that the curves follow


@dataclass(frozen=True)
class Reported:
    """A run with its scores, and what several parts of the report share."""

    run: Run
    results: Results

    def part(
        self,
        title: str,
        page: str,
        nodes: Iterable[Node] = (),
        *,
        figures: Sequence[Figure] = (),
        tables: Sequence[Table] = (),
        details: Sequence[Table] = (),
        notes: Sequence[str] = (),
    ) -> Part:
        """A part of a page, with the tables that have rows, and a note on its `nodes` that are not computed."""
        planned = list(nodes)
        undone = sum(not self.ledger.is_done(node.artifact) for node in planned)
        if undone:
            notes = [*notes, f"{undone} of {len(planned)} results are not computed: run `closelook run`."]
        shown, hidden = ([table for table in some if table.rows] for some in (tables, details))
        return Part(title, page, figures, shown, hidden, " ".join(notes))

    @property
    def ledger(self) -> Ledger:
        return self.run.ledger

    @property
    def methods(self) -> Methods:
        return self.results.methods

    @cached_property
    def drawn(self) -> list[CurveSet]:
        """The areas and mean curves of every task, model and way of removal that has some."""
        return [curve_set for curve_set in self._curve_sets() if curve_set.methods]

    @cached_property
    def controls(self) -> list[ControlRow]:
        """The results of all controls that are done."""
        return list(control_rows(self.run))

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

    @property
    def other_numbers(self) -> OtherNumbers:
        """Faithfulness, seconds and controls of methods, for the first screen.

        Faithfulness is that of the first way of removal, and of the explained number to which the scores beside it
        belong.
        """
        defaults = self.results.defaults.items()
        contrastive = {cell_key[:2] for cell_key, variant in defaults if variant.explanation == CONTRASTIVE.name}
        faithfulness: dict[tuple[str, str], Comparison] = {}
        for drawn in self.drawn:
            cell = (drawn.model, drawn.task)
            explained = CONTRAST if cell in contrastive else TARGET_LOGIT
            if drawn.areas.comparison is not None and drawn.score == explained:
                faithfulness.setdefault(cell, drawn.areas.comparison)
        return OtherNumbers(faithfulness, method_seconds(self.results, self.runtimes), verdicts(self.controls))

    def perturbed(self, columns: Sequence[str]) -> Iterator[Perturbed]:
        """Yield the curves of every task, model and score, in the order of tasks, with these `columns`.

        `columns` must have `score`.
        """
        results, settings = self.results, self.run.config.perturb
        if settings is None:
            return
        for task in results.tasks:
            for model in self.run.plan.models:
                cells = [cell for cell in curves_of(self.run.config, settings, model) if cell.artifact.task == task]
                if not cells:
                    continue
                cell_key = cell_key_of(cells[0].artifact)._replace(method="")
                every = {}
                for artifact in (cell.artifact for cell in cells if self.ledger.is_done(cell.artifact)):
                    table = self.ledger.read(artifact, CURVES, [*columns])
                    every[artifact.method] = results.without_tuning(cell_key_of(artifact), table)
                for score in scores_of(every.values()):
                    tables, noise = {}, {}
                    for method, table in every.items():
                        of_one = of_score(table, score)
                        answer = self._noise(cell_key._replace(method=method), of_one)
                        if answer is None:
                            tables[method] = of_one
                        else:
                            noise[method] = answer
                    yield Perturbed(model, cell_key, cells[0].flips, tables, noise, score)

    def _noise(self, cell_key: CellKey, table: pa.Table) -> str | None:
        """NOISE or NEAR_NOISE if the relevance that a method's curves follow is, or may be, rounding error."""
        variant = shown_variant(table)
        return None if variant is None else self.results.noise(cell_key, explanation=variant[0], embedding=variant[1])

    def _curve_sets(self) -> Iterator[CurveSet]:
        """Yield areas and mean curves by task, model, score and way of removal."""
        config, results = self.run.config, self.results
        bases = {name: record.base for name, record in results.methods.items()}
        for perturbed in self.perturbed(_COLUMNS):
            model, task, dtype, _ = perturbed.cell_key
            clusters = results.clusters.get(task, {})
            ways = [flips.way for flips in perturbed.flips if flips.measure == AREAS]
            overlaps = self._overlaps(perturbed) if ways else {}
            published = perturbed.model.config.id.rpartition("/")[2]
            for way in ways:
                areas, curves = areas_of(perturbed.tables, way, config.resampling, clusters, results.baselines), {}
                for method, variant in areas.variants.items():
                    means = mean_curves(perturbed.tables[method], way, variant, config.resampling, clusters)
                    if means:
                        curves[method] = means
                yield CurveSet(
                    model,
                    task,
                    dtype,
                    way,
                    areas,
                    curves,
                    overlaps,
                    self._beside(perturbed, way),
                    bases,
                    perturbed.score,
                    noise=perturbed.noise,
                    published=published,
                )

    def _beside(self, perturbed: Perturbed, way: str) -> JointScores | None:
        """Evidence and areas of the variants that the curves follow; None if the task has no evidence."""
        record, task = METRICS[lead()], perturbed.cell_key.task
        if record.name not in applicable(self.results.tasks[task]):
            return None
        evidence = {}
        for method, samples in self._followed(perturbed):
            values = record.scale * samples[record.name].to_numpy()
            evidence[method] = dict(zip(samples["sample_id"].to_pylist(), values.tolist(), strict=True))
        clusters = self.results.clusters.get(task, {})
        return joint_scores(evidence, perturbed.tables, way, clusters, self.results.baselines)

    def _followed(self, perturbed: Perturbed) -> Iterator[tuple[str, pa.Table]]:
        """Yield (method, scores) of the variant that the curves follow, for samples that are predicted rightly."""
        defaults = self.results.defaults
        for method, table in perturbed.tables.items():
            cell_key, followed = perturbed.cell_key._replace(method=method), shown_variant(table)
            if cell_key in defaults and followed is not None:
                variant = defaults[cell_key]._replace(explanation=followed[0], embedding=followed[1])
                samples = samples_of_variant(self.run.store, self.results, cell_key, variant)
                yield method, samples.filter(samples["correct"])

    def _overlaps(self, perturbed: Perturbed) -> dict[str, Summary]:
        """The overlap with evidence by method, of the variant that the curves follow; empty where it does not apply."""
        metric, overlaps, task = overlap(), {}, perturbed.cell_key.task
        if metric not in applicable(self.results.tasks[task]):
            return {}
        for method, samples in self._followed(perturbed):
            drawn = self.run.config.resampling.within(self.results.clusters_of(task, samples["sample_id"].to_pylist()))
            overlaps[method] = summarise(samples[metric].to_numpy(), drawn, (0, 1))
        return overlaps
