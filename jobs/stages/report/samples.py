"""The samples a reader of the report can look at: which ones, and every method's relevance of their tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.benchmark.pictures import pixels_of
from evaluation.report.heatmap import EVERY_LABEL, Line, LogitCurve, beyond_noise, data, pieces, seen
from evaluation.report.overlay import patch_names, with_picture
from evaluation.report.results import Place, Results, rank
from evaluation.schema import CURVES, GENERIC, LABELS, RELEVANCE, VIEW
from evaluation.scoring.metrics import lead
from jobs.config import RunConfig
from jobs.plan.cells import ModelPlan, Plan
from jobs.plan.hub import ModelUnavailable
from jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer
from jobs.plan.products.curves import wanted_cells
from jobs.stages.report.results import default_samples, place_of, relevance_cells
from jobs.store import Artifact, Ledger, Store
from jobs.store.artifacts import samples_of
from lrp_core.types import UserError

Rows = dict[str, dict[str, Any]]  # by sample_id
CurveOf = tuple[str, str, str, str]  # method, sample_id, explanation, embedding
AT_ONCE = 500  # samples that are made ready to show at a time


def explorer(
    config: RunConfig, plan: Plan, store: Store, results: Results, wanted: Mapping[str, list[str]] | None = None
) -> Iterator[dict[str, Any]]:
    """One entry for each sample and model, in the shape of :func:`heatmap.data`; a sample's models follow it.

    The samples are those that are `wanted` of each task, or else chosen by :func:`choose`.
    """
    cells = {place_of(planned.cell): planned.cell for planned in relevance_cells(plan)}
    ledger = Ledger(store)
    for_labels = label_cells(plan, ledger)
    for task in results.tasks:
        shown = [p for p in results.defaults if p.task == task and p.dtype == results.dtypes[p.model, task][0]]
        first = _first_labelled(ledger, [cell for place, cell in for_labels.items() if place.task == task])
        scored = () if wanted is not None else [default_samples(store, results, place) for place in shown]
        chosen = choose(scored, config.report.samples, first) if wanted is None else wanted.get(task, [])
        known, samples = [], list(ledger.whole(samples_of(task)))
        for model in plan.models if chosen else ():
            places = [place for place in shown if place.model == model.name]
            if places:
                own = {place.method: cells[place] for place in places}
                labelled = {place.method: for_labels[place] for place in places if place in for_labels}
                curves = _curves(config, ledger, model, task, chosen)
                known.append(_Known(store, model, task, own, chosen, curves, labelled))
        for start in range(0, len(chosen), AT_ONCE):
            some = chosen[start : start + AT_ONCE]
            generic = rows_by_id(store, samples, GENERIC, some)
            entries = [entry for one in known for entry in one.entries(some, generic, results)]
            index_in_list = {name: at for at, name in enumerate(some)}
            yield from sorted(entries, key=lambda entry: index_in_list[entry["sample_id"]])


def one_sample(plan: Plan, store: Store, results: Results) -> dict[str, Any] | None:
    """One sample with every method of one model, chosen by rule so that nobody picks it; None where nothing is scored.

    The task is the first that has a scope, as AttnLRP's, else the first with evidence, else the first, and one of texts
    where there is one. The model is the one with the most methods. Of the samples that every method explains, it is the
    first by id that the model predicts rightly, or the first.
    """
    cells = {place_of(planned.cell): planned.cell for planned in relevance_cells(plan)}
    shown: dict[tuple[str, str], dict[str, Artifact]] = {}
    for place in results.defaults:
        if place.dtype == results.dtypes[place.model, place.task][0]:
            shown.setdefault((place.task, place.model), {})[place.method] = cells[place]
    tasks = sorted(
        results.tasks.items(), key=lambda item: (item[1].image, item[1].scope is None, item[1].evidence is None)
    )
    places = [(name, model) for name, _ in tasks for model in plan.models if (name, model.name) in shown]
    if not places:
        return None
    task, model = max(
        (place for place in places if place[0] == places[0][0]), key=lambda p: len(shown[p[0], p[1].name])
    )
    own = shown[task, model.name]
    scored = [default_samples(store, results, place_of(cell)) for cell in own.values()]
    known = [dict(zip(table["sample_id"].to_pylist(), table["correct"].to_pylist(), strict=True)) for table in scored]
    common = set.intersection(*map(set, known))
    chosen = min(common, key=lambda name: (not known[0][name], name), default=None)
    if chosen is None:
        return None
    generic = rows_by_id(store, list(Ledger(store).whole(samples_of(task))), GENERIC, [chosen])
    entries = _Known(store, model, task, own, [chosen], {}).entries([chosen], generic, results)
    return entries[0] if entries else None


def label_cells(plan: Plan, ledger: Ledger) -> dict[Place, Artifact]:
    """Relevance for every label of classifiers, as far as it is done."""
    cells = (planned.cell for planned in plan.cells() if planned.cell.product == "labels")
    return {place_of(cell): cell for cell in cells if ledger.is_done(cell)}


def _first_labelled(ledger: Ledger, cells: Sequence[Artifact]) -> frozenset[str]:
    """Samples of which a model keeps relevance for every label; all or none of what `labels:` draws has it."""
    kept = (ledger.read(cell, LABELS, ["sample_id"])["sample_id"].to_pylist() for cell in cells)
    return frozenset(name for names in kept for name in names)


def choose(scored: Iterable[pa.Table], count: int, first: Collection[str] = ()) -> list[str]:
    """`count` sample ids: a third over which methods disagree most, a third predicted wrongly, the rest by hash.

    `scored` are tables of sample_id, correct and the leading metric, one a model and method. Samples among `first` are
    chosen so before any others are.
    """
    points: dict[str, list[float]] = {}
    wrong: dict[str, int] = {}
    for table in scored:
        told = lead() if lead() in table.column_names else "correct"  # where the metric does not apply to the task
        for name, right, hit in zip(*(table[c].to_pylist() for c in ("sample_id", "correct", told)), strict=True):
            points.setdefault(name, []).append(hit)
            wrong[name] = wrong.get(name, 0) + (not right)
    other = {name: name not in first for name in points}
    split = sorted(points, key=lambda name: (other[name], -float(np.var(sorted(points[name]))), name))
    failed = sorted((name for name in points if wrong[name]), key=lambda name: (other[name], -wrong[name], name))
    rest = sorted(points, key=lambda name: (other[name], name))
    share = -(-count // 3)
    return list(dict.fromkeys([*split[:share], *failed[:share], *rest]))[:count]


class _Known:
    """What a store knows of the chosen samples of a task under a model: relevance as Arrow, until it is shown."""

    def __init__(
        self,
        store: Store,
        model: ModelPlan,
        task: str,
        cells: Mapping[str, Artifact],
        chosen: list[str],
        curves: Mapping[CurveOf, LogitCurve],
        labels: Mapping[str, Artifact] = MappingProxyType({}),
    ) -> None:
        self.store, self.model, self.task, self.curves = store, model, task, curves
        self.relevance = {method: _relevance(store, cell, chosen) for method, cell in cells.items()}
        ledger = Ledger(store)
        self.labels = {method: _of(ledger.read(cell, LABELS), chosen) for method, cell in labels.items()}

    def entries(self, names: list[str], generic: Rows, results: Results) -> list[dict[str, Any]]:
        """Entries of these samples, as far as they are there; none where the model's tokenizer is not."""
        try:
            image = self.model.resolved.preprocessing is not None
            tokenizer = None if image else load_tokenizer(self.model.resolved.config)
            writer = decoder_tokenizer_of(self.model.resolved.config) or tokenizer
        except (UserError, ModelUnavailable):
            return []
        views = rows_by_id(self.store, self.model.inputs[self.task].paths, VIEW, names)
        rows: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for method in sorted(self.relevance, key=partial(rank, results.methods)):
            for row in _of(self.relevance[method], names).to_pylist():
                rows.setdefault(row["sample_id"], []).append((method, row))
        labelled: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for method in sorted(self.labels, key=partial(rank, results.methods)):
            for row in _of(self.labels[method], names).sort_by("label_id").to_pylist():
                labelled.setdefault(row["sample_id"], []).append((method, row))
        there = [name for name in names if name in rows and name in views and name in generic]
        return [
            self._entry(tokenizer, writer, generic[name], views[name], rows[name], labelled.get(name, []), results)
            for name in there
        ]

    def _entry(
        self,
        tokenizer: Any,
        writer: Any,
        sample: dict[str, Any],
        view: dict[str, Any],
        rows: list[tuple[str, dict[str, Any]]],
        by_label: list[tuple[str, dict[str, Any]]],
        results: Results,
    ) -> dict[str, Any]:
        resolved, (_, first) = self.model.resolved, rows[0]
        margin = None if first["logit_foil"] is None else first["logit_target"] - first["logit_foil"]
        right = None if margin is None else margin > 0
        if view["label"] is not None:
            right = first["predicted_id"] == resolved.label_id(view["label"])
        said = view["decoder_input_ids"]
        labelled, images = resolved.output != "token", resolved.preprocessing
        entry = data(
            pieces(tokenizer, view["input_ids"]) if images is None else patch_names(images),
            [_line(results.label(method), row, self.curves.get(_curve_of(method, row))) for method, row in rows]
            + [
                _line_of_label(results.label(method), row, resolved.labels[row["label_id"]]) for method, row in by_label
            ],
            view["evidence_mask"],
            view["special_mask"],
            view["scope_mask"],
            None if said is None else seen(writer, said),
            **(_labelled(sample, first, resolved) if labelled else _shown(sample, view, tokenizer)),
            task=self.task,
            model=self.model.name,
            position=view["position"] if said is None else None,
            correct=right,
            margin=margin,
            attractors=json.loads(sample["meta"]).get("attractors"),
        )
        if images is None:
            return entry
        return with_picture(
            entry, pixels_of(view, images), images, [row["pixels"] for _, row in (*rows, *by_label)], sample["text"]
        )


