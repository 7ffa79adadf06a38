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
from closelook.evaluation.schema import ACTIVATIONS, CONTEXTS, HEATMAPS, NEURONS, VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.models import load_tokenizer
from closelook.jobs.plan.node import Cell, ModelPlan, Run
from closelook.jobs.products.neurons import contexts
from closelook.jobs.products.neurons.heatmaps import FIRST, heatmaps_of
from closelook.jobs.stages.report.samples import rows_by_id
from closelook.jobs.store import Artifact, Ledger
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


def explorer(run: Run, results: Results, linked: frozenset[str]) -> Explorer:
    """The explorer of every neuron that some complete cell keeps.

    `linked` are the ids of samples that the explorer of samples shows, to which entries link.
    """
    config, plan, corpora = run.config, run.plan, _corpora(run)
    cells: dict[str, list[Cell]] = {}
    for model in plan.models:
        kept = [cell for cell in model.cells if cell.artifact.product == "neurons"]
        cells[model.name] = [cell for cell in kept if run.ledger.is_done(cell.artifact)]
    every = {(cell.artifact.task, cell.artifact.method) for model_cells in cells.values() for cell in model_cells}
    tasks = list(results.tasks)
    order = sorted(every, key=lambda task_method: (tasks.index(task_method[0]), rank(results.methods, task_method[1])))

    def entries() -> Iterator[Entry]:
        for model in plan.models:
            if cells[model.name]:
                known = _Model(config, model, run.ledger, results)
                yield from known.entries(cells[model.name], order, linked, corpora.get(model.name))

    return neuron_explorer(entries(), [f"{task} · {results.label(method)}" for task, method in order])


@dataclass(frozen=True)
class _Model:
    """Reads the facts about a model's neurons from the store."""

    config: RunConfig
    model: ModelPlan
    ledger: Ledger
    results: Results

    def entries(
        self, cells: list[Cell], order: list[TaskMethod], linked: frozenset[str], corpus: Artifact | None
    ) -> Iterator[Entry]:
        """Yield an entry for each neuron, by layer and number; `order` lists (task, method) in the explorer's order."""
        neurons: dict[NeuronKey, _Neuron] = defaultdict(_Neuron)
        samples: dict[TaskMethod, int] = {}
        for planned in cells:
            task_method = (planned.artifact.task, planned.artifact.method)
            for row in self.ledger.read(planned.artifact, NEURONS, COLUMNS).to_pylist():
                if row["explanation"] == planned.requests[0].explanation:
                    samples[task_method] = samples.get(task_method, 0) + 1
                    _add(neurons, task_method, row)
        texts = self.texts(neurons)
        answers = self.answers(corpus, set(neurons)) if corpus else {}
        for neuron_key, neuron in sorted(neurons.items()):
            ranked = []
            for at, key in enumerate(order):
                if key in neuron.kept:
                    ranked.append((at, neuron.total[key] / samples[key], neuron.kept[key]))
            shown_samples = list(_samples(neuron, texts, self.results, linked))
            facts = {"name": neuron.name, "samples": shown_samples} | answers.get(neuron_key, {})
            yield neuron_entry(self.model.name, *neuron_key, ranked, **facts)

    def answers(self, corpus: Artifact, asked: set[NeuronKey]) -> dict[NeuronKey, dict[str, Any]]:
        """The max-activating examples and the histogram over a corpus of each neuron in `asked`, for its entry.

        One layer at a time is in memory. Empty if the tokenizer cannot be loaded.
        """
        try:
            tokenizer = load_tokenizer(self.model.resolved.config)
        except (UserError, ModelUnavailable):
            return {}
        answers: dict[NeuronKey, dict[str, Any]] = {}
        method, relevance = self.relevance()
        record = self.ledger.record(corpus) or {}
        for shard in record["shards"]:
            contexts, activations = (f"{folder}/{shard}" for folder in corpus.folders)
            for row in self.ledger.store.read(activations, ACTIVATIONS).to_pylist():
                neuron_key = (row["layer"], row["neuron"])
                if neuron_key in asked:
                    bars = None
                    if row["mean"] is not None:
                        bars = _inhabited(record["boundaries"], row["histogram"]) | {"mean": short(row["mean"])}
                    explained = method if (*neuron_key, 1) in relevance else ""
                    answers[neuron_key] = {"corpus": corpus.task, "explained": explained}
                    answers[neuron_key] |= {"histogram": bars, "contexts": []}
            for row in self.ledger.store.read(contexts, CONTEXTS).filter(pc.field("rank") <= FIRST).to_pylist():
                neuron_key = (row["layer"], row["neuron"])
                if neuron_key in asked:
                    activation, values = short(row["activation"]), relevance.get((*neuron_key, row["rank"]))
                    tokens, where = pieces(tokenizer, row["input_ids"]), row["place"]
                    text = shown(tokens, row["position"], AROUND, values, activation=activation, where=where)
                    answers[neuron_key]["contexts"].append(text)
        return answers

    def relevance(self) -> tuple[str, dict[tuple[int, int, int], list[float]]]:
        """The label of the method that explains max-activating examples, and its relevance of tokens.

        Relevance is by (layer, neuron, rank). ("", {}) if it is not computed.
        """
        node = heatmaps_of(self.config, self.model, self.ledger)
        if node is None or not self.ledger.is_done(node.artifact):
            return "", {}
        maps = {}
        for row in self.ledger.read(node.artifact, HEATMAPS).to_pylist():
            if row["relevance"] is not None:
                maps[row["layer"], row["neuron"], row["rank"]] = row["relevance"]
        return self.results.label(node.artifact.method), maps

    def texts(self, neurons: Mapping[NeuronKey, _Neuron]) -> dict[str, list[str]]:
        """The tokens of every sample that is shown, by its id; empty if the tokenizer cannot be loaded."""
        names_of_task: dict[str, set[str]] = defaultdict(set)
        for neuron in neurons.values():
            for (_, task, _, name, _, _), _ in neuron.best:
                names_of_task[task].add(name)
        images = self.model.resolved.preprocessing
        try:
            tokenizer = None if images else load_tokenizer(self.model.resolved.config)
        except (UserError, ModelUnavailable):
            return {}
        texts = {}
        for task, names in names_of_task.items():
            rows = rows_by_id(self.ledger.store, self.model.inputs[task].paths, VIEW, sorted(names))
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


