"""Trials of a method's open options, by which the most faithful are chosen (AttnLRP 4.1, B.2).

Every method for which the config lists several values of an option is tried under all its sets of options on a few
samples: it explains them, and their deletion and insertion curves are computed together. The set with the largest mean
area between both curves (delta A) wins; see `jobs.plan.choices`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from closelook.evaluation.schema import TRIALS as SCHEMA
from closelook.evaluation.scoring.faithfulness.flips import TARGET_LOGIT
from closelook.evaluation.scoring.faithfulness.scores import choose, trials_of
from closelook.jobs.config import configured
from closelook.jobs.plan.cells import schema_of
from closelook.jobs.plan.choices import in_words
from closelook.jobs.plan.node import Cell, Choice, Node, Part, Run
from closelook.jobs.plan.units import FORWARD_FACTOR, NO_RELEVANCE, cut_units
from closelook.jobs.products import relevance
from closelook.jobs.products.curves import UNIT_TOKENS, check_flippable, forward_tokens, with_replacements
from closelook.jobs.products.record import Made, NodeFailed, Opened, Product, Reject, Row, Unit
from closelook.jobs.store import Artifact
from closelook.lrp_core.records.explained import NONE

if TYPE_CHECKING:
    from closelook.jobs.products.drawing import DrawnCurves
    from closelook.jobs.runner.rows import Outcome
    from closelook.lrp_core.methods.record import Method


def nodes(run: Run) -> Iterator[Node]:
    """The choices of the plan: one for each method with open options, on each model, task and precision."""
    for model in run.plan.models:
        for choice in model.choices:
            yield choice.of(model)


def units(run: Run, nodes: Sequence[Choice]) -> Iterator[Unit]:
    """Cut the samples on which options are tried into units of one batch of curves each.

    The more trials all choices of this model, task and precision have, the fewer samples a unit has. Choices that are
    complete count too, so that a choice that is computed again is cut as before. The `inputs` of a part are the starts
    of the batches in which its trials are explained.

    Raises UserError for a task none of whose tokens may be removed.
    """
    first, inputs, budget = nodes[0], nodes[0].inputs, run.token_budget(nodes[0])
    check_flippable((first.flips,), first.plan, inputs, first.rows)
    every = [choice for choice in first.plan.choices if choice.artifact.columns[:3] == first.artifact.columns[:3]]
    costs = forward_tokens(inputs, (first.flips,))  # [N] tokens of a trial
    longest = int(costs[first.rows].max(initial=1))
    all_trials = sum(len(choice.options) for choice in every)
    size = max(1, min(run.config.shard_rows, UNIT_TOKENS // (longest * all_trials)))
    asked_trials = sum(len(node.options) for node in nodes)  # of choices still to be made
    for cut in cut_units(inputs, first.rows.tolist(), budget, size):
        parts = tuple(Part(node, cut.name, inputs=cut.cuts) for node in nodes)
        tokens = int(costs[np.asarray(cut.rows)].sum()) * asked_trials
        yield Unit(cut.name, parts, cut.rows, tokens=tokens, token_budget=FORWARD_FACTOR * budget)


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made | NodeFailed]:
    """By choice (a part), the areas of its trials' curves, a row or a reject a sample; NodeFailed if a trial fails."""
    from closelook.jobs.products.drawing import Drawing, claims_of
    from closelook.jobs.runner.rows import compute_parts

    explained, failed = _explained(opened, parts, rows)
    claims = {}
    for trial, made in explained.items():
        name = trial.node.artifact.method
        variants = [request.variant for request in trial.node.requests]
        claims[name] = claims_of(name, made.table, variants)
    choice: Choice = parts[0].node
    drawing = Drawing(opened.view, choice.artifact.dtype, (choice.flips,), opened.token_budget, claims)

    def draw(_: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, DrawnCurves]:
        return dict.fromkeys(parts, drawing.run(with_replacements(opened, choice.texts, rows)))

    # The curves of all parts are computed at once, in the name of the first part.
    outcomes = compute_parts(replace(TRIALS, compute=draw), opened, parts[:1], rows)
    drawn = outcomes[parts[0]]
    if isinstance(drawn, NodeFailed):
        raise drawn
    by_name = {trial.node.artifact.method: made for trial, made in explained.items()}
    return {part: failed.get(part) or _made(part, rows, drawn, by_name) for part in parts}


def _explained(
    opened: Opened, parts: Sequence[Part], rows: Sequence[Row]
) -> tuple[dict[Part, Made], dict[Part, NodeFailed]]:
    """The relevance of every trial, by a part of its own; and the parts that fail because one of their trials fails."""
    from closelook.jobs.runner.rows import compute_parts, describe

    # Runtimes of trials are not kept, so no memory is measured.
    def explain(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Any]:
        return dict.fromkeys(parts, relevance.explainer_of(opened, [part.node for part in parts]).batch(rows))

    methods = dict(opened.options.methods)
    trials: dict[Part, Part] = {}
    for part in parts:
        for cell, method in _trials(part.node, methods[part.node.artifact.method]):
            methods[method.name] = method
            trials[Part(cell, part.shard)] = part
    opened = replace(opened, of_run=replace(opened.options, methods=methods))
    product = replace(relevance.RELEVANCE, compute=explain)
    cuts = parts[0].inputs
    outcomes = compute_parts(product, opened, list(trials), rows, cuts if len(rows) > cuts[-1] else (0,))
    explained: dict[Part, Made] = {}
    failed: dict[Part, NodeFailed] = {}
    for trial, outcome in outcomes.items():
        if isinstance(outcome, NodeFailed):
            failed.setdefault(trials[trial], NodeFailed(f"{trial.node.artifact.method}: {outcome}"))
            continue
        try:
            made = relevance.tables_of(trial, outcome.of(trial))
        except Exception as error:
            failed.setdefault(trials[trial], NodeFailed(f"{trial.node.artifact.method}: {describe(error)}"))
            continue
        explained[trial] = replace(made, rejects=(*outcome.rejects, *made.rejects), splits=outcome.splits)
    return explained, failed


