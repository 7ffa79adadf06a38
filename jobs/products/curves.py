"""Faithfulness curves (AttnLRP B.2): what a model says as tokens go, in the order that relevance gives them.

They are keyed by the relevance that orders the tokens and by which of them go, how and in what steps. The curves of all
methods of a unit are drawn together, so that what their orders have in common runs once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from evaluation.schema import CURVES as SCHEMA
from evaluation.schema import titled
from evaluation.scoring.flips import AREAS, Flips
from evaluation.scoring.resampling import SINGLE_TOKEN
from jobs.plan import choices
from jobs.plan.cells import schema_of
from jobs.plan.inputs import Inputs
from jobs.plan.models import load_tokenizer
from jobs.plan.node import Cell, ModelPlan, Node, Part, Run
from jobs.plan.proposals import Texts, keyed, with_tokens
from jobs.plan.spool import gather
from jobs.plan.units import FORWARD_FACTOR, cut_by_tokens
from jobs.products.record import Made, Opened, Product, Row, Unit
from jobs.products.relevance import method_entries
from jobs.runner.closing import close
from jobs.store import Artifact, Ledger
from lrp_core.kinds import MASK, RESAMPLE
from lrp_core.types import UserError

if TYPE_CHECKING:
    from jobs.config import ModelConfig, PerturbConfig, RunConfig
    from jobs.products.drawing import Claim

UNIT_TOKENS = 2_000_000  # of the forwards of one method in one way, before equal states merge


@dataclass(frozen=True, eq=False, kw_only=True)
class CurvesNode(Cell):
    """The curves of one cell of relevance."""

    flips: tuple[Flips, ...]
    texts: Texts | None  # of tokens in place of those that go

    @property
    def relevance(self) -> Artifact:
        return self.made_of[0]

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways in which tokens go one after the other."""
        return tuple(flips.way for flips in self.flips if flips.measure == AREAS)


def nodes(run: Run) -> Iterator[CurvesNode]:
    """The curves of every planned cell of relevance that the settings name, in the first precision of its task."""
    if run.config.perturb is None:
        return
    for model in run.plan.models:
        yield from curves_of(run.config, run.config.perturb, model)


def curves_of(config: RunConfig, settings: PerturbConfig, model: ModelPlan) -> Iterator[CurvesNode]:
    """The curves of one model."""
    flips = _flips_of(config, settings, model)
    for cell in model.cells if flips else ():
        variants = tuple(request for request in cell.requests if settings.asks(request))
        if variants and _is_drawn(settings, model, cell):
            yield _node(config, settings, model, cell, variants, flips)


def _flips_of(config: RunConfig, settings: PerturbConfig, model: ModelPlan) -> tuple[Flips, ...]:
    """The ways in which tokens go, with the tokens of the tokenizer that they need."""
    kind, output = model.resolved.kind, model.resolved.output
    flips = tuple(model.resolved.filled(each) for each in settings.flips_of(kind, output, config.seed))
    if not any(each.way in (MASK, RESAMPLE) for each in flips):
        return flips
    tokenizer = load_tokenizer(model.resolved.config)
    return tuple(with_tokens(each, tokenizer) for each in flips)


def _is_drawn(settings: PerturbConfig, model: ModelPlan, cell: Cell) -> bool:
    place = cell.artifact
    first_dtype = model.resolved.config.dtypes_for(place.task)[0]
    of_tokens = place.product == "relevance" and place.dtype == first_dtype
    return of_tokens and settings.takes(task=place.task, method=place.method)


def _node(
    config: RunConfig,
    settings: PerturbConfig,
    model: ModelPlan,
    cell: Cell,
    variants: tuple[Any, ...],
    flips: tuple[Flips, ...],
) -> CurvesNode:
    place, inputs = cell.artifact, model.inputs[cell.artifact.task]
    rows = subset(config, settings, model, place.task)
    texts = Texts.of(inputs, flips)
    return CurvesNode(
        artifact=Artifact("curves", place.model, place.task, place.dtype, place.method),
        key_fields={
            "version": choices.CURVES_VERSION,
            "schema": titled(SCHEMA),
            "relevance": place.key,
            "variants": [[request.explanation, request.embedding] for request in variants],
            "flips": [each.key() for each in flips],
            "subset": rows.tolist(),
            "masks": inputs.masks_digest,
            "gold": inputs.gold_digest,
            "labels": model.resolved.labels,
            **keyed(texts),
        },
        samples=len(rows),
        made_of=(place,),
        model=model,
        requests=variants,
        chosen=cell.chosen,
        flips=flips,
        texts=texts,
    )


