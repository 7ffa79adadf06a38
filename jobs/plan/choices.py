"""Choices among the options that a config leaves open by listing several values.

A choice is made for each model, precision, task and method, by trials on some samples (artifact `trials`, stage
`select`). The chosen options are part of the keys of cells, so these cells have no key, and are not planned, before the
choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from closelook.evaluation.schema import TRIALS, titled
from closelook.evaluation.scoring.faithfulness.areas import preferred
from closelook.evaluation.scoring.faithfulness.flips import AREAS
from closelook.jobs.config import PerturbConfig, RunConfig, SelectConfig
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.models import Reading, ResolvedModel
from closelook.jobs.plan.node import Choice
from closelook.jobs.plan.proposals import Texts, keyed, with_tokens
from closelook.jobs.store import Artifact, Ledger
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.explained import versions
from closelook.lrp_core.records.option import plain
from closelook.lrp_core.records.types import Request, UserError

VERSION = 2  # raised when choices change
CURVES_VERSION = 3  # raised when faithfulness curves change; trials are compared by them


def undecided(choice: Choice) -> str:
    """A line that says which options are to be chosen, and by which command."""
    return f"{choice}: one of {len(choice.options)} sets of options is to be chosen; run `closelook select`"


def in_words(options: Mapping[str, Any]) -> str:
    """Options as text: `name=value`, joined by commas."""
    return ", ".join(f"{name}={plain(value)}" for name, value in options.items())


def curve_settings(config: RunConfig) -> PerturbConfig:
    """The settings of the curves by which trials are compared: `perturb` of the run, or its defaults."""
    return config.perturb or PerturbConfig()


class Tried(NamedTuple):
    """A method for a task and precision, and the sets of options that it is tried under."""

    task: str
    dtype: str
    method: Method
    options: Sequence[Mapping[str, Any]]


def choice_of(
    config: RunConfig,
    resolved: ResolvedModel,
    reading: Reading,
    views: Inputs,
    tried: Tried,
    requests: Sequence[Request],
    ledger: Ledger,
) -> Choice:
    """The choice of a method among the options it is tried under; `requests` are its variants in the run.

    Raises UserError if the model allows none of the ways to remove tokens, or if all samples would be used to choose
    and none were left to score.
    """
    task, dtype, method, options = tried
    settings, select = curve_settings(config), config.select or SelectConfig()
    way = first_way(resolved, settings.area_ways)
    only = settings.model_copy(update={"measures": (AREAS,), "ways": (way,)})
    flips = with_tokens(resolved.filled(only.flips_of(resolved.kind, "token", config.seed)[0]), reading)
    texts = Texts.of(views, [flips])
    request = _compared([request for request in requests if settings.asks(request)] or requests)
    rows = views.subset(select.samples, select.draw)
    if len(rows) == views.rows:
        raise UserError(
            f"config key 'select.samples': all {len(rows)} samples of task {task} would choose the options of "
            f"{method.name}, and none would be left to score it on: set fewer samples"
        )
    configured = [method.configured(**chosen).key() for chosen in options]
    key_fields: dict[str, Any] = dict(
        version=[VERSION, CURVES_VERSION],
        schema=titled(TRIALS),
        **resolved.key_fields,
        tokenizer=views.tokenizer,
        inputs=views.digest,
        masks=views.digest_of("masks"),
        task=task,
        dtype=dtype,
        methods=configured,
        variant=request.variant,
        **versions([request.explanation]),
        seed=config.seed if method.seeded else None,
        flips=flips.key(),
        subset=rows.tolist(),
        **keyed(texts),
    )
    node = Choice(
        artifact=Artifact("trials", resolved.config.name, task, dtype, method.name),
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
    """The first of the perturbations `ways` that the model allows. Raises UserError if it allows none."""
    kind = resolved.kind
    known = [way for way in ways if way in kind.perturbations]
    if not known:
        raise UserError(
            f"config key 'perturb.ways': model {resolved.config.name} knows no perturbation "
            f"{' or '.join(map(repr, ways))}; add {' or '.join(map(repr, kind.perturbations))}"
        )
    return known[0]


def _compared(requests: Sequence[Request]) -> Request:
    """The request by whose curves trials are compared: that of the preferred variant (`preferred`)."""
    variant = preferred([request.variant for request in requests])
    return next(request for request in requests if request.variant == variant)