def _trials(choice: Choice, method: Method) -> Iterator[tuple[Cell, Method]]:
    """Yield the cell and the method record of each trial, under a name of its own such as `ig(steps=10)`."""
    for name, options in zip(_names(choice), choice.options, strict=True):
        trial = method.configured(name, **options)
        cell = Artifact("relevance", *choice.artifact.columns[:3], trial.name)
        request = replace(choice.request, method=trial.name)
        yield Cell(artifact=cell, forwards=trial.pass_name, requests=(request,)), trial


def _names(choice: Choice) -> list[str]:
    """The names of a choice's trials."""
    return [f"{choice.artifact.method}({in_words(options)})" for options in choice.options]


def _made(part: Part, rows: Sequence[Row], drawn: Outcome, explained: Mapping[str, Made]) -> Made:
    """The shard of a choice: a row for each sample with finite curves in some trial, a reject for each other sample."""
    names = _names(part.node)
    curves: list[DrawnCurves] = [next(iter(values.values())) for values in drawn.values]
    areas = {}
    for name in names:
        for drawn_row in chain.from_iterable(batch.rows[name] for batch in curves):
            # relevance that explains no number has curves of both numbers
            if drawn_row["explanation"] != NONE or drawn_row["score"] == TARGET_LOGIT:
                areas[name, drawn_row["sample_id"], drawn_row["order"]] = drawn_row["area"]
    kept: list[Row] = []
    lost: list[Reject] = []
    for row in rows:
        sample = row["sample_id"]
        morf, lerf = ([areas.get((name, sample, order), np.nan) for name in names] for order in ("morf", "lerf"))
        if np.isfinite(np.add(morf, lerf)).any():
            kept.append({"sample_id": sample, "area_morf": morf, "area_lerf": lerf})
            continue
        rejects: dict[str, list[Reject]] = {}
        for name in names:
            of_curves = [curve.rejects[name].values() for curve in curves]
            rejects[name] = [*explained[name].rejects, *drawn.rejects, *chain(*of_curves)]
        lost.append(_why(sample, rejects))
    splits = drawn.splits + sum(batch.splits for batch in curves) + max(made.splits for made in explained.values())
    return Made(pa.Table.from_pylist(kept, schema=SCHEMA), tuple(lost), splits)


def _why(sample: str, rejects: Mapping[str, Sequence[Reject]]) -> Reject:
    """The reject of a sample: the first trial's reason that is not merely that relevance is missing."""
    of_sample = [(name, reject) for name, every in rejects.items() for reject in every if reject.sample_id == sample]
    telling = [(name, reject) for name, reject in of_sample if reject.reason != NO_RELEVANCE] or of_sample
    if not telling:
        return Reject(sample, "not_finite", f"{next(iter(rejects))}: no trial has finite curves")
    name, reject = telling[0]
    return Reject(sample, reject.reason, f"{name}: {reject.detail}")


def _conclude(run: Run, node: Choice, shards: Sequence[str]) -> dict[str, Any]:
    """Entries of the manifest: each trial with its mean and number of samples, and the index of the chosen one."""
    table = run.store.read(list(shards), SCHEMA) if shards else SCHEMA.empty_table()
    table = table.sort_by("sample_id")  # a mean does not depend on how samples were cut into units
    areas = (
        np.array(table[name].to_pylist(), float).reshape(-1, len(node.options)) for name in ("area_morf", "area_lerf")
    )
    tried = trials_of(*areas)
    chosen = choose(tried)
    trials = []
    for trial, options in zip(tried, node.options, strict=True):
        entry = asdict(trial) | {"options": options, "left_out": len(node.rows) - trial.n}
        if not trial.n:
            entry["delta_area"] = None
        trials.append(entry)
    method = configured(run.config)[node.artifact.method].configured(**node.options[chosen])
    return {"trials": trials, "chosen": chosen, "method": method.key()}


def _entries(run: Run, node: Choice) -> dict[str, Any]:
    """The variant by which trials are compared, as an entry of the manifest."""
    return {"variants": [list(node.request.variant)]}


def lines(run: Run, planned: Sequence[Choice], computed: Sequence[Choice]) -> Iterator[str]:
    """Yield the options that each choice has chosen, with the number of trials and the area of the chosen one."""
    for choice in computed:
        record = run.ledger.record(choice.artifact)
        if record is not None and "chosen" in record:
            best = record["trials"][record["chosen"]]
            on = "no sample has curves" if not best["n"] else f"ΔA {best['delta_area']:.3g} on {best['n']} samples"
            chosen = in_words(choice.options[record["chosen"]])
            yield f"{choice}: {chosen} of {len(record['trials'])} trials ({on})"


TRIALS = Product(
    name="trials",
    title="choices of options",
    stage="select",
    nodes=nodes,
    schema=partial(schema_of, "trials"),
    units=units,
    compute=compute,
    lines=lines,
    entries=_entries,
    conclude=_conclude,
)
