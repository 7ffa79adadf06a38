"""Deletion and insertion curves (AttnLRP B.2): the model's score while tokens are removed by relevance.

Their keys cover the relevance that orders the tokens, and which tokens are removed, how and in what steps. The curves
of all methods of a unit are computed together, so that perturbed inputs that their orders share run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from closelook.evaluation.schema import CURVES as SCHEMA
from closelook.evaluation.schema import titled
from closelook.evaluation.scoring.faithfulness.flips import AREAS, Flips
from closelook.evaluation.scoring.faithfulness.resampling import SINGLE_TOKEN
from closelook.jobs.plan import choices
from closelook.jobs.plan.cells import schema_of
from closelook.jobs.plan.gather import gather
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.node import Cell, ModelPlan, Part, Run
from closelook.jobs.plan.proposals import Texts, keyed, with_tokens
from closelook.jobs.plan.units import FORWARD_FACTOR, cut_by_tokens
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit
from closelook.jobs.products.relevance import method_entries
from closelook.jobs.store import Artifact, Ledger
from closelook.lrp_core.records.kinds import RESAMPLE
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from closelook.jobs.config import PerturbConfig, RunConfig
    from closelook.jobs.products.drawing import Claim
    from closelook.lrp_core.records.types import Request

ROWS_AT_ONCE = 1 << 10  # samples that are looked through for one whose tokens may be removed
UNIT_TOKENS = 2_000_000  # of the forward passes of one method, if every perturbed input ran


@dataclass(frozen=True, eq=False, kw_only=True)
class CurvesNode(Cell):
    """The curves of one cell of relevance."""

    flips: tuple[Flips, ...]
    texts: Texts | None  # from which other tokens are drawn, if these replace removed ones

    @property
    def relevance(self) -> Artifact:
        """The cell of relevance that orders the tokens."""
        return self.made_of[0]

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways of removal whose curves have an area."""
        return tuple(flips.way for flips in self.flips if flips.measure == AREAS)


def nodes(run: Run) -> Iterator[CurvesNode]:
    """The curves of every planned cell of relevance that the settings name, in the first precision of its task."""
    if run.config.perturb is None:
        return
    for model in run.plan.models:
        yield from curves_of(run.config, run.config.perturb, model)


def curves_of(config: RunConfig, settings: PerturbConfig, model: ModelPlan) -> Iterator[CurvesNode]:
    """The curves of one model."""
    resolved = model.resolved
    ways = settings.flips_of(resolved.kind, resolved.output, config.seed)
    flips = tuple(with_tokens(resolved.filled(way), model.reading) for way in ways)
    if not flips:
        return
    of_task: dict[str, tuple[Texts | None, list[int]]] = {}
    for task, inputs in model.inputs.items():
        if settings.takes(task=task):
            of_task[task] = Texts.of(inputs, flips), subset(config, settings, model, task).tolist()
    for cell in model.cells:
        variants = tuple(request for request in cell.requests if settings.asks(request))
        if variants and cell.artifact.task in of_task and _is_drawn(settings, model, cell):
            texts, rows = of_task[cell.artifact.task]
            yield _node(model, cell, variants, flips, texts, rows)


def _is_drawn(settings: PerturbConfig, model: ModelPlan, cell: Cell) -> bool:
    """True if the cell is relevance of tokens, not of answers, in the first precision, by a method of the settings."""
    artifact = cell.artifact
    of_tokens = artifact.product == "relevance" and artifact.dtype == model.config.first_dtype(artifact.task)
    is_answer = model.inputs[artifact.task].of_answers  # has its sources removed instead: jobs/products/answers
    return of_tokens and not is_answer and settings.takes(method=artifact.method)


def _node(
    model: ModelPlan,
    cell: Cell,
    variants: tuple[Request, ...],
    flips: tuple[Flips, ...],
    texts: Texts | None,
    rows: list[int],
) -> CurvesNode:
    """The node of a cell's curves, for these `variants`, on the samples `rows` (indices into the views)."""
    relevance, inputs = cell.artifact, model.inputs[cell.artifact.task]
    return CurvesNode(
        artifact=Artifact("curves", *relevance.columns),
        key_fields={
            "version": choices.CURVES_VERSION,
            "schema": titled(SCHEMA),
            "relevance": relevance.key,
            "variants": [request.variant for request in variants],
            "flips": [each.key() for each in flips],
            "subset": rows,
            "masks": inputs.digest_of("masks"),
            "gold": inputs.digest_of("gold"),
            "labels": model.resolved.labels,
            **keyed(texts),
        },
        samples=len(rows),
        made_of=(relevance,),
        model=model,
        requests=variants,
        chosen=cell.chosen,
        flips=flips,
        texts=texts,
    )


