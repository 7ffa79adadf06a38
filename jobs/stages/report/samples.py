"""The samples that the report's explorer shows: which ones, and every method's relevance of their tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from closelook.jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer
from closelook.jobs.plan.node import ModelPlan, Run
from closelook.jobs.stages.report.results import cell_key_of, default_samples, relevance_artifacts, shown_cell_keys
from closelook.jobs.store import Artifact, Ledger, Store, samples_of

Row = dict[str, Any]
Rows = dict[str, Row]  # by sample_id
Lines = list[tuple[str, Row]]  # (method, row of relevance): first explanations, then every label


def entries(run: Run, results: Results) -> Iterator[Entry]:
    """Yield an entry for each sample and model, of the form of :func:`tokens.data`; entries of a sample come together.

    The samples of each task are chosen by :func:`choose`.
    """
    by_label = label_cells(run)
    for task in results.tasks:
        shown = [cell_key for cell_key in shown_cell_keys(results) if cell_key.task == task]
        first = _first_labelled(run.ledger, [cell for cell_key, cell in by_label.items() if cell_key.task == task])
        scored = (default_samples(run.store, results, cell_key) for cell_key in shown)
        chosen = choose(scored, run.config.report.samples, first)
        of_task: list[Entry] = []
        for model in run.plan.models if chosen else ():
            lines = _lines(run, results, [key for key in shown if key.model == model.name], by_label, chosen)
            if lines:
                of_task += _entries(run, results, model, task, lines)
        order = {name: at for at, name in enumerate(chosen)}
        yield from sorted(of_task, key=lambda entry: order[entry["sample_id"]])


def _lines(
    run: Run, results: Results, keys: Sequence[CellKey], by_label: Mapping[CellKey, Artifact], chosen: list[str]
) -> dict[str, Lines]:
    """The relevance of the samples `chosen` in the cells `keys` of a model, by sample."""
    cells, tables = relevance_artifacts(run.plan), []
    order = sorted(keys, key=lambda key: rank(results.methods, key.method))
    for key in order:
        tables.append((key.method, _relevance(run.ledger, cells[key], chosen)))
    for key in order:
        if key in by_label:
            labels = _of(run.ledger.read(by_label[key], LABELS), chosen)
            tables.append((key.method, labels.sort_by("label_id")))
    lines: dict[str, Lines] = defaultdict(list)
    for method, table in tables:
        for row in table.to_pylist():
            lines[row["sample_id"]].append((method, row))
    return lines


def _entries(run: Run, results: Results, model: ModelPlan, task: str, lines: Mapping[str, Lines]) -> Iterator[Entry]:
    """Yield the entries of a model's samples that have relevance of explanations, from their `lines`."""
    config, images, names = model.resolved.config, model.resolved.preprocessing, sorted(lines)
    tokenizer = None if images is not None else load_tokenizer(config)
    writer = decoder_tokenizer_of(config) or tokenizer
    generic = rows_by_id(run.store, run.ledger.files_at(samples_of(task)), GENERIC, names)
    views = rows_by_id(run.store, model.inputs[task].paths, VIEW, names)
    for name in names:
        (_, first), *_ = lines[name]
        if "label_id" not in first and name in views and name in generic:
            shown = [_line(results, model, method, row) for method, row in lines[name]]
            facts = {"task": task, "model": model.name, **_facts(generic[name], views[name], first, model, tokenizer)}
            yield _entry(tokenizer, writer, model, generic[name], views[name], shown, facts)


def _facts(sample: Row, view: Row, first: Row, model: ModelPlan, tokenizer: Any) -> dict[str, Any]:
    """The facts of a sample under a model; `first` is a row of its relevance, with the model's logits."""
    resolved = model.resolved
    margin = None if first["logit_foil"] is None else first["logit_target"] - first["logit_foil"]
    correct = None if margin is None else margin > 0
    if view["label"] is not None:
        correct = first["predicted_id"] == resolved.label_id(view["label"])
    if resolved.output == "token":
        facts = _shown(sample, view, tokenizer)
    else:
        facts = _labelled(sample, first, resolved)
    position = view["position"] if view["decoder_input_ids"] is None else None
    attractors = json.loads(sample["meta"]).get("attractors")
    return facts | {"correct": correct, "margin": margin, "position": position, "attractors": attractors}


def _entry(
    tokenizer: Any, writer: Any, model: ModelPlan, sample: Row, view: Row, lines: list[Line], facts: dict[str, Any]
) -> Entry:
    """The explorer's entry of one sample."""
    images, answer = model.resolved.preprocessing, view["decoder_input_ids"]
    names = pieces(tokenizer, view["input_ids"]) if images is None else patch_names(images)
    masks = (view["evidence_mask"], view["special_mask"], view["scope_mask"])
    entry = data(names, lines, *masks, None if answer is None else seen(writer, answer), **facts)
    if images is None:
        return entry
    return with_picture(entry, pixels_of(view, images), images, [line.pixels for line in lines], sample["text"])


def _line(results: Results, model: ModelPlan, method: str, row: Row) -> Line:
    """The explorer's line for one row of relevance; see `beyond_noise` for values that are only rounding."""
    if "label_id" in row:
        label = model.resolved.labels[row["label_id"]]
        line = Line(results.label(method), row["relevance"], EVERY_LABEL, of=label, pixels=row["pixels"])
        logits = [row["explained"]]
    else:
        decoder, pixels = row["decoder_relevance"], row["pixels"]
        line = Line(results.label(method), row["relevance"], row["explanation"], decoder, pixels=pixels)
        logits = [row[name] for name in ("logit_target", "logit_foil") if row[name] is not None]
    return line if row["residual"] is None else beyond_noise(line, logits)  # None: relevance sums to no logit


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


def _shown(sample: Row, view: Row, tokenizer: Any) -> dict[str, Any]:
    """The facts of a sample that predicts a token: its text, the slot of the target, target and foil."""
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
    """The relevance of the chosen samples, with full embeddings or without the choice."""
    shards = [_of(ledger.store.read(shard, RELEVANCE), chosen) for shard in ledger.files(cell)]
    table = pa.concat_tables(shards) if shards else RELEVANCE.empty_table()
    return table.filter(pc.not_equal(table["embedding"], "partial"))


def _of(table: pa.Table, names: list[str]) -> pa.Table:
    """The rows of the samples `names`."""
    return table.filter(pc.is_in(table["sample_id"], pa.array(names, pa.string())))
