"""The neurons a reader of the report can look at: how they rank, where they matter, what is lost without them."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.report.heatmap import pieces
from evaluation.report.neuron_explorer import NeuronExplorer, entry, shown
from evaluation.report.overlay import patch_names
from evaluation.report.results import Results, rank
from evaluation.schema import ACTIVATIONS, CONTEXTS, HEATMAPS, KNOCKOUTS, NEURONS, VIEW, WRITINGS
from jobs.config import RunConfig
from jobs.plan.cells import ModelPlan, Plan, PlannedCell
from jobs.plan.hub import ModelUnavailable
from jobs.plan.models import load_tokenizer
from jobs.plan.products.contexts import wanted_contexts
from jobs.plan.products.heatmaps import FIRST, wanted_heatmaps
from jobs.plan.products.knockouts import wanted_cells
from jobs.plan.products.writings import wanted_writings
from jobs.stages.report.samples import rows_by_id
from jobs.store import Artifact, Ledger, Store
from lrp_core.types import UserError

SAMPLES = 5  # of a neuron that are shown
AROUND = 12  # tokens on either side of where it is active

TaskMethod = tuple[str, str]  # task and method
Seen = tuple[float, str, str, str, int, float]  # magnitude, task, method, sample_id, position, activation


@dataclass
class _Neuron:
    """What the cells of a model say of one neuron."""

    name: str = ""
    total: dict[TaskMethod, float] = field(default_factory=lambda: defaultdict(float))
    kept: dict[TaskMethod, int] = field(default_factory=lambda: defaultdict(int))
    drops: dict[TaskMethod, list[float]] = field(default_factory=lambda: defaultdict(list))
    best: list[tuple[Seen, float]] = field(default_factory=list)  # with relevance, a heap of SAMPLES


def neuron_explorer(
    config: RunConfig, plan: Plan, store: Store, results: Results, linked: frozenset[str]
) -> NeuronExplorer:
    """Every neuron that some complete cell keeps; `linked` are the samples that have a place in the other explorer."""
    ledger = Ledger(store)
    corpora = _corpora(config, plan, ledger)
    cells = {model.name: _cells(model, ledger) for model in plan.models}
    order = sorted(
        {(one.cell.task, one.cell.method) for own in cells.values() for one in own},
        key=lambda place: (list(results.tasks).index(place[0]), rank(results.methods, place[1])),
    )
    entries = (
        one
        for model in plan.models
        if cells[model.name]
        for one in _entries(config, model, cells[model.name], store, results, order, linked, corpora.get(model.name))
    )
    value = config.neurons.knockout.value if config.neurons and config.neurons.knockout else "zero"
    return NeuronExplorer.of(entries, [f"{task} · {results.label(method)}" for task, method in order], value)


def _cells(model: ModelPlan, ledger: Ledger) -> list[PlannedCell]:
    return [one for one in model.cells if one.cell.product == "neurons" and ledger.is_done(one.cell)]


def _entries(
    config: RunConfig,
    model: ModelPlan,
    cells: list[PlannedCell],
    store: Store,
    results: Results,
    order: list[TaskMethod],
    linked: frozenset[str],
    corpus: Artifact | None,
) -> Iterator[dict[str, Any]]:
    """Neurons of a model by layer and number."""
    ledger = Ledger(store)
    neurons: dict[tuple[int, int], _Neuron] = defaultdict(_Neuron)
    samples: dict[TaskMethod, int] = {}
    firsts: dict[tuple[Artifact, str], dict[str, tuple[int, int]]] = {}
    for planned in cells:
        task_method = (planned.cell.task, planned.cell.method)
        for explanation, table in _by_explanation(ledger, planned):
            rows = table.to_pylist()
            firsts[planned.cell, explanation] = {r["sample_id"]: (r["layer"][0], r["neuron"][0]) for r in rows}
            if explanation == planned.requests[0].explanation:
                samples[task_method] = len(rows)
                for row in rows:
                    _add(neurons, task_method, row)
    _add_drops(config, model, ledger, neurons, firsts)
    texts = _texts(model, store, neurons)
    words = _words(config, model, ledger)
    answers = _answers(config, model, ledger, corpus, set(neurons), results) if corpus else {}
    for (layer, number), own in sorted(neurons.items()):
        ranked = [(at, own.total[p] / samples[p], own.kept[p]) for at, p in enumerate(order) if p in own.kept]
        gone = [(at, own.drops[p]) for at, p in enumerate(order) if p in own.drops]
        removed = [[at, float(f"{np.mean(drops):.4g}"), len(drops)] for at, drops in gone]
        yield entry(
            model.name,
            layer,
            number,
            ranked,
            name=own.name,
            removed=removed,
            samples=list(_samples(own, texts, results, linked)),
            writes=words.get((layer, number)),
            **answers.get((layer, number), {}),
        )


def _words(config: RunConfig, model: ModelPlan, ledger: Ledger) -> dict[tuple[int, int], dict[str, Any]]:
    """What neurons write and answer to, for `entry`."""
    words = {}
    for cell in wanted_writings(config, model, ledger):
        for row in ledger.read(cell.artifact, WRITINGS).to_pylist() if ledger.is_done(cell.artifact) else ():
            numbers = {"promoted": "promoted_logit", "suppressed": "suppressed_logit", "key": "key_cosine"}
            lists = {
                name: [[word, float(f"{value:.4g}")] for word, value in zip(row[name], row[number], strict=True)]
                for name, number in numbers.items()
            }
            words[row["layer"], row["neuron"]] = {**lists, "entropy": row["entropy"]}
    return words


def _corpora(config: RunConfig, plan: Plan, ledger: Ledger) -> dict[str, Artifact]:
    """The complete contexts of models, by name; none where the corpus cannot be had and nothing of it is stored."""
    try:
        cells = list(wanted_contexts(config, plan, ledger))
    except UserError:
        return {}
    return {cell.model.name: cell.artifact for cell in cells if ledger.is_done(cell.artifact)}


def _answers(
    config: RunConfig,
    model: ModelPlan,
    ledger: Ledger,
    corpus: Artifact,
    wanted: set[tuple[int, int]],
    results: Results,
) -> dict[tuple[int, int], dict[str, Any]]:
    """What a corpus says of these neurons, for `entry`; a layer at a time is in memory."""
    try:
        tokenizer = load_tokenizer(model.resolved.config)
    except (UserError, ModelUnavailable):
        return {}
    answers: dict[tuple[int, int], dict[str, Any]] = {}
    method, relevance = _relevance(config, model, ledger, results)
    edges = (ledger.record(corpus) or {})["boundaries"]
    for shard in (ledger.record(corpus) or {})["shards"]:
        contexts, activations = (f"{folder}/{shard}" for folder in corpus.folders)
        for row in ledger.store.read(activations, ACTIVATIONS).to_pylist():
            if (row["layer"], row["neuron"]) in wanted:
                counts, mean = _inhabited(edges, row["histogram"]), row["mean"]
                bars = None if mean is None else {**counts, "mean": float(f"{mean:.4g}")}
                told = method if (row["layer"], row["neuron"], 1) in relevance else ""
                own: dict[str, Any] = {"corpus": corpus.task, "explained": told, "histogram": bars, "contexts": []}
                answers[row["layer"], row["neuron"]] = own
        table = ledger.store.read(contexts, CONTEXTS)
        for row in table.filter(pc.less_equal(table["rank"], FIRST)).to_pylist():
            if (row["layer"], row["neuron"]) in wanted:
                facts = {"activation": float(f"{row['activation']:.4g}"), "where": row["place"]}
                values = relevance.get((row["layer"], row["neuron"], row["rank"]))
                one = shown(pieces(tokenizer, row["input_ids"]), row["position"], values, AROUND, **facts)
                answers[row["layer"], row["neuron"]]["contexts"].append(one)
    return answers


def _relevance(
    config: RunConfig, model: ModelPlan, ledger: Ledger, results: Results
) -> tuple[str, dict[tuple[int, int, int], list[float]]]:
    """The method that explains contexts, and what it says by layer, neuron and rank; none where that is not done."""
    for cell in wanted_heatmaps(config, model, ledger):
        if ledger.is_done(cell.artifact):
            rows = ledger.read(cell.artifact, HEATMAPS).to_pylist()
            there = [row for row in rows if row["relevance"] is not None]
            maps = {(row["layer"], row["neuron"], row["rank"]): row["relevance"] for row in there}
            return results.label(cell.method), maps
    return "", {}


def _inhabited(edges: list[float], counts: list[int]) -> dict[str, Any]:
    """The bins of a histogram from the first that is not empty to the last, and the edges between them."""
    first = next((at for at, count in enumerate(counts) if count), 0)
    last = max((at for at, count in enumerate(counts) if count), default=0)
    return {"edges": edges[first:last], "counts": counts[first : last + 1]}


def _by_explanation(ledger: Ledger, planned: PlannedCell) -> Iterator[tuple[str, pa.Table]]:
    columns = ["sample_id", "explanation", "layer", "neuron", "name", "relevance", "position", "activation"]
    table = ledger.read(planned.cell, NEURONS, columns)
    for explanation in dict.fromkeys(request.explanation for request in planned.requests):
        yield explanation, table.filter(pc.equal(table["explanation"], explanation))


def _add(neurons: dict[tuple[int, int], _Neuron], task_method: TaskMethod, row: dict[str, Any]) -> None:
    columns = (row[name] for name in ("layer", "neuron", "name", "relevance", "position", "activation"))
    for layer, number, name, relevance, position, activation in zip(*columns, strict=True):
        own = neurons[layer, number]
        own.name = name
        own.total[task_method] += relevance
        own.kept[task_method] += 1
        seen = (abs(relevance), *task_method, row["sample_id"], position, activation)
        (heapq.heappush if len(own.best) < SAMPLES else heapq.heappushpop)(own.best, (seen, relevance))


def _add_drops(
    config: RunConfig,
    model: ModelPlan,
    ledger: Ledger,
    neurons: dict[tuple[int, int], _Neuron],
    firsts: dict[tuple[Artifact, str], dict[str, tuple[int, int]]],
) -> None:
    """What the explained number lost where a single neuron went, the first of its sample's ranking."""
    for cell in wanted_cells(config, model, ledger):
        first = firsts.get((cell.neurons, cell.explanation)) if cell.neurons else None
        if first is None or not ledger.is_done(cell.artifact):
            continue
        for row in ledger.read(cell.artifact, KNOCKOUTS).to_pylist():
            if 1 in row["removed"] and row["sample_id"] in first:
                drop = row["explained"][0] - row["explained"][row["removed"].index(1)]
                if np.isfinite(drop):
                    neurons[first[row["sample_id"]]].drops[cell.artifact.task, cell.ranking].append(drop)


