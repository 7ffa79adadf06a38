"""Checks that methods explain the logits of the unchanged model, and that padding and other methods change nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.verification.record import Finding, Gap
from closelook.lrp_core.verification.rounding import Rounded, differ, distance
from closelook.lrp_core.verification.stock import explained_logits, first_difference, outputs_of, stock_logits
from closelook.lrp_core.verification.trial import Row, Trial, named, real_tokens
from closelook.lrp_core.views.view import ModelView

STOCK = "logits are those of the stock model"
TOLD = "methods explain these logits"
PADDED = "padded batches give what single samples give"
ORDER = "methods give the same in any order, and leave the model as it was"


def check_stock(trial: Trial) -> Finding:
    """Check that the view gives each sample, alone, the logits of the stock model.

    A failure names the shortest beginning of the sample that fails, and the first module whose output differs.
    """
    view = trial.view

    def locate(at: int) -> str:
        row = trial.smallest(trial.rows[at], lambda part: _of_stock(trial, part).ratio > 1)
        gap, batch = _of_stock(trial, row), trial.batch([row])
        ours = outputs_of(view.model, lambda: explained_logits(view, batch))
        first = first_difference(ours, outputs_of(view.model, lambda: stock_logits(view, row)), gap.bound)
        return f"first in {first or 'the step from the last module to the logits'}, for {named(row)}"

    return Finding.of(STOCK, [_of_stock(trial, row) for row in trial.rows], locate)


def _of_stock(trial: Trial, row: Row) -> Gap:
    """The gap between the view's and the stock model's logits for one row.

    For float64 models the bound is that of float32, to which the stock model rounds inside.
    """
    view, batch = trial.view, trial.batch([row])
    unit = max(trial.unit, torch.finfo(torch.float32).eps)
    ours = Rounded.of(view, lambda: explained_logits(view, batch), unit)
    return ours.gap(f"a sample of {len(row['input_ids'])} tokens", stock_logits(view, row)[None])


def check_told(trial: Trial) -> Finding:
    """Check that the logits which methods return with their relevance are those of the view."""
    batch = trial.together
    logits = explained_logits(trial.view, batch).cpu()
    expected = logits.gather(1, batch.target_ids[:, None])[:, 0]
    gaps = []
    for name, results in trial.results.items():
        logits_told = results.map(lambda relevance: relevance.logit_target)
        gaps.append(logits_told.gap(name, expected, scale=logits))
    return Finding.of(TOLD, gaps)


def check_padded(trial: Trial) -> Finding:
    """Check that relevance in a batch, padded on either side, is that of each sample alone."""
    if trial.view.kind.images:
        return Finding.without(PADDED, "pictures have no padding")
    gaps, cases = [], []
    left = trial.batch(trial.rows, "left")
    for name, method in trial.with_progress("methods, padded and alone"):
        padded_left = trial.explained(method, left)
        for at, row in enumerate(trial.rows):
            results, batch = trial.of_row(name, at), trial.batch([row])
            alone = real_tokens(trial.explained(method, batch), batch, 0)
            gaps += [results.gap(name, alone), results.gap(name, alone, ours=real_tokens(padded_left, left, at))]
            cases += [(method, "right", row), (method, "left", row)]
    return Finding.of(PADDED, gaps, lambda at: _where_padding_shows(trial, *cases[at], gaps[at].bound))


def _where_padding_shows(trial: Trial, method: Method, side: str, row: Row, bound: float) -> str:
    """Words for a failure of one method: the shortest failing input, and the first module in which padding shows."""
    longest = max(trial.rows, key=lambda other: len(other["input_ids"]))

    def padded_and_alone(part: Row) -> tuple[Tensor, Tensor]:
        """The relevance of `part` beside the longest row, so padded, and by itself."""
        batch = trial.batch([part, longest], side)
        together = real_tokens(trial.explained(method, batch), batch, 0)
        batch_alone = trial.batch([part])
        return together, real_tokens(trial.explained(method, batch_alone), batch_alone, 0)

    smallest = trial.smallest(row, lambda part: differ(*padded_and_alone(part), bound))
    batch, alone, view = trial.batch([smallest, longest], side), trial.batch([smallest]), trial.view
    length = len(smallest["input_ids"])
    without_padding = slice(length) if side == "right" else slice(-length, None)

    def without_neighbour(outputs: Tensor) -> Tensor:
        return outputs[:1, without_padding] if outputs.dim() > 1 else outputs[:1]

    together, by_itself = (outputs_of(view.model, partial(explained_logits, view, of)) for of in (batch, alone))
    of_sample = {path: [*map(without_neighbour, outputs)] for path, outputs in together.items()}
    first = first_difference(of_sample, by_itself, bound)
    where = f"first in {first}" if first else "in no layer of the forward pass"
    return f"{where}, for {named(smallest)} padded on the {side} to {len(longest['input_ids'])} tokens"


def check_order(trial: Trial) -> Finding:
    """Run all methods again, in the opposite order and on a fresh copy of the model: they must give the same.

    On the CPU relevance must be bit-equal. The model's logits must stay bit-equal after every method, and no hook may
    remain. So each of two methods has run once before the other, and once on a model that the other has not touched.
    """
    view, other, batch = trial.view, trial.fresh(), trial.together
    row, hooks = trial.rows[0], _hooked(other)
    before = stock_logits(other, row)
    gaps: list[Gap] = []
    for name, method in trial.with_progress("methods, in the other order", backwards=True):
        again = trial.explained(method, batch, other)
        for at in range(len(trial.rows)):
            gap = trial.of_row(name, at).gap(name, real_tokens(again, batch, at))
            gaps.append(replace(gap, bound=0.0) if view.device.type == "cpu" else gap)  # GPUs sum in no fixed order
        gaps.append(Gap(f"logits after {name}", distance(stock_logits(other, row), before), 0.0))
    gaps.append(Gap("logits after all methods", distance(stock_logits(view, row), before), 0.0))
    for path in sorted({*_hooked(view), *_hooked(other)}.difference(hooks)):
        gaps.append(Gap(f"hooks that {path} keeps", 1.0, 0.0))

    def locate(at: int) -> str:
        method = trial.methods.get(gaps[at].subject)
        return _culprit(trial, method) if method is not None else ""

    return Finding.of(ORDER, gaps, locate)


def _hooked(view: ModelView) -> list[str]:
    """The paths of modules with forward hooks. Accelerate sets none: it wraps `forward`."""
    return [path for path, module in view.model.named_modules() if module._forward_hooks or module._forward_pre_hooks]


def _culprit(trial: Trial, method: Method) -> str:
    """Words for a failure: the method after which `method` gives other relevance than on a fresh model."""
    expected = trial.explained(method, trial.together, trial.fresh()).tokens
    for name, before in trial.with_progress("methods, before the one that differs"):
        view = trial.fresh()
        trial.explained(before, trial.together, view)
        if not torch.equal(trial.explained(method, trial.together, view).tokens, expected):
            return f"it gives other numbers after {name}"
    return "it gives other numbers after several methods"