def _inhabited(edges: list[float], counts: list[int]) -> dict[str, Any]:
    """The bins of a histogram from the first to the last that is not empty, and the edges between them."""
    first = next((at for at, count in enumerate(counts) if count), 0)
    last = max((at for at, count in enumerate(counts) if count), default=0)
    return {"edges": edges[first:last], "counts": counts[first : last + 1]}


def _add(neurons: dict[NeuronKey, _Neuron], task_method: TaskMethod, row: dict[str, Any]) -> None:
    """Add a row of relevance of neurons to the facts of its neurons."""
    columns = (row[name] for name in ("layer", "neuron", "name", "relevance", "position", "activation"))
    for layer, number, name, relevance, position, activation in zip(*columns, strict=True):
        neuron = neurons[layer, number]
        neuron.name = name
        neuron.total[task_method] += relevance
        neuron.kept[task_method] += 1
        seen = (abs(relevance), *task_method, row["sample_id"], position, activation)
        (heapq.heappush if len(neuron.best) < SAMPLES else heapq.heappushpop)(neuron.best, (seen, relevance))


def _samples(neuron: _Neuron, texts: dict[str, list[str]], results: Results, linked: frozenset[str]) -> Iterator[Entry]:
    """Yield the samples in which a neuron is most relevant, the most relevant first, for its entry."""
    for (_, task, method, name, position, activation), relevance in sorted(neuron.best, reverse=True):
        if name in texts:
            facts: dict[str, Any] = {"id": name, "task": task, "method": results.label(method)}
            facts["linked"] = name in linked
            facts |= {"relevance": short(relevance), "activation": short(activation)}
            yield shown(texts[name], position, AROUND, **facts)
