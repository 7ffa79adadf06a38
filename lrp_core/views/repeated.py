"""Explanations of several labels, or of several tokens of an answer, of the same texts.

The rows of a batch are repeated with each label as their target, or with each token of a span, for methods that explain
one token at a time: their relevance for a span is the weighted sum of that for its tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from closelook.lrp_core.records.types import Batch, Relevance, Request, Requests, Results, UnusableRows, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from closelook.lrp_core.views.view import ModelView

LABELS_AT_ONCE = 8  # labels that share a forward pass, at most: each needs memory for the head's states
TOKENS_AT_ONCE = 64  # tokens of a span that are computed at once, at most
#: The fields of a Relevance that are added up over the tokens of a span.
_LINEAR = ("tokens", "decoder_tokens", "layers", "explained", "logit_target", "baseline")


def explained_by_label(
    explain: Callable[..., Results], view: ModelView, batch: Batch, requests: Requests, *, shared: bool
) -> Results:
    """The results of `requests`, each explaining its `label` in place of the targets and foils of `batch`.

    `explain(batch, requests, texts=)` is the pass of a method. With `shared` it takes `texts`, and up to LABELS_AT_ONCE
    labels share a forward pass. Raises UserError for a model without labels, for unknown labels, and if only some
    requests have a label; raises UnusableRows as the pass does, for rows of `batch`.
    """
    import torch

    from closelook.lrp_core.records.variants import tiled

    if not view.kind.labels or view.predicts_score:
        raise UserError("only classifiers have labels, and this model is none: leave `label` out of the requests")
    if any(request.label is None for request in requests):
        raise UserError("only some requests of the pass name a label: name one in each, or in none")
    for request in requests:
        if request.label not in range(view.n_targets):
            raise UserError(f"there is no label {request.label}: the model's labels are 0 to {view.n_targets - 1}")
    asked: dict[tuple[Request, ...], list[int]] = {}  # by requests without their label: the labels that ask for these
    for label in dict.fromkeys(request.label for request in requests if request.label is not None):
        plain = tuple(replace(request, label=None) for request in requests if request.label == label)
        asked.setdefault(plain, []).append(label)
    size, step = len(batch), LABELS_AT_ONCE if shared else 1
    results: Results = {}
    for plain, labels in asked.items():
        for start in range(0, len(labels), step):
            some = labels[start : start + step]
            targets = torch.tensor(some, device=batch.target_ids.device).repeat_interleave(size)
            rows = replace(tiled(batch, len(some)), target_ids=targets, foil_ids=None)
            for request, result in _explained(explain, rows, plain, size, shared).items():
                for at, label in enumerate(some):
                    results[replace(request, label=label)] = _rows(result, at * size, size)
    return {request: results[request] for request in requests}


def _rows(relevance: Relevance, start: int, size: int) -> Relevance:
    """The `size` rows of a result from `start` on."""
    return relevance.mapped(lambda value: value[start : start + size])


def _explained(explain: Callable[..., Results], rows: Batch, requests: Requests, size: int, shared: bool) -> Results:
    """The results for `rows`, in which the `size` texts of a batch repeat; with `shared` they share a forward pass."""
    try:
        return explain(rows, requests, **({"texts": size} if shared else {}))
    except UnusableRows as error:
        raise UnusableRows(sorted({row % size for row in error.rows}), error.reason, error.detail) from None


def summed(explain: Callable[..., Results], batch: Batch, requests: Requests, *, shared: bool) -> Results:
    """The relevance for the spans of a batch: the sum over a span's tokens of weight times relevance for the token.

    `explain(batch, requests, texts=)` is the pass of a method, for one token of each row. With `shared` it takes
    `texts`, and up to TOKENS_AT_ONCE tokens share a forward pass. Raises UnusableRows as the pass does, for rows of
    `batch`.
    """
    from closelook.lrp_core.records.variants import tiled

    positions, ids, weights = batch.span_positions, batch.span_ids, batch.span_weights
    assert positions is not None
    assert ids is not None
    assert weights is not None
    size, step = len(batch), TOKENS_AT_ONCE if shared else 1
    plain = replace(batch, span_positions=None, span_ids=None, span_weights=None)
    totals: dict[Request, dict[str, Tensor]] = {request: {} for request in requests}
    results: Results = {}
    for start in range(0, ids.shape[1], step):
        columns = slice(start, start + step)
        rows = tiled(plain, ids[:, columns].shape[1])
        rows = replace(rows, position=positions[:, columns].T.flatten(), target_ids=ids[:, columns].T.flatten())
        results = _explained(explain, rows, requests, size, shared)
        for request, result in results.items():
            _add(totals[request], result, weights[:, columns].T)
    by_request: Results = {}
    for request, result in results.items():
        fields: dict[str, Any] = dict(totals[request])
        by_request[request] = Relevance(**fields, logit_foil=None, conserves=result.conserves)
    return by_request


def _add(totals: dict[str, Tensor], result: Relevance, weights: Tensor) -> None:
    """Add to `totals` the fields of `result`, whose rows are N tokens of B spans [N * B], times `weights` [N, B]."""
    for name in _LINEAR:
        values = getattr(result, name)
        if values is None:
            continue
        by_token = values.unflatten(0, weights.shape)  # [N, B, ...]
        factor = weights.to(values).reshape(*weights.shape, *[1] * (values.dim() - 1))
        added = (by_token * factor).sum(0)
        totals[name] = totals[name] + added if name in totals else added
