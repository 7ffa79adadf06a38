"""Choices among the options that a config's lists leave open: what is tried, on which samples, under which key.

A choice is made for a model, precision, task and method by the trials' artifact (stage `select`). Cells of later stages
have what was chosen in their keys; before it is chosen there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evaluation.schema import TRIALS, titled
from evaluation.scoring.faithfulness.areas import preferred
from jobs.config import PerturbConfig, RunConfig, SelectConfig
from jobs.plan.inputs import Inputs
from jobs.plan.models import Reading, ResolvedModel
from jobs.plan.node import Choice
from jobs.plan.proposals import Texts, keyed, with_tokens
from jobs.store import Artifact, Ledger
from lrp_core.methods.record import Method
from lrp_core.records.explained import versions
from lrp_core.records.option import plain
from lrp_core.records.types import Request, UserError

VERSION = 2  # raised when choices change
CURVES_VERSION = 3  # raised when faithfulness curves change, by which trials are compared


def undecided(choice: Choice) -> str:
    """A line about a method whose cells wait for the choice of its options."""
    return f"{choice}: one of {len(choice.options)} sets of options is to be chosen; run `closelook select`"


def in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={plain(value)}" for name, value in options.items())


def curve_settings(config: RunConfig) -> PerturbConfig:
    """The settings of the curves by which trials are compared: the run's own."""
    return config.perturb or PerturbConfig()


def choice_of(
    config: RunConfig,
    resolved: ResolvedModel,
    views: Inputs,
    dtype: str,
    method: Method,
    options: Sequence[Mapping[str, Any]],
    requests: Sequence[Request],
    reading: Reading,
    ledger: Ledger,
) -> Choice:
    """The choice of `method` among `options`. `requests` are its variants in the run.

    Raises UserError for a model that knows none of the ways to take a token away.
    """
    settings, select = curve_settings(config), config.select or SelectConfig()
    way = first_way(resolved, settings.area_ways)
    flips = resolved.filled(settings.area_flips(way, resolved.kind, config.seed))
    flips = with_tokens(flips, reading)
    texts = Texts.of(views, [flips])
    request = _compared([request for request in requests if settings.asks(request)] or requests)
    rows = views.subset(select.samples, select.draw)
    if len(rows) == views.rows:
        raise UserError(
            f"config key 'select.samples': all {len(rows)} samples of task {views.task} would choose the options of "
            f"{method.name}, and none would be left to score it on: choose by fewer"
        )
    key_fields: dict[str, Any] = dict(
        version=[VERSION, CURVES_VERSION],
        schema=titled(TRIALS),
        model=resolved.identity,
        tokenizer=views.tokenizer,
        inputs=views.digest,
        masks=views.masks_digest,
        task=views.task,
        dtype=dtype,
        methods=[method.configured(**chosen).key() for chosen in options],
        variant=[request.explanation, request.embedding],
        **versions([request.explanation]),
        attention=resolved.config.attn,
        seed=config.seed if method.seeded else None,
        flips=flips.key(),
        subset=rows.tolist(),
        **keyed(texts),
    )
    node = Choice(
        artifact=Artifact("trials", resolved.config.name, views.task, dtype, method.name),
        key_fields=key_fields,
        samples=len(rows),
        options=tuple(map(dict, options)),
        request=request,
        rows=rows,
        flips=flips,
        texts=texts,
        record=None,
    )
    record = ledger.record(node.artifact) if ledger.is_done(node.artifact) else None
    return replace(node, record=record)


def first_way(resolved: ResolvedModel, ways: Sequence[str]) -> str:
    """The first of these perturbations that the model allows. Raises UserError if it allows none."""
    kind = resolved.kind
    known = [way for way in ways if way in kind.perturbations]
    if not known:
        raise UserError(
            f"config key 'perturb.ways': {kind.title}s such as {resolved.config.name} know no perturbation "
            f"{' or '.join(map(repr, ways))}; add {' or '.join(map(repr, kind.perturbations))}"
        )
    return known[0]


def _compared(requests: Sequence[Request]) -> Request:
    variant = preferred([(request.explanation, request.embedding) for request in requests])
    return next(request for request in requests if (request.explanation, request.embedding) == variant)
