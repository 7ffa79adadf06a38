"""Explanations of given labels of a classifier: the rows of a batch are repeated with each label as their target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lrp_core.records.types import Batch, Relevance, Request, Requests, Results, UnusableRows, UserError

if TYPE_CHECKING:
    from lrp_core.views.view import ModelView

AT_ONCE = 8  # labels that share a forward pass, at most: each needs memory for the head's states


def explained_by_label(
    explain: Callable[..., Results], view: ModelView, batch: Batch, requests: Requests, *, shared: bool
) -> Results:
    """The results of `requests`, each explaining its `label` in place of the targets and foils of `batch`.

    `explain(batch, requests, texts=)` is the pass of a method. With `shared` it takes `texts`, and up to AT_ONCE labels
    share a forward pass. Raises UserError for a model without labels, for unknown labels, and if only some requests
    have a label; raises UnusableRows as the pass does, for rows of `batch`.
    """
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
    size = len(batch)
    step, options = (AT_ONCE, {"texts": size}) if shared else (1, {})
    results: Results = {}
    for plain, labels in asked.items():
        for start in range(0, len(labels), step):
            some = labels[start : start + step]
            try:
                by_request = explain(_for_labels(batch, some), plain, **options)
            except UnusableRows as error:
                raise UnusableRows(sorted({row % size for row in error.rows}), error.reason, error.detail) from None
            for request, result in by_request.items():
                for at, label in enumerate(some):
                    results[replace(request, label=label)] = _rows(result, at * size, size)
    return {request: results[request] for request in requests}


def _for_labels(batch: Batch, labels: Sequence[int]) -> Batch:
    """The whole batch with the first of `labels` as every target, then with the next, and so on; without foils."""
    import torch

    from lrp_core.records.variants import tiled

    targets = torch.tensor(labels, device=batch.target_ids.device).repeat_interleave(len(batch))
    return replace(tiled(batch, len(labels)), target_ids=targets, foil_ids=None)


def _rows(relevance: Relevance, start: int, size: int) -> Relevance:
    """The `size` rows of a result from `start` on."""
    return relevance.mapped(lambda value: value[start : start + size])
