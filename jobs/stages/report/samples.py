"""The samples that the report's explorer shows: which ones, and every method's relevance of their tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.benchmark.encoding import pieces, seen
from closelook.evaluation.benchmark.pictures import pixels_of
from closelook.evaluation.report.heatmaps.overlay import patch_names, with_picture
from closelook.evaluation.report.heatmaps.tokens import EVERY_LABEL, Line, beyond_noise, data
from closelook.evaluation.report.leaves import Entry
from closelook.evaluation.report.results import CellKey, Results, rank
from closelook.evaluation.schema import GENERIC, LABELS, RELEVANCE, VIEW
from closelook.evaluation.scoring.metrics import lead
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer
from closelook.jobs.plan.node import ModelPlan, Run
from closelook.jobs.stages.report.results import cell_key_of, default_samples, relevance_artifacts, shown_cell_keys
from closelook.jobs.store import Artifact, Ledger, Store, samples_of
from closelook.lrp_core.records.types import UserError

Row = dict[str, Any]
Rows = dict[str, Row]  # by sample_id
Lines = list[tuple[str, Row]]  # (method, row of relevance): first explanations, then every label
AT_ONCE = 500  # samples whose entries are made at a time


def entries(run: Run, results: Results) -> Iterator[Entry]:
    """Yield an entry for each sample and model, of the form of :func:`tokens.data`; entries of a sample come together.

    The samples of each task are chosen by :func:`choose`.
    """
    ledger, cells = run.ledger, relevance_artifacts(run.plan)
    by_label = label_cells(run)
    for task in results.tasks:
        shown = [cell_key for cell_key in shown_cell_keys(results) if cell_key.task == task]
        first = _first_labelled(ledger, [cell for cell_key, cell in by_label.items() if cell_key.task == task])
        scored = (default_samples(run.store, results, cell_key) for cell_key in shown)
        chosen = choose(scored, run.config.report.samples, first)
        explained = []
        for model in run.plan.models if chosen else ():
            model_cells = [cell_key for cell_key in shown if cell_key.model == model.name]
            if model_cells:
                maps = {cell_key.method: cells[cell_key] for cell_key in model_cells}
                labels = {cell_key.method: by_label[cell_key] for cell_key in model_cells if cell_key in by_label}
                explained.append(_Explained(ledger, results, model, task, chosen, maps, labels))
        for start in range(0, len(chosen), AT_ONCE):
            some = chosen[start : start + AT_ONCE]
            generic = rows_by_id(run.store, ledger.whole(samples_of(task)), GENERIC, some)
            entries = [entry for explained_model in explained for entry in explained_model.entries(some, generic)]
            order = {name: at for at, name in enumerate(some)}
            yield from sorted(entries, key=lambda entry: order[entry["sample_id"]])


def label_cells(run: Run) -> dict[CellKey, Artifact]:
    """The cells that are done of relevance for every label of classifiers, by cell key."""
    cells = (planned.artifact for planned in run.plan.cells() if planned.artifact.product == "labels")
    return {cell_key_of(cell): cell for cell in cells if run.ledger.is_done(cell)}


def _first_labelled(ledger: Ledger, cells: Sequence[Artifact]) -> frozenset[str]:
    """The ids of samples with relevance for every label, which the explorer shows first."""
    kept = (ledger.read(cell, LABELS, ["sample_id"])["sample_id"].to_pylist() for cell in cells)
    return frozenset(name for names in kept for name in names)


def choose(scored: Iterable[pa.Table], count: int, first: Collection[str] = ()) -> list[str]:
    """`count` sample ids: a third on which methods disagree most, a third predicted wrongly, the rest by id.

    `scored` has a table for each model and method, with sample_id, correct and the leading metric. In each third,
    samples in `first` come before others.
    """
    points: dict[str, list[float]] = {}
    wrong: dict[str, int] = {}
    for table in scored:
        measured = lead() if lead() in table.column_names else "correct"  # if the metric does not apply to the task
        for name, right, hit in zip(*(table[c].to_pylist() for c in ("sample_id", "correct", measured)), strict=True):
            points.setdefault(name, []).append(hit)
            wrong[name] = wrong.get(name, 0) + (not right)
    other = {name: name not in first for name in points}
    split = sorted(points, key=lambda name: (other[name], -float(np.var(sorted(points[name]))), name))
    failed = sorted((name for name in points if wrong[name]), key=lambda name: (other[name], -wrong[name], name))
    rest = sorted(points, key=lambda name: (other[name], name))
    share = -(-count // 3)
    return list(dict.fromkeys([*split[:share], *failed[:share], *rest]))[:count]


@dataclass
class _Explained:
    """The stored relevance of the chosen samples of a task under a model, kept as Arrow until it is shown."""

    ledger: Ledger
    results: Results
    model: ModelPlan
    task: str
    chosen: list[str]
    maps: Mapping[str, Artifact]  # by method: the cell with relevance of explanations
    labels: Mapping[str, Artifact]  # by method: the cell with relevance for every label

    @cached_property
    def tables(self) -> list[tuple[str, pa.Table]]:
        """(method, relevance of the chosen samples): first of explanations, then for every label."""
        order = partial(rank, self.results.methods)
        methods = sorted(self.maps, key=order)
        tables = [(method, _relevance(self.ledger, self.maps[method], self.chosen)) for method in methods]
        for method in sorted(self.labels, key=order):
            table = _of(self.ledger.read(self.labels[method], LABELS), self.chosen)
            tables.append((method, table.sort_by("label_id")))
        return tables

    def entries(self, names: list[str], generic: Rows) -> list[Entry]:
        """Entries of the samples `names` that have relevance, a view and a generic row.

        Empty if the model's tokenizer cannot be loaded.
        """
        config = self.model.resolved.config
        try:
            tokenizer = None if self.model.resolved.preprocessing is not None else load_tokenizer(config)
            writer = decoder_tokenizer_of(config) or tokenizer
        except (UserError, ModelUnavailable):
            return []
        views = rows_by_id(self.ledger.store, self.model.inputs[self.task].paths, VIEW, names)
        lines: dict[str, Lines] = defaultdict(list)
        for method, table in self.tables:
            for row in _of(table, names).to_pylist():
                lines[row["sample_id"]].append((method, row))
        entries = []
        for name in names:
            explained = name in lines and "label_id" not in lines[name][0][1]
            if explained and name in views and name in generic:
                entries.append(self._entry(tokenizer, writer, generic[name], views[name], lines[name]))
        return entries

    def _entry(self, tokenizer: Any, writer: Any, sample: Row, view: Row, rows: Lines) -> Entry:
        """The explorer's entry of one sample: its tokens, a line for each of `rows`, and facts.

        `sample` is the generic row, `view` the row of this model's view, `writer` the tokenizer of decoder tokens. For
        an image the tokens are patches, and the entry has the picture, with an overlay for each line. Logits and
        prediction are the model's, so those of the first of `rows` serve for all.
        """
        resolved, (_, first) = self.model.resolved, rows[0]
        margin = None if first["logit_foil"] is None else first["logit_target"] - first["logit_foil"]
        correct = None if margin is None else margin > 0
        if view["label"] is not None:
            correct = first["predicted_id"] == resolved.label_id(view["label"])
        images, answer = resolved.preprocessing, view["decoder_input_ids"]
        if resolved.output == "token":
            facts = _shown(sample, view, tokenizer)
        else:
            facts = _labelled(sample, first, resolved)
        facts |= {"task": self.task, "model": self.model.name, "correct": correct, "margin": margin}
        facts["position"] = view["position"] if answer is None else None
        facts["attractors"] = json.loads(sample["meta"]).get("attractors")
        names = pieces(tokenizer, view["input_ids"]) if images is None else patch_names(images)
        lines = [self._line(method, row) for method, row in rows]
        decoder_names = None if answer is None else seen(writer, answer)
        masks = (view["evidence_mask"], view["special_mask"], view["scope_mask"])
        entry = data(names, lines, *masks, decoder_names, **facts)
        if images is None:
            return entry
        maps = [row["pixels"] for _, row in rows]
        return with_picture(entry, pixels_of(view, images), images, maps, sample["text"])

    def _line(self, method: str, row: Row) -> Line:
        """The explorer's line for one row of relevance; see `beyond_noise` for values that are only rounding."""
        label = self.results.label(method)
        if "label_id" in row:
            line = Line(label, row["relevance"], EVERY_LABEL, of=self.model.resolved.labels[row["label_id"]])
            logits = [row["explained"]]
        else:
            line = Line(label, row["relevance"], row["explanation"], row["decoder_relevance"])
            logits = [row[name] for name in ("logit_target", "logit_foil") if row[name] is not None]
        return line if row["residual"] is None else beyond_noise(line, logits)  # None: relevance sums to no logit


