"""The checks of one model: each compares two computations of the same numbers, within the effect of rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from torch import Tensor

from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import GRADIENTS, POSITIONS
from closelook.lrp_core.records.explained import whichever
from closelook.lrp_core.records.types import Batch, Relevance, Request, UnsupportedMethod
from closelook.lrp_core.records.variants import scaled, tiled
from closelook.lrp_core.rules import COMPOSITES, PLAIN
from closelook.lrp_core.verification.record import Finding, Gap, Verification
from closelook.lrp_core.verification.rounding import MARGIN, Rounded, distance, largest, unit_of
from closelook.lrp_core.verification.samples import random_rows
from closelook.lrp_core.verification.stock import explained_logits, stock_logits, without_biases
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

STOCK = "logits are those of the stock model"
SUMS = "relevance sums to the explained number where biases are zero"
PADDED = "padded batches give what single samples give"
DERIVATIVE = "gradients are numerical derivatives of the logits"
TWINS = "relevance is that of its slow propagation layer by layer"
#: Relative steps on an embedding: the smaller ones cross fewer kinks, the larger ones round less.
STEPS = {torch.float64: (2.0**-13, 2.0**-17), torch.float32: (2.0**-7, 2.0**-9)}

Row = Mapping[str, Any]
Tell = Callable[[str, int, int], None]  # called with a title, the number of steps that are done, and the number of all
Methods = Mapping[str, Method]


def silent(unit: str, done: int, total: int) -> None:
    """A callback for progress that does nothing."""


def verify_view(view: ModelView, methods: Methods, tell: Tell = silent) -> Verification:
    """Run all checks of a model, with those of `methods` that apply to it; `tell` is called with progress.

    Raises UnsupportedMethod if none of the methods applies.
    """
    applying = {name: method for name, method in methods.items() if method.applies(view.family.capabilities)}
    if not applying:
        raise UnsupportedMethod(
            f"there is no relevance of tokens to verify: none of {', '.join(methods)} applies to {view.family.title}"
        )
    rows = random_rows(view)
    checks = (_check_stock, _check_sums, _check_padded, _check_derivative, _check_twins)
    findings = []
    with torch.inference_mode(False), undisturbed(view):
        for done, check in enumerate(checks):
            tell("checks", done, len(checks))
            findings.append(check(view, applying, rows))
    tell("checks", len(checks), len(checks))
    device = str(view.device)
    if view.device.type == "cuda":
        device = torch.cuda.get_device_name(view.device)
    dtype = str(view.dtype).removeprefix("torch.")
    return Verification(type(view.model).__name__, view.family.name, view.kind.name, dtype, device, tuple(findings))


def _check_stock(view: ModelView, methods: Methods, rows: Sequence[Row]) -> Finding:
    """The logits of padded samples are those that users of the model get for each.

    For float64 models the bound is that of float32, to which the stock model rounds inside.
    """
    unit = max(unit_of(view), torch.finfo(torch.float32).eps)
    ours = Rounded.of(view, lambda: explained_logits(view, _batch(view, rows)), unit)
    gaps = []
    for at, row in enumerate(rows):
        of_row = ours.map(itemgetter(at))
        gaps.append(of_row.gap(f"a sample of {len(row['input_ids'])} tokens", stock_logits(view, row)))
    return Finding.of(STOCK, gaps)


def _check_sums(view: ModelView, methods: Methods, rows: Sequence[Row]) -> Finding:
    """Relevance sums to the explained number on the model without biases, by methods whose rules conserve."""
    conserving = [method for method in methods.values() if _conserves(method)]
    if not conserving:
        return Finding.without(SUMS, "no method has rules that conserve")
    if POSITIONS not in view.family.capabilities:
        return Finding.without(SUMS, "relevance of positions is not described")
    if any(has_offloaded_params(module) for module in view.model.modules()):
        return Finding.without(SUMS, "weights are offloaded")
    gaps, batch = [], _batch(view, rows)
    with without_biases(view.model):
        for method in conserving:
            results = Rounded.of(view, partial(_explained, view, method, batch), unit_of(view))
            scale = torch.cat([results.value.tokens.flatten(), results.value.explained])
            residual = results.map(lambda relevance: relevance.total - relevance.explained)
            gaps.append(residual.gap(method.name, torch.zeros_like(residual.value), scale=scale))
    return Finding.of(SUMS, gaps)


def _conserves(method: Method) -> bool:
    """True for a method that promises a sum and under whose rules norms, activations and gates are linear."""
    if not method.conserves or method.rules not in COMPOSITES:
        return False
    composite = COMPOSITES[method.rules]
    return composite.is_linear and not composite.bilinear.serves_gate


def _check_padded(view: ModelView, methods: Methods, rows: Sequence[Row]) -> Finding:
    """Relevance in a batch, padded on either side, is that of each sample alone, by every method."""
    if view.kind.images:
        return Finding.without(PADDED, "pictures have no padding")
    gaps, unit = [], unit_of(view)
    right, left = (_batch(view, rows, side) for side in ("right", "left"))
    for name, method in methods.items():
        padded = Rounded.of(view, partial(_explained, view, method, right), unit)
        padded_left = _explained(view, method, left)
        for at, row in enumerate(rows):
            single = _batch(view, [row])
            alone = _real_tokens(_explained(view, method, single), single, 0)
            of_row = padded.map(partial(_real_tokens, batch=right, row=at))
            gaps.append(of_row.gap(name, alone))
            gaps.append(of_row.gap(name, alone, ours=_real_tokens(padded_left, left, at)))
    return Finding.of(PADDED, gaps)


def _check_derivative(view: ModelView, methods: Methods, rows: Sequence[Row]) -> Finding:
    """Gradient times embedding, without rules, is the central difference of the first sample's explained number."""
    if view.dtype not in STEPS:
        return Finding.without(DERIVATIVE, "in half precision, differences are rounding: use --dtype float32")
    if view.kind.images or GRADIENTS not in view.family.capabilities:
        return Finding.without(DERIVATIVE, f"{view.family.title} give no gradients of tokens")
    batch = _batch(view, rows[:1])
    explanation = whichever(batch.foil_ids is not None)
    request = Request("gradient_x_input", explanation.name, "partial")

    def relevance() -> Tensor:
        result = explain_many(view, batch, [request], composite=PLAIN)[request]
        return _real_tokens(result, batch, 0).cpu()

    def difference(step: float) -> Tensor:
        tokens = batch.every_id.shape[1]
        steps = step * torch.eye(tokens, dtype=torch.float64)
        variants = scaled(tiled(batch, 2 * tokens), torch.cat([1 + steps, 1 - steps]))
        with torch.no_grad():
            ahead, behind = explanation.of(view.logits(variants)).cpu().chunk(2)
        return (ahead - behind) / (2 * step)

    unit = unit_of(view)
    ours = Rounded.of(view, relevance, unit)
    large, small = (Rounded.of(view, partial(difference, step), unit) for step in STEPS[view.dtype])
    curvature = distance(large.value, small.value)

    def gap(differences: Rounded) -> Gap:
        found = ours.gap("gradient_x_input", differences.value)
        beyond = MARGIN * differences.change + curvature
        return replace(found, bound=found.bound + beyond / largest(ours.value))

    return Finding.of(DERIVATIVE, [min(gap(large), gap(small), key=lambda found: found.ratio)])


