"""The neurons that the report's explorer shows: how they rank, and where they matter."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from closelook.evaluation.benchmark.encoding import pieces
from closelook.evaluation.report.explorers import Explorer, neuron_entry, neuron_explorer, shown
from closelook.evaluation.report.heatmaps.overlay import patch_names
from closelook.evaluation.report.heatmaps.tokens import short
from closelook.evaluation.report.leaves import Entry
from closelook.evaluation.report.results import Results, rank
from closelook.evaluation.schema import CONTEXTS, HEATMAPS, NEURONS, VIEW
from closelook.jobs.plan.models import load_tokenizer
from closelook.jobs.plan.node import Cell, ModelPlan, Run
from closelook.jobs.products.neurons import contexts
from closelook.jobs.products.neurons.heatmaps import FIRST, heatmaps_of
from closelook.jobs.stages.report.samples import rows_by_id
from closelook.jobs.store import Artifact
from closelook.lrp_core.records.types import UserError

SAMPLES = 5  # samples that are shown for a neuron
AROUND = 12  # tokens that are shown on either side of its activation

COLUMNS = ["sample_id", "explanation", "layer", "neuron", "name", "relevance", "position", "activation"]

NeuronKey = tuple[int, int]  # layer and neuron
TaskMethod = tuple[str, str]  # task and method
Seen = tuple[float, str, str, str, int, float]  # magnitude, task, method, sample_id, position, activation


@dataclass
class _Neuron:
    """The measurements of one neuron in the cells of a model."""

    name: str = ""
    total: dict[TaskMethod, float] = field(default_factory=lambda: defaultdict(float))
    kept: dict[TaskMethod, int] = field(default_factory=lambda: defaultdict(int))
    best: list[tuple[Seen, float]] = field(default_factory=list)  # (sample, relevance): a heap of the SAMPLES largest

    def add(self, task_method: TaskMethod, sample: str, name: str, relevance: float, at: tuple[int, float]) -> None:
        """Add the relevance in a sample, and the (position, activation) there."""
        self.name = name
        self.total[task_method] += relevance
        self.kept[task_method] += 1
        push = heapq.heappush if len(self.best) < SAMPLES else heapq.heappushpop
        push(self.best, ((abs(relevance), *task_method, sample, *at), relevance))


def explorer(run: Run, results: Results, linked: frozenset[str]) -> Explorer:
    """The explorer of every neuron that some complete cell keeps.

    `linked` are the ids of samples that the explorer of samples shows, to which entries link.
    """
    kept = [
        cell for cell in run.plan.cells() if cell.artifact.product == "neurons" and run.ledger.is_done(cell.artifact)
    ]
    tasks, every = list(results.tasks), {(cell.artifact.task, cell.artifact.method) for cell in kept}
    order = sorted(every, key=lambda task_method: (tasks.index(task_method[0]), rank(results.methods, task_method[1])))
    corpora = _corpora(run)

    def entries() -> Iterator[Entry]:
        for model in run.plan.models:
            cells = [cell for cell in kept if cell.artifact.model == model.name]
            if cells:
                yield from _entries(run, results, model, cells, order, linked, corpora.get(model.name))

    return neuron_explorer(entries(), [f"{task} · {results.label(method)}" for task, method in order])


def _entries(
    run: Run,
    results: Results,
    model: ModelPlan,
    cells: list[Cell],
    order: list[TaskMethod],
    linked: frozenset[str],
    corpus: Artifact | None,
) -> Iterator[Entry]:
    """Yield an entry for each neuron of a model, by layer and number; `order` lists (task, method) as the explorer."""
    neurons: dict[NeuronKey, _Neuron] = defaultdict(_Neuron)
    samples: dict[TaskMethod, int] = defaultdict(int)
    for planned in cells:
        task_method = (planned.artifact.task, planned.artifact.method)
        for row in run.ledger.read(planned.artifact, NEURONS, COLUMNS).to_pylist():
            if row["explanation"] == planned.requests[0].explanation:
                samples[task_method] += 1
                places = zip(row["position"], row["activation"], strict=True)
                columns = (row["layer"], row["neuron"], row["name"], row["relevance"], places)
                for layer, number, name, relevance, place in zip(*columns, strict=True):
                    neurons[layer, number].add(task_method, row["sample_id"], name, relevance, place)
    texts = _texts(run, model, neurons)
    examples = _examples(run, results, model, corpus, neurons) if corpus else {}
    for neuron_key, neuron in sorted(neurons.items()):
        ranked = []
        for at, key in enumerate(order):
            if key in neuron.kept:
                ranked.append((at, neuron.total[key] / samples[key], neuron.kept[key]))
        where = list(_samples(neuron, texts, results, linked))
        known = examples.get(neuron_key, {})
        yield neuron_entry(model.name, *neuron_key, ranked, name=neuron.name, samples=where, **known)


def _examples(
    run: Run, results: Results, model: ModelPlan, corpus: Artifact, neurons: Mapping[NeuronKey, _Neuron]
) -> dict[NeuronKey, dict[str, Any]]:
    """The max-activating examples of each of `neurons` in a corpus, for its entry. One layer at a time is in memory."""
    tokenizer, examples = load_tokenizer(model.resolved.config), dict[NeuronKey, dict[str, Any]]()
    method, relevance = _relevance(run, results, model)
    for shard in (run.ledger.record(corpus) or {})["shards"]:
        table = run.store.read(f"{corpus.folder}/{shard}", CONTEXTS).filter(pc.field("rank") <= FIRST)
        for row in table.to_pylist():
            neuron_key = (row["layer"], row["neuron"])
            if neuron_key in neurons:
                explained = method if (*neuron_key, 1) in relevance else ""
                known = {"corpus": corpus.task, "explained": explained, "contexts": list[Entry]()}
                tokens, values = pieces(tokenizer, row["input_ids"]), relevance.get((*neuron_key, row["rank"]))
                facts = {"activation": short(row["activation"]), "where": row["place"]}
                text = shown(tokens, row["position"], AROUND, values, **facts)
                examples.setdefault(neuron_key, known)["contexts"].append(text)
    return examples


def _relevance(run: Run, results: Results, model: ModelPlan) -> tuple[str, dict[tuple[int, int, int], list[float]]]:
    """The label of the method that explains max-activating examples, and its relevance of tokens."""
    node = heatmaps_of(run.config, model, run.ledger)
    if node is None or not run.ledger.is_done(node.artifact):
        return "", {}
    maps = {}
    for row in run.ledger.read(node.artifact, HEATMAPS).to_pylist():
        if row["relevance"] is not None:
            maps[row["layer"], row["neuron"], row["rank"]] = row["relevance"]
    return results.label(node.artifact.method), maps


def _texts(run: Run, model: ModelPlan, neurons: Mapping[NeuronKey, _Neuron]) -> dict[str, list[str]]:
    """The tokens of every sample that is shown, by its id."""
    names_of_task: dict[str, set[str]] = defaultdict(set)
    for neuron in neurons.values():
        for (_, task, _, name, _, _), _ in neuron.best:
            names_of_task[task].add(name)
    images, texts = model.resolved.preprocessing, {}
    tokenizer = None if images else load_tokenizer(model.resolved.config)
    for task, names in names_of_task.items():
        rows = rows_by_id(run.store, model.inputs[task].paths, VIEW, sorted(names))
        for name, row in rows.items():
            texts[name] = patch_names(images) if images else pieces(tokenizer, row["input_ids"])
    return texts


def _corpora(run: Run) -> dict[str, Artifact]:
    """The complete max-activating examples by model; empty if the corpus is gone and nothing of it is stored."""
    try:
        cells = list(contexts.nodes(run))
    except UserError:
        return {}
    return {cell.plan.name: cell.artifact for cell in cells if run.ledger.is_done(cell.artifact)}


def _samples(neuron: _Neuron, texts: dict[str, list[str]], results: Results, linked: frozenset[str]) -> Iterator[Entry]:
    """Yield the samples in which a neuron is most relevant, the most relevant first, for its entry."""
    for (_, task, method, name, position, activation), relevance in sorted(neuron.best, reverse=True):
        facts: dict[str, Any] = {"id": name, "task": task, "method": results.label(method), "linked": name in linked}
        facts |= {"relevance": short(relevance), "activation": short(activation)}
        yield shown(texts[name], position, AROUND, **facts)
