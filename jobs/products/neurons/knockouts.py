"""Ablation of neurons (AttnLRP 4.3): the explained number after the first neurons of a ranking are ablated.

Keys cover the relevance that ranks the neurons; for other rankings, the samples and the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import KNOCKOUTS as SCHEMA
from closelook.evaluation.schema import NEURONS, titled
from closelook.evaluation.scoring.head_orders import ACTIVATION, RANDOM
from closelook.jobs.plan.node import ModelPlan, Node, Part, Run
from closelook.jobs.plan.units import FORWARD_FACTOR, NO_FOIL, NO_RELEVANCE, cut_by_tokens
from closelook.jobs.products.record import Made, Opened, Product, Reject, Row, Unit
from closelook.jobs.store import Artifact
from closelook.lrp_core.records.explained import needs_foil, versions

if TYPE_CHECKING:
    from closelook.evaluation.scoring.neuron_ablation import Neurons
    from closelook.jobs.config import RunConfig
    from closelook.jobs.config.neurons import KnockoutConfig
    from closelook.jobs.plan.models import ResolvedModel

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
OTHERS = (RANDOM, ACTIVATION)  # rankings beside those of methods
UNIT_TOKENS = 2_000_000  # of a unit's forward passes for one ranking


@dataclass(frozen=True, eq=False, kw_only=True)
class KnockoutNode(Node):
    """The ablation of the neurons of one ranking on a task."""

    ranking: str
    neurons: Artifact | None  # the relevance that ranks the neurons; None: the worker makes the ranking
    explanation: str
    counts: tuple[int, ...]  # how many neurons are ablated


def nodes(run: Run) -> Iterator[KnockoutNode]:
    """The ablations of every model."""
    for model in run.plan.models:
        yield from knockouts_of(run.config, model)


def knockouts_of(config: RunConfig, model: ModelPlan) -> Iterator[KnockoutNode]:
    """A node for each planned cell of neurons that the config names and, for each task of these, for each of OTHERS."""
    settings = config.neurons.knockout if config.neurons else None
    if settings is None or not settings.takes(model=model.name):
        return
    first_cells: dict[str, tuple[Artifact, str]] = {}
    for cell in model.cells:
        artifact = cell.artifact
        if artifact.product != "neurons" or not settings.takes(task=artifact.task):
            continue
        known = [request.explanation for request in cell.requests]
        lacks_foils = model.inputs[artifact.task].without_foil > 0
        of_all = [name for name in known if not (lacks_foils and _needs_foil(model.resolved, name))]
        chosen = settings.explanation or (of_all or known)[0]
        _, explanation = first_cells.get(artifact.task, (artifact, chosen))  # one for all rankings, which are compared
        if explanation not in known:
            continue
        first_cells.setdefault(artifact.task, (artifact, explanation))
        if settings.takes(method=artifact.method):
            yield _node(config, settings, model, artifact, explanation)
    for artifact, explanation in first_cells.values():
        for ranking in OTHERS:
            yield _node(config, settings, model, artifact, explanation, ranking)


def _needs_foil(model: ResolvedModel, explanation: str) -> bool:
    """True if only samples with a foil of their own can be explained so: a classifier's get the runner-up."""
    return needs_foil(explanation) and model.output != "label"


def _node(
    config: RunConfig, settings: KnockoutConfig, model: ModelPlan, cell: Artifact, explanation: str, other: str = ""
) -> KnockoutNode:
    """The node of the ranking by the relevance in `cell` or, for its task and precision, of one of OTHERS."""
    rows, ranking = subset(config, model, cell.task), other or cell.method
    neurons = None if other else cell
    if neurons is not None:
        ranked_by: dict[str, Any] = {"neurons": neurons.key}
    else:
        ranked_by = {"ranking": ranking, **model.key_fields(cell, rows.tolist(), config.seed)}
    return KnockoutNode(
        # `ranking` is a field of the node too, since a method of the run may be named as one of OTHERS
        artifact=Artifact("knockouts", *cell.columns[:3], ranking),
        key_fields=dict(
            version=VERSION,
            schema=titled(SCHEMA),
            explanation=explanation,
            counts=settings.counts,
            **versions([explanation]),
            **ranked_by,
        ),
        samples=len(rows),
        made_of=() if neurons is None else (neurons,),
        forwards=explanation,
        model=model,
        ranking=ranking,
        neurons=neurons,
        explanation=explanation,
        counts=tuple(settings.counts),
    )


