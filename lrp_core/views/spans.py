"""Spans of an answer for methods that explain one token at a time: the weighted sum of the relevance for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from lrp_core.records.types import Batch, Relevance, Request, Requests, Results, UnusableRows
from lrp_core.records.variants import tiled

AT_ONCE = 64  # tokens of a span that are computed at once, at most
#: The fields of a Relevance that are added up over the tokens of a span.
_LINEAR = ("tokens", "decoder_tokens", "layers", "explained", "logit_target", "baseline")


def summed(explain: Callable[..., Results], batch: Batch, requests: Requests, *, shared: bool) -> Results:
    """The relevance for the spans of a batch: the sum over a span's tokens of weight times relevance for the token.

    `explain(batch, requests, texts=)` is the pass of a method, for one token of each row. With `shared` it takes
    `texts`, and up to AT_ONCE tokens share a forward pass. Raises UnusableRows as the pass does, for rows of `batch`.
    """
    positions, ids, weights = batch.span_positions, batch.span_ids, batch.span_weights
    assert positions is not None
    assert ids is not None
    assert weights is not None
    size, step = len(batch), AT_ONCE if shared else 1
    plain = replace(batch, span_positions=None, span_ids=None, span_weights=None)
    totals: dict[Request, dict[str, Tensor]] = {request: {} for request in requests}
    results: Results = {}
    for start in range(0, ids.shape[1], step):
        columns = slice(start, start + step)
        rows = tiled(plain, ids[:, columns].shape[1])
        rows = replace(rows, position=positions[:, columns].T.flatten(), target_ids=ids[:, columns].T.flatten())
        try:
            results = explain(rows, requests, **({"texts": size} if shared else {}))
        except UnusableRows as error:
            raise UnusableRows(sorted({row % size for row in error.rows}), error.reason, error.detail) from None
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
        if not isinstance(values, Tensor):
            continue
        by_token = values.unflatten(0, weights.shape)  # [N, B, ...]
        factor = weights.to(values).reshape(*weights.shape, *[1] * (values.dim() - 1))
        added = (by_token * factor).sum(0)
        totals[name] = totals[name] + added if name in totals else added