def _shown(sample: Row, view: Row, tokenizer: Any) -> dict[str, Any]:
    """The facts of a sample that predicts a token: its text, the slot of the target, target and foil.

    A text without a slot is shown as the model read it, followed by the next token.
    """
    known = {key: sample[key] for key in ("sample_id", "text", "slot", "target", "foil")}
    if sample["slot"] is not None:
        return known
    tokens = zip(view["input_ids"], view["special_mask"], strict=True)
    read = tokenizer.decode([token for token, special in tokens if not special])
    next_token = "the model's own prediction" if view["target_id"] is None else tokenizer.decode([view["target_id"]])
    return known | {"text": read, "slot": len(read), "target": next_token.strip() or next_token}


def _labelled(sample: Row, row: Row, resolved: ResolvedModel) -> dict[str, Any]:
    """The facts of a classified sample: its text or pair, then the predicted label or score, and the gold one."""
    text = " | ".join(filter(None, (sample["text"], sample["second"])))
    gold = None if sample["score"] is None else f"{sample['score']:g}"
    if sample["label"] is not None:
        number = resolved.label_id(sample["label"])
        gold = sample["label"] if number is None else resolved.labels[number]
    target = f"{row['logit_target']:.2f}" if row["predicted_id"] is None else resolved.labels[row["predicted_id"]]
    if gold is not None:
        target += f" (gold: {gold})"
    return {"sample_id": sample["sample_id"], "text": text, "slot": len(text), "target": target, "foil": None}


def rows_by_id(store: Store, paths: Iterable[str], schema: pa.Schema, chosen: list[str]) -> Rows:
    """The rows of the samples `chosen` in these files, by sample id."""
    rows: Rows = {}
    for path in paths:
        rows |= {row["sample_id"]: row for row in _of(store.read(path, schema), chosen).to_pylist()}
    return rows


def _relevance(ledger: Ledger, cell: Artifact, chosen: list[str]) -> pa.Table:
    """The relevance of the chosen samples, with full embeddings or without the choice.

    One shard at a time is in memory.
    """
    shards = [_of(ledger.store.read(shard, RELEVANCE), chosen) for shard in ledger.files(cell)]
    table = pa.concat_tables(shards) if shards else RELEVANCE.empty_table()
    return table.filter(pc.not_equal(table["embedding"], "partial"))


def _of(table: pa.Table, names: list[str]) -> pa.Table:
    """The rows of the samples `names`."""
    return table.filter(pc.is_in(table["sample_id"], pa.array(names, pa.string())))