def _check_twins(view: ModelView, methods: Methods, rows: Sequence[Row]) -> Finding:
    """Each method that has a slow twin, a method that must give the same relevance, gives the twin's relevance."""
    pairs = list(_twins(methods))
    if not pairs:
        return Finding.without(TWINS, "no method has a slow one that must give the same relevance")
    gaps, batch, unit = [], _batch(view, rows), unit_of(view)
    for pair in pairs:
        ours, theirs = (Rounded.of(view, partial(_tokens, view, method, batch), unit) for method in pair)
        subject = " and ".join(method.name for method in pair)
        gap = ours.gap(subject, theirs.value, scale=theirs.value)
        gaps.append(replace(gap, bound=gap.bound + theirs.gap(subject, ours.value).bound))
    return Finding.of(TWINS, gaps)


def _twins(methods: Methods) -> Iterator[tuple[Method, Method]]:
    """Yield (method, slow method that must give the same numbers)."""
    for method in methods.values():
        if method.same_as is not None and method.same_as[0] in methods:
            name, options = method.same_as
            yield methods[name], method.configured(**options)


def _batch(view: ModelView, rows: Sequence[Row], side: str = "right") -> Batch:
    """The rows as a batch, padded on `side`."""
    return Batch.collate(rows, view.pad_id, side)


def _explained(view: ModelView, method: Method, batch: Batch) -> Relevance:
    """Relevance of a batch by a method, on the CPU."""
    return Relevance.on_host([method(view, batch)])[0]


def _tokens(view: ModelView, method: Method, batch: Batch) -> Tensor:
    """Relevance of the tokens of a batch by a method, on the CPU."""
    return _explained(view, method, batch).tokens


def _real_tokens(relevance: Relevance, batch: Batch, row: int) -> Tensor:
    """Relevance of the tokens of one row without padding, followed by that of the decoder's tokens, if any."""
    parts = [relevance.tokens[row][batch.attention_mask[row] != 0]]
    if relevance.decoder_tokens is not None and batch.decoder_attention_mask is not None:
        parts.append(relevance.decoder_tokens[row][batch.decoder_attention_mask[row] != 0])
    return torch.cat(parts)