def _texts(model: ModelPlan, store: Store, neurons: dict[tuple[int, int], _Neuron]) -> dict[str, list[str]]:
    """The tokens of every sample that is shown, by its id; none where the model's tokenizer is not."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for own in neurons.values():
        for (_, task, _, name, _, _), _ in own.best:
            wanted[task].add(name)
    images = model.resolved.preprocessing
    try:
        tokenizer = None if images else load_tokenizer(model.resolved.config)
    except (UserError, ModelUnavailable):
        return {}
    texts = {}
    for task, names in wanted.items():
        rows = rows_by_id(store, model.inputs[task].paths, VIEW, sorted(names))
        for name, row in rows.items():
            texts[name] = patch_names(images) if images else pieces(tokenizer, row["input_ids"])
    return texts


def _samples(
    own: _Neuron, texts: dict[str, list[str]], results: Results, linked: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """Entries of the samples in which a neuron is most relevant, the most relevant first."""
    for (_, task, method, name, position, activation), relevance in sorted(own.best, reverse=True):
        if name in texts:
            facts: dict[str, Any] = {
                "id": name,
                "task": task,
                "method": results.label(method),
                "linked": name in linked,
            }
            facts |= {"relevance": float(f"{relevance:.4g}"), "activation": float(f"{activation:.4g}")}
            yield shown(texts[name], position, around=AROUND, **facts)