def _curve_of(method: str, row: dict[str, Any]) -> CurveOf:
    return method, row["sample_id"], row["explanation"], row["embedding"]


def _shown(sample: dict[str, Any], view: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The text with what goes in its slot; of a text without one, what was read, and what is known of what follows."""
    known = {key: sample[key] for key in ("sample_id", "text", "slot", "target", "foil")}
    if sample["slot"] is not None:
        return known
    read = tokenizer.decode(
        [i for i, special in zip(view["input_ids"], view["special_mask"], strict=True) if not special]
    )
    next_token = "the model's own prediction" if view["target_id"] is None else tokenizer.decode([view["target_id"]])
    return known | {"text": read, "slot": len(read), "target": next_token.strip() or next_token}


def _labelled(sample: dict[str, Any], row: dict[str, Any], resolved: ResolvedModel) -> dict[str, Any]:
    """The text, or both texts, with what the model says of it behind them, and what is true beside that."""
    text = " | ".join(filter(None, (sample["text"], sample["second"])))
    gold = sample["label"] if sample["score"] is None else f"{sample['score']:g}"
    said = f"{row['logit_target']:.2f}" if row["predicted_id"] is None else resolved.labels[row["predicted_id"]]
    target = said if gold is None else f"{said} (gold: {gold})"
    return {"sample_id": sample["sample_id"], "text": text, "slot": len(text), "target": target, "foil": None}


def _line(label: str, row: dict[str, Any], curve: LogitCurve | None) -> Line:
    line = Line(label, row["relevance"], row["explanation"], curve, row["decoder_relevance"])
    if row["residual"] is None:  # of a method that does not share out a logit
        return line
    return beyond_noise(line, [row[name] for name in ("logit_target", "logit_foil") if row[name] is not None])


def _line_of_label(method: str, row: dict[str, Any], label: str) -> Line:
    line = Line(method, row["relevance"], EVERY_LABEL, of=label)
    return line if row["residual"] is None else beyond_noise(line, [row["explained"]])


def _curves(
    config: RunConfig, ledger: Ledger, model: ModelPlan, task: str, chosen: list[str]
) -> dict[CurveOf, LogitCurve]:
    """The curves that are drawn of the chosen samples, in the first way that tokens are taken away."""
    rows: dict[CurveOf, dict[str, dict[str, Any]]] = {}
    for cell in wanted_cells(config, config.perturb, model) if config.perturb is not None else ():
        if cell.artifact.task != task or not cell.ways or not ledger.is_done(cell.artifact):
            continue
        table = ledger.read(cell.artifact, CURVES)
        wanted = pc.and_(pc.is_in(table["sample_id"], pa.array(chosen)), pc.equal(table["perturbation"], cell.ways[0]))
        for row in table.filter(wanted).to_pylist():
            curve_of = (cell.artifact.method, row["sample_id"], row["explanation"], row["embedding"])
            rows.setdefault(curve_of, {})[row["order"]] = row
    curves = {}
    for curve_of, own in rows.items():
        morf, lerf = own["morf"], own["lerf"]
        curves[curve_of] = LogitCurve(morf["removed"], morf["logit"], lerf["logit"], lerf["area"] - morf["area"])
    return curves


def rows_by_id(store: Store, paths: Sequence[str], schema: pa.Schema, chosen: list[str]) -> Rows:
    """Rows of these files, of these samples."""
    rows: Rows = {}
    for path in paths:
        rows |= {row["sample_id"]: row for row in _of(store.read(path, schema), chosen).to_pylist()}
    return rows


def _relevance(store: Store, cell: Artifact, chosen: list[str]) -> pa.Table:
    """Rows with full embeddings (or without that choice) of the chosen samples; one shard at a time is in memory."""
    shards = [_of(store.read(shard, RELEVANCE), chosen) for shard in Ledger(store).files(cell)]
    table = pa.concat_tables(shards) if shards else RELEVANCE.empty_table()
    return table.filter(pc.not_equal(table["embedding"], pa.scalar("partial")))


def _of(table: pa.Table, names: list[str]) -> pa.Table:
    return table.filter(pc.is_in(table["sample_id"], pa.array(names, pa.string())))