def subset(config: RunConfig, settings: PerturbConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The samples that get curves, the same for every method: indices into the task's views."""
    return model.inputs[task].subset(settings.samples, config.seed)


def units(run: Run, nodes: Sequence[CurvesNode]) -> Iterator[Unit]:
    """Units of samples whose forward passes have about UNIT_TOKENS tokens.

    The `inputs` of a part are the paths of its relevance. Raises UserError for a task none of whose tokens may be
    removed.
    """
    first, config = nodes[0], run.config
    assert config.perturb is not None
    inputs = first.inputs
    rows = subset(config, config.perturb, first.plan, inputs.task)
    check_flippable(first.flips, first.plan, inputs, rows)
    schema = schema_of("relevance", first.artifact.dtype)
    shards = {node: shards_by_sample(run.ledger, node.relevance, schema) for node in nodes}
    budget = FORWARD_FACTOR * run.token_budget(first)
    variants = sum(len(node.requests) for node in nodes)
    for cut in cut_by_tokens(inputs, rows, forward_tokens(inputs, first.flips), UNIT_TOKENS):
        names = inputs.ids(np.asarray(cut.rows))
        parts = tuple(Part(node, cut.name, shards_of(names, by_sample)) for node, by_sample in shards.items())
        yield replace(cut, parts=parts, tokens=cut.tokens * variants, token_budget=budget)


def shards_by_sample(ledger: Ledger, artifact: Artifact, schema: pa.Schema) -> dict[str, str]:
    """For each sample id, the path of the shard of the artifact that has the sample."""
    return {
        sample: path
        for path in ledger.files(artifact)
        for sample in ledger.store.read(path, schema, ["sample_id"])["sample_id"].to_pylist()
    }


def shards_of(samples: Sequence[str], by_sample: Mapping[str, str]) -> tuple[str, ...]:
    """The paths, each once, of the shards that have these samples; those without a path in `by_sample` are skipped."""
    return tuple(dict.fromkeys(by_sample[sample] for sample in samples if sample in by_sample))


def forward_tokens(inputs: Inputs, flips: Sequence[Flips]) -> np.ndarray:
    """The number of tokens in the forward passes of each sample's curves [N], if every perturbed input ran."""
    lengths = inputs.lengths
    return sum(
        (2 * lengths * curve_set.draws * curve_set.most_states(lengths) for curve_set in flips), np.zeros_like(lengths)
    )


def check_flippable(flips: Sequence[Flips], model: ModelPlan, inputs: Inputs, rows: np.ndarray) -> None:
    """Raises UserError if no sample has a token that may be removed. If only some have none, they are rejects later.

    Also raises for removal by `resample` if all texts consist of one repeated token, since no other can be drawn.
    Images are not checked: every pixel may be removed.
    """
    if any(curve_set.pixels for curve_set in flips):
        return
    if any(curve_set.way == RESAMPLE and inputs.proposal(curve_set.kept_ids).tokens == 1 for curve_set in flips):
        raise UserError(f"task {inputs.task} on {model.name}: {SINGLE_TOKEN}")
    slot, error = model.resolved.kind.slot, None
    pieces = (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))
    for row in chain.from_iterable(gather(inputs.table, piece).to_pylist() for piece in pieces):
        try:
            for curve_set in flips:
                curve_set.chosen(row, slot)
        except UserError as refused:
            error = refused
        else:
            return
    if error is not None:
        keeps_special = any(not curve_set.flip_special and not curve_set.paper for curve_set in flips)
        first = "set `perturb.flip_special: true`, or " if keeps_special else ""
        raise UserError(f"task {inputs.task} on {model.name}: {error} in any sample: {first}leave the task out")


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The curves of a batch of rows, by part.

    Rows that a method did not explain, or none of whose tokens may be removed, become rejects.
    """
    from closelook.jobs.products.drawing import Drawing

    first: CurvesNode = parts[0].node
    names = {row["sample_id"] for row in rows}
    claims = {part.node.artifact.method: _claims(opened, part.node, part.inputs, names) for part in parts}
    drawing = Drawing(opened.view, first.artifact.dtype, first.flips, opened.token_budget, claims)
    drawn = drawing.run(with_replacements(opened, first.texts, rows))
    return {part: drawn.made(part.node.artifact.method) for part in parts}


def with_replacements(opened: Opened, texts: Texts | None, rows: Sequence[Row]) -> Sequence[Row]:
    """View rows with `replacements` [D, T], if removed tokens are replaced by other tokens in D draws.

    `texts` None: unchanged.
    """
    if texts is None:
        return rows
    proposal = opened.remembered("proposal", texts, lambda: texts.proposal(opened.store))
    return [texts.replaced(proposal, row) for row in rows]


def _claims(opened: Opened, node: CurvesNode, shards: Sequence[str], names: set[str]) -> dict[str, list[Claim]]:
    """The relevance of the variants that a node asks for, by sample id, for the samples `names`."""
    from closelook.jobs.products.drawing import RELEVANCE_COLUMNS, claims_of

    variants = [request.variant for request in node.requests]
    claims: dict[str, list[Claim]] = {}
    for path in shards:
        table = opened.store.read(path, schema_of("relevance", node.artifact.dtype), RELEVANCE_COLUMNS)
        kept = pa.array([name in names for name in table["sample_id"].to_pylist()], pa.bool_())
        claims |= claims_of(node.artifact.method, table.filter(kept), variants)
    return claims


CURVES = Product(
    name="curves",
    title="sets of faithfulness curves",
    stage="perturb",
    nodes=nodes,
    schema=partial(schema_of, "curves"),
    units=units,
    compute=compute,
    entries=method_entries,
)