def subset(config: RunConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The samples of the ablation, the same for every ranking: indices into the views."""
    return model.inputs[task].subset(config.finer("neurons")[task], config.seed)


def units(run: Run, nodes: Sequence[KnockoutNode]) -> Iterator[Unit]:
    """Units of samples whose forward passes have about UNIT_TOKENS tokens for one ranking.

    The `inputs` of a part are the paths of the relevance that ranks its neurons; None if there is none.
    """
    first, inputs = nodes[0], nodes[0].inputs
    rows = subset(run.config, first.plan, inputs.task)
    budget = FORWARD_FACTOR * run.token_budget(first)
    paths = {node: None if node.neurons is None else run.ledger.files(node.neurons) for node in nodes}
    for cut in cut_by_tokens(inputs, rows, inputs.lengths * (1 + len(first.counts)), UNIT_TOKENS):
        parts = tuple(Part(node, cut.name, of_node) for node, of_node in paths.items())
        yield replace(cut, parts=parts, tokens=cut.tokens * len(parts), token_budget=budget)


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The explained numbers after ablation of the neurons that each part ranks first, by part.

    If memory runs out, all are computed again with half the token budget. A sample without the foil that is explained,
    or without relevance by which a part ranks its neurons, becomes a reject of that part.
    """
    from closelook.evaluation.scoring.neuron_ablation import NeuronAblation
    from closelook.jobs.runner.rows import that_fits

    rankings = {part: _rankings(opened, part, rows) for part in parts}
    node: KnockoutNode = parts[0].node
    assert opened.model is not None
    needs_foils = _needs_foil(opened.model, node.explanation)
    unfit = [row["sample_id"] for row in rows if needs_foils and row["foil_id"] is None]
    no_foil = {sample: Reject(sample, NO_FOIL, "a contrastive explanation needs a foil") for sample in unfit}
    rows = [row for row in rows if row["sample_id"] not in no_foil]

    def tables(token_budget: int) -> dict[Part, list[Row]]:
        knockout = NeuronAblation(opened.view, node.counts, node.explanation, opened.options.seed, token_budget)
        numbers: dict[Part, list[Row]] = {part: [] for part in parts}
        for row in rows:
            sample = row["sample_id"]
            ranked: dict[Part, Neurons | None] = {}  # None: NeuronAblation makes the ranking itself
            for part, ranking in rankings.items():
                if ranking is None or sample in ranking:
                    ranked[part] = None if ranking is None else ranking[sample]
            explained = knockout.sample(row, {part.node.ranking: neurons for part, neurons in ranked.items()})
            facts = {"sample_id": sample, "explanation": node.explanation, "removed": [0, *node.counts]}
            for part in ranked:
                name = part.node.ranking
                # [1 + N] numbers: without ablation, then after each of the counts
                numbers[part].append(facts | {"ranking": name, "explained": explained[name].tolist()})
        return numbers

    numbers, splits = that_fits(tables, opened.token_budget)
    made = {part: _made(numbers[part], part, rows, rankings[part], splits) for part in parts}
    return {part: replace(values, rejects=(*values.rejects, *no_foil.values())) for part, values in made.items()}


def _made(
    numbers: list[Row], part: Part, rows: Sequence[Row], rankings: Mapping[str, Neurons] | None, splits: int
) -> Made:
    """The shard of one ranking, with rejects for the samples that it does not rank."""
    detail = f"{part.node.ranking} has no relevance of it"
    without = [row["sample_id"] for row in rows if rankings is not None and row["sample_id"] not in rankings]
    rejects = tuple(Reject(sample, NO_RELEVANCE, detail) for sample in without)
    return Made(pa.Table.from_pylist(numbers, schema=SCHEMA), rejects, splits)


def _rankings(opened: Opened, part: Part, rows: Sequence[Row]) -> dict[str, Neurons] | None:
    """The neurons (layer, number) of each sample, the most relevant first, by sample id.

    Samples without relevance are left out. None if no relevance ranks the neurons: then the worker makes the ranking.
    """
    node: KnockoutNode = part.node
    if part.inputs is None:
        return None
    names = pa.array([row["sample_id"] for row in rows], pa.string())
    rankings: dict[str, Neurons] = {}
    for path in part.inputs:
        table = opened.store.read(path, NEURONS, ["sample_id", "explanation", "layer", "neuron"])
        of_samples = pc.is_in(table["sample_id"], names)
        table = table.filter(pc.and_(of_samples, pc.equal(table["explanation"], node.explanation)))
        samples, layers, neurons = (table[column].to_pylist() for column in ("sample_id", "layer", "neuron"))
        for sample, of_layers, of_neurons in zip(samples, layers, neurons, strict=True):
            rankings[sample] = list(zip(of_layers, of_neurons, strict=True))
    return rankings


def _conclude(run: Run, node: KnockoutNode, shards: Sequence[str]) -> dict[str, Any]:
    """Entries of the manifest: the relevance that ranked the neurons, and how many samples have finite numbers."""
    numbers = [run.store.read(path, SCHEMA, ["explained"])["explained"].to_pylist() for path in shards]
    finite = [bool(np.isfinite(explained).all()) for part in numbers for explained in part]
    entries: dict[str, Any] = {"neurons": node.neurons and node.neurons.name, "samples": finite.count(True)}
    if finite.count(False):
        entries["rejects"] = {"not_finite": finite.count(False)}
    return entries


KNOCKOUTS = Product(
    name="knockouts",
    title="sets of knock-outs",
    stage="neurons",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
    conclude=_conclude,
    turns=(1,),
)
