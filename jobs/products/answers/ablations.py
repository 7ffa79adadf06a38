"""Answers to prompts from which some sources were removed (ablations).

Methods such as leave-one-out are computed from them, and all methods' sources are judged by them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from closelook.evaluation.ablations.masks import Sizes, masks_of
from closelook.evaluation.schema import ABLATIONS as SCHEMA
from closelook.evaluation.schema import RUNTIME, titled
from closelook.jobs.config import AblationsConfig, ModelConfig, RunConfig, configured
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.node import Cell, ModelPlan, Node, Part, Run
from closelook.jobs.plan.units import FORWARD_FACTOR, cut_by_tokens
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit
from closelook.jobs.store import Artifact, Store
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.ablated import Ablated

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
UNIT_TOKENS = 500_000  # of the forward passes of one unit of work


@dataclass(frozen=True, eq=False, kw_only=True)
class AblationsNode(Node):
    """The ablations of one model's answers to a task, in one way of removing sources."""

    rows: tuple[int, ...]  # samples: indices into the views
    sizes: Sizes
    seed: int


@dataclass(frozen=True, eq=False, kw_only=True)
class SourcesNode(Cell):
    """The sources of a task's answers by one method.

    `requests` are those of the relevance of tokens from which sources are computed; empty for methods that use
    ablations.
    """

    pool: str
    seed: int
    shown: frozenset[str]  # ids of samples whose answers are also explained sentence by sentence


def nodes(run: Run) -> Iterator[AblationsNode]:
    """A node for each way of removal, of every model and task that the settings name."""
    settings = run.config.ablations
    if settings is None:
        return
    for model in run.plan.models:
        for task, inputs in model.inputs.items():
            if inputs.of_answers and settings.takes(model=model.name, task=task):
                rows = inputs.subset(settings.samples, run.config.seed).tolist()
                for way in settings.ways if rows else ():
                    yield _node(run.config, settings, model, inputs, rows, way)


def _node(
    config: RunConfig, settings: AblationsConfig, model: ModelPlan, inputs: Inputs, rows: list[int], way: str
) -> AblationsNode:
    """The node of one way of removal, for the samples `rows` of a task."""
    dtype, sizes = model.config.first_dtype(inputs.task), _sizes_of(config, settings, model.config)
    return AblationsNode(
        artifact=Artifact("ablations", model.name, inputs.task, dtype, way),
        key_fields={
            "version": VERSION,
            "schema": titled(SCHEMA),
            **model.resolved.key_fields,
            "tokenizer": inputs.tokenizer,
            "inputs": inputs.digest_of("answers"),
            "task": inputs.task,
            "dtype": dtype,
            "way": way,
            "sizes": [sizes.fit, sizes.judge, sizes.shapley],
            "seed": config.seed,
            "subset": rows,
        },
        samples=len(rows),
        model=model,
        rows=tuple(rows),
        sizes=sizes,
        seed=config.seed,
    )


def of_units(config: RunConfig, model: ModelConfig) -> dict[str, Method]:
    """The methods of a model that are computed from ablations, by their names in the run."""
    methods, settings = configured(config), config.ablations
    named = [entry.name for entry in config.methods_of(model) if settings and settings.takes(method=entry.name)]
    return {name: methods[name] for name in named if "units" in methods[name].given}


def _sizes_of(config: RunConfig, settings: AblationsConfig, model: ModelConfig) -> Sizes:
    """The number of masks to draw for each sample: to fit, to judge, and for Shapley values."""
    wants_sets = any(method.seeded for method in of_units(config, model).values())
    return Sizes(settings.fit, settings.judge, settings.shapley if wants_sets else 0)


def units(run: Run, nodes: Sequence[AblationsNode]) -> Iterator[Unit]:
    """Units of samples whose forward passes have about UNIT_TOKENS tokens."""
    first = nodes[0]
    budget = FORWARD_FACTOR * run.token_budget(first)
    costs = first.inputs.lengths * (first.sizes.fit + first.sizes.judge + first.sizes.shapley)
    for cut in cut_by_tokens(first.inputs, first.rows, costs, UNIT_TOKENS):
        yield replace(cut, tokens=cut.tokens * len(nodes), token_budget=budget)


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The answers of a batch of samples to their ablated prompts, for every way of removal."""
    return {part: _made(opened, part, rows) for part in parts}


def _made(opened: Opened, part: Part, rows: Sequence[Row]) -> Made:
    """The ablations of all `rows` in one way of removal, a row each; writes the timings, too.

    Raises UnusableRows, with the row's index, for a prompt that cannot be ablated so.
    """
    from closelook.evaluation.ablations.running import answers_of_masks
    from closelook.jobs.runner.rows import that_fits
    from closelook.lrp_core.records.types import UnusableRows

    node: AblationsNode = part.node
    way = node.artifact.method
    entries, timed, splits = [], [], 0
    for at, row in enumerate(rows):
        masks = masks_of(row["sample_id"], len(row["unit_spans"]), node.seed, node.sizes)
        run = partial(answers_of_masks, opened.view, opened.tokenizer, row, masks.kept, way)
        start = time.perf_counter()
        try:
            numbers, split = that_fits(run, opened.token_budget)
        except UnusableRows as error:
            raise UnusableRows((at,), error.reason, error.detail) from None
        timed.append(
            {
                "batch_id": row["sample_id"],
                "method": f"ablations {way}",
                "stage": "method",
                "length": len(row["input_ids"]),
                "batch": len(masks.kept),  # all prompts of a sample count as one batch
                "wall_s": time.perf_counter() - start,
                "device": str(opened.view.device),
            }
        )
        splits += split
        entries.append({"sample_id": row["sample_id"], **_columns({**vars(masks), **numbers._asdict()})})
    path = f"{timings_of(opened.store, node.artifact)}/{part.shard}.parquet"
    opened.store.write_shard(path, pa.Table.from_pylist(timed, schema=RUNTIME), RUNTIME)
    return Made(pa.Table.from_pylist(entries, schema=SCHEMA), splits=splits)


def _columns(facts: dict[str, Any]) -> dict[str, Any]:
    """The masks and numbers of a sample as columns of a row: arrays become lists, random masks a list for each size."""
    random = facts["random"]
    columns = facts | {"random": [masks.tolist() for masks in random.values()], "random_gone": list(random)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns.items()}


def ablated_of(row: Row) -> Ablated:
    """The ablations that a row of schema ABLATIONS holds."""
    indices = {name: np.array(row[name], int) for name in ("without", "fit", "judge", "shapley")}
    kept, logits, log_odds = (np.array(row[name]) for name in ("kept", "logits", "log_odds"))
    weights = np.array(row["shapley_weights"], float)
    return Ablated(kept, logits, log_odds, row["full"], shapley_weights=weights, **indices)


def timings_of(store: Store, ablations: Artifact) -> str:
    """The folder with the timings of ablated prompts, apart from passes of methods, with which they do not compare."""
    folder = store.runtime(ablations.model, ablations.task, ablations.dtype)
    return f"{folder}/ablations={ablations.method}"


ABLATIONS = Product(
    name="ablations",
    title="sets of ablations",
    stage="ablations",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
)