def subset(config: RunConfig, settings: PerturbConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The samples, the same for every method: indices into the views."""
    return model.inputs[task].subset(settings.samples, config.seed)


def _expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    settings = config.perturb
    if settings is None or not settings.takes(task=task):
        return {}
    return {model.dtypes_for(task)[0]: sum(settings.takes(method=name) for name in methods)}


def units(run: Run, nodes: Sequence[Node]) -> Iterator[Unit]:
    """Samples whose forwards make about UNIT_TOKENS, each part with the shards of relevance that say something of them.

    Raises UserError for a task none of whose tokens may go.
    """
    first, config = nodes[0], run.config
    assert isinstance(first, CurvesNode)
    assert config.perturb is not None
    inputs = first.plan.inputs[first.artifact.task]
    rows = subset(config, config.perturb, first.plan, inputs.task)
    check_flippable(first.flips, first.plan, inputs, rows)
    shards = {node: _shards_by_sample(run.ledger, node.made_of[0]) for node in nodes}
    budget = FORWARD_FACTOR * (first.plan.resolved.config.token_budget or config.token_budget)
    variants = sum(len(node.requests) for node in nodes if isinstance(node, CurvesNode))
    for cut in cut_by_tokens(inputs, rows, forward_tokens(inputs, first.flips), UNIT_TOKENS):
        names = inputs.ids.take(cut.rows).to_pylist()
        parts = tuple(
            Part(node, cut.name, tuple(dict.fromkeys(own[name] for name in names if name in own)))
            for node, own in shards.items()
        )
        yield Unit(cut.name, parts, cut.rows, tokens=cut.tokens * variants, token_budget=budget)


def _shards_by_sample(ledger: Ledger, relevance: Artifact) -> dict[str, str]:
    """The shard of a cell of relevance that has a sample, by its id."""
    schema = schema_of("relevance", relevance.dtype)
    return {
        sample: path
        for path in ledger.files(relevance)
        for sample in ledger.store.read(path, schema, ["sample_id"])["sample_id"].to_pylist()
    }


def forward_tokens(inputs: Inputs, flips: Sequence[Flips]) -> np.ndarray:
    """Tokens of the forwards that the curves of each sample take [N], before equal states merge."""
    lengths = inputs.lengths
    return sum((2 * lengths * one.draws * one.most_states(lengths) for one in flips), np.zeros_like(lengths))


def check_flippable(flips: Sequence[Flips], model: ModelPlan, inputs: Inputs, rows: np.ndarray) -> None:
    """Raises UserError where no token of any sample may go; single samples are rejects. Of images, every pixel may.

    Raises it too where the texts hold no two tokens, so that none can be drawn in place of another.
    """
    if any(one.pixels for one in flips):
        return
    if any(one.way == RESAMPLE and inputs.proposal(one.kept_ids).tokens == 1 for one in flips):
        raise UserError(f"task {inputs.task} on {model.name}: {SINGLE_TOKEN}")
    slot, error = model.resolved.kind.slot, None
    for row in gather(inputs.table, rows).to_pylist():
        try:
            for one in flips:
                one.chosen(row, slot)
        except UserError as refused:
            error = refused
        else:
            return
    if error is not None:
        raise UserError(f"task {inputs.task} on {model.name}: {error}")


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The curves of the rows that a method explained and some of whose tokens may go; the others become rejects."""
    from jobs.products.drawing import Drawing

    nodes = [part.node for part in parts if isinstance(part.node, CurvesNode)]
    names = {row["sample_id"] for row in rows}
    claims = {
        node.artifact.method: _claims(opened, node, part.inputs, names) for node, part in zip(nodes, parts, strict=True)
    }
    drawing = Drawing(opened.view, nodes[0].artifact.dtype, nodes[0].flips, opened.token_budget, claims)
    drawn = drawing.run(with_replacements(opened, nodes[0].texts, rows))
    return {part: drawn.made(part.node.artifact.method) for part in parts}


def with_replacements(opened: Opened, texts: Texts | None, rows: Sequence[Row]) -> Sequence[Row]:
    """View rows with their `replacements` [D, T], where tokens are drawn in place of those that go."""
    if texts is None:
        return rows
    proposal = opened.remembered("proposal", texts, lambda: texts.proposal(opened.store))
    return [texts.replaced(proposal, row) for row in rows]


def _claims(opened: Opened, node: CurvesNode, shards: Sequence[str], names: set[str]) -> dict[str, list[Claim]]:
    """The relevance of a method's variants for the samples `names`, by sample id."""
    from jobs.products.drawing import RELEVANCE_COLUMNS, said_by

    variants = tuple((request.explanation, request.embedding) for request in node.requests)
    claims: dict[str, list[Claim]] = {}
    for path in shards:
        table = opened.store.read(path, schema_of("relevance", node.artifact.dtype), RELEVANCE_COLUMNS)
        kept = pa.array([name in names for name in table["sample_id"].to_pylist()], pa.bool_())
        claims |= said_by(node.artifact.method, table.filter(kept), variants)
    return claims


CURVES = Product(
    name="curves",
    title="sets of faithfulness curves",
    stage="perturb",
    nodes=nodes,
    expected=_expected,
    schema=partial(schema_of, "curves"),
    units=units,
    compute=compute,
    close=partial(close, entries_of=method_entries),
)
