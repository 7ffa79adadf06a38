"""Checks of the rules: sums, layer boundaries, slow methods that must agree, and numerical derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from accelerate.utils import has_offloaded_params
from closelook.lrp_core.views.generic import GenericView
from torch import Tensor, nn

from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import GRADIENTS
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.types import Relevance, UnsupportedMethod
from closelook.lrp_core.rules import COMPOSITES, Composite
from closelook.lrp_core.verification.derivatives import (
    EMBEDDINGS,
    STEPS,
    Entrance,
    check_held,
    composites_to_check,
    gap_of_derivatives,
)
from closelook.lrp_core.verification.record import Finding, Gap
from closelook.lrp_core.verification.rounding import differ
from closelook.lrp_core.verification.trial import Row, Trial, named
from closelook.lrp_core.views.view import ModelView

SUMS = "relevance sums to the explained number where biases are zero"
LAYERS = "relevance that enters a layer leaves it, or is kept by biases and softmax"
TWINS = "relevance is that of its slow propagation layer by layer"
DERIVATIVE = "numerical derivatives: {}"


def check_sums(trial: Trial) -> Finding:
    """Check that relevance sums to the explained number on the model without biases, for methods that conserve."""
    methods = [method for method in trial.methods.values() if _conserves(method)]
    if not methods:
        return Finding.without(SUMS, "no method has rules that conserve")
    if isinstance(trial.view, GenericView):
        return Finding.without(SUMS, "relevance of positions is not described")
    if any(has_offloaded_params(module) for module in trial.view.model.modules()):
        return Finding.without(SUMS, "weights are offloaded")
    gaps = []
    with without_biases(trial.view):
        for method in methods:
            results = trial.rounded(partial(trial.explained, method, trial.together))
            scale = torch.cat([results.value.tokens.flatten(), results.value.explained])
            residual = results.map(lambda relevance: relevance.total - relevance.explained)
            gaps.append(residual.gap(method.name, torch.zeros_like(residual.value), scale=scale))
    return Finding.of(SUMS, gaps)


def _conserves(method: Method) -> bool:
    """True for a method that promises a sum and under whose rules norms, activations and gates are linear."""
    return method.conserves and _is_linear(method) and not COMPOSITES[str(method.rules)].bilinear.serves_gate


def biases_of(model: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a model that are biases, by their names."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [tensor for name, tensor in tensors if name.endswith("bias") and tensor.is_floating_point()]


@contextmanager
def without_biases(view: ModelView) -> Iterator[None]:
    """Inside, all biases of the model are zero; afterwards they have their old values."""
    biases = biases_of(view.model)
    kept = [bias.detach().clone() for bias in biases]
    with torch.no_grad():
        try:
            for bias in biases:
                bias.zero_()
            yield
        finally:
            for bias, value in zip(biases, kept, strict=True):
                bias.copy_(value)


def check_layers(trial: Trial) -> Finding:
    """Check that the relevance that enters a layer leaves it or is kept, for methods that give boundaries."""
    needs = FINER["boundaries"].needs
    methods = [method for method in trial.methods.values() if "boundaries" in method.given and _is_linear(method)]
    if not methods or any(need not in trial.view.family.capabilities for need in needs):
        return Finding.without(LAYERS, "no method tells relevance at the boundaries of layers")
    gaps: list[Gap] = []
    for method in methods:
        results = trial.rounded(partial(trial.explained, method, trial.together, boundaries=True))
        peaks = results.value.peaks  # [B, L + 1]
        for layer in reversed(range(results.value.kept.shape[1])):
            unaccounted = results.map(partial(_unaccounted, layer=layer))
            nothing = torch.zeros_like(unaccounted.value)
            gaps.append(unaccounted.gap(f"{method.name}, layer {layer}", nothing, scale=peaks[:, layer]))

    def locate(at: int) -> str:
        first = next(gap for gap in gaps if gap.ratio > 1)
        return f"first, from the prediction down, in {first.subject}"

    return Finding.of(LAYERS, gaps, locate)


def _is_linear(method: Method) -> bool:
    """True for a method whose rules make norms and activations linear."""
    return method.rules in COMPOSITES and COMPOSITES[method.rules].is_linear


def _unaccounted(relevance: Relevance, layer: int) -> Tensor:
    """The relevance [B] that enters a layer from above, minus that below it and that which it keeps."""
    assert relevance.boundaries is not None
    assert relevance.kept is not None
    below, above = relevance.boundaries[:, layer], relevance.boundaries[:, layer + 1]
    return above - below - relevance.kept[:, layer].sum(-1)


def check_twins(trial: Trial) -> Finding:
    """Check each method that has a slow twin, a method that must give the same relevance, against the twin."""
    pairs = list(_twins(trial.methods))
    if not pairs:
        return Finding.without(TWINS, "no method has a slow one that must give the same relevance")
    gaps = [_between(trial, *pair) for pair in pairs]
    return Finding.of(TWINS, gaps, lambda at: _layer_of_twins(trial, *pairs[at], gaps[at].bound))


def _twins(methods: Mapping[str, Method]) -> Iterator[tuple[Method, Method]]:
    """Yield (method, slow method that must give the same numbers)."""
    for method in methods.values():
        if method.same_as is not None and method.same_as[0] in methods:
            name, options = method.same_as
            yield methods[name], method.configured(**options)


def _between(trial: Trial, quick: Method, slow: Method) -> Gap:
    """The gap between the relevance of two methods; its bound allows for the rounding of both."""
    results = trial.results[quick.name], trial.rounded(partial(trial.explained, slow, trial.together))
    ours, theirs = (result.map(lambda relevance: relevance.tokens) for result in results)
    subject = f"{quick.name} and {slow.name}"
    gap = ours.gap(subject, theirs.value, scale=theirs.value)
    return replace(gap, bound=gap.bound + theirs.gap(subject, ours.value).bound)


def _layer_of_twins(trial: Trial, quick: Method, slow: Method, bound: float) -> str:
    """Words for a failure: the first layer, from the top, whose heads differ, and the shortest failing input."""

    def heads(row: Row) -> tuple[Tensor, Tensor]:
        batch = trial.batch([row])
        ours, theirs = (trial.explained(method, batch, heads=True).heads for method in (quick, slow))
        assert ours is not None
        assert theirs is not None
        return ours, theirs

    row = trial.smallest(trial.rows[0], lambda part: differ(*heads(part), bound))
    ours, theirs = heads(row)  # [1, L, H, P]
    layers = reversed(range(ours.shape[1]))
    first = next((layer for layer in layers if differ(ours[:, layer], theirs[:, layer], bound)), None)
    where = "below all heads" if first is None else f"first, from the prediction down, in the heads of layer {first}"
    return f"{where}, for {named(row)}"


def check_derivatives(trial: Trial) -> Iterator[Finding]:
    """Check relevance under each rule alone, and under all rules of a method, against central differences."""
    composites = composites_to_check()
    for done, (title, composite) in enumerate(composites.items()):
        trial.tell("rules, by numerical derivatives", done, len(composites))
        check = DERIVATIVE.format(title)
        reason = _beyond_reach(trial.view, composite)
        yield Finding.without(check, reason) if reason else _derivative(trial, check, composite)


def _beyond_reach(view: ModelView, composite: Composite) -> str | None:
    """The reason why numerical derivatives under a composite cannot be taken; None if they can."""
    if view.dtype not in STEPS:
        return "in half precision, differences of numbers are rounding: use --dtype float32"
    if GRADIENTS not in view.family.capabilities:
        return f"{view.family.title} give no gradients"
    try:
        check_held(view, composite)
    except UnsupportedMethod as error:
        return str(error)
    return None


def _derivative(trial: Trial, check: str, composite: Composite) -> Finding:
    """The finding of the check of one composite by central differences, on the first sample."""
    row = trial.rows[0]

    def gap(part: Row, entrance: Entrance) -> Gap:
        return gap_of_derivatives(trial.view, trial.batch([part]), composite, entrance)

    def locate(at: int) -> str:
        smallest = trial.smallest(row, lambda part: gap(part, EMBEDDINGS).ratio > 1)
        where = _first_block(trial.view, lambda entrance: gap(smallest, entrance).ratio > 1)
        return f"{where}, for {named(smallest)}"

    return Finding.of(check, [gap(row, EMBEDDINGS)], locate)


def _first_block(view: ModelView, fails: Callable[[Entrance], bool]) -> str:
    """Words for a failure: the first block, from the prediction down, at whose input relevance differs."""
    for path in reversed(view.stacks):
        blocks: nn.Module = view.model.get_submodule(path)
        for name, block in reversed(list(blocks.named_children())):
            if fails(Entrance(block)):
                return f"first, from the prediction down, in {path}.{name} or behind it"
    return "below all blocks"
