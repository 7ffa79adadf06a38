"""Kernel SHAP (Lundberg & Lee 2017), drawn and fitted by captum: the Shapley value of the presence of each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrp_core.attention import around_attention
from lrp_core.explained import relevance_of
from lrp_core.guard import check_logits
from lrp_core.methods.random_baseline import seeds_of
from lrp_core.readout import explained_numbers
from lrp_core.types import Batch, Relevance, Request, UserError
from lrp_core.variants import TOKEN_BUDGET, tiled, unpadded
from lrp_core.view import ModelView


def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    samples: int,
    seed: int = 0,
    token_budget: int = TOKEN_BUDGET,
) -> dict[Request, Relevance]:
    """An absent token has a zero embedding; its position and segment stay.

    Sets of tokens are drawn from `seed` and the sample's own tokens, each sample by itself, so that batching and
    padding change nothing. The sum over tokens is about the explained number minus its value without any token: captum
    lets these two weigh a million sets each. Raises UserError where captum is not installed.
    """
    shapley = _captum()
    with torch.no_grad(), around_attention(view, {}):
        return _explain(view, batch.to(view.device), requests, shapley, samples, seed, token_budget)


def _explain(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    shapley: Shapley,
    samples: int,
    seed: int,
    token_budget: int,
) -> dict[Request, Relevance]:
    explanations = tuple(dict.fromkeys(request.explanation for request in requests))
    token = view.tokens(batch)
    logits, whole = explained_numbers(view, view.hidden(batch, token), batch, explanations)
    check_logits(view, batch, logits)  # before their Shapley values are sought, which there are none of
    _, empty = explained_numbers(view, view.hidden(batch, torch.zeros_like(token)), batch, explanations)
    tokens = {explanation: torch.zeros(batch.every_id.shape).to(logits) for explanation in explanations}
    for i, mask in enumerate(batch.every_mask.bool()):
        if not mask.any():
            continue
        own = unpadded(batch, i)
        outcome = _Outcome(view, own, explanations)
        at_once = max(1, token_budget // int(mask.sum()))
        for explanation in explanations:
            game = partial(outcome.number, explanation)
            shares = shapley(game, int(mask.sum()), samples, at_once, seeds_of(own, seed)[0])
            tokens[explanation][i, mask] = shares.to(logits)
    return {
        request: relevance_of(
            logits=logits,
            explained=whole[request.explanation],
            baseline=empty[request.explanation],
            **batch.parted(tokens[request.explanation].to(batch.input_ids.device)),
        )
        for request in requests
    }


class _Outcome:
    """What a sample's prediction is when some of its tokens are absent.

    Sets that come again, for another explanation, are not run again.
    """

    def __init__(self, view: ModelView, batch: Batch, explanations: Sequence[str]) -> None:
        self._view, self._batch, self._explanations = view, batch, explanations
        self._token = view.tokens(batch)
        self._known: dict[bytes, dict[str, Tensor]] = {}

    def number(self, explanation: str, present: Tensor) -> Tensor:
        """The explained number [R] by which tokens are present, [R, T] of ones and zeros."""
        key = present.numpy(force=True).tobytes()
        if key not in self._known:
            rows = tiled(self._batch, len(present))
            hidden = self._view.hidden(rows, self._token * present[..., None].to(self._token))
            self._known[key] = explained_numbers(self._view, hidden, rows, self._explanations)[1]
        return self._known[key][explanation].cpu()


Shapley = Callable[[Callable[[Tensor], Tensor], int, int, int, int], Tensor]


def _captum() -> Shapley:
    """Shapley values of a game, by captum: (numbers by present tokens, tokens, sets, sets at once, seed) to [T]."""
    try:
        from captum._utils.models.model import Model
        from captum.attr import KernelShap
    except ImportError:
        raise UserError("kernel_shap needs captum: pip install 'closelook[captum]'") from None

    class LeastSquares(Model):
        """In place of captum's, which needs scikit-learn: the same weighted fit, of least norm where many fit."""

        def fit(self, train_data: Any, **_: Any) -> None:
            parts = zip(*train_data, strict=True)
            x, y, weight = (torch.cat(part).double() for part in parts)
            share = (weight / weight.sum())[:, None]
            root = share.sqrt()
            x, y = x - (share * x).sum(0), y[:, None] - (share * y[:, None]).sum(0)
            self.slopes = torch.linalg.lstsq(root * x, root * y, driver="gelsd").solution[:, 0]

        def representation(self) -> Tensor:
            return self.slopes

        def __call__(self, x: Tensor) -> Tensor:
            return x @ self.slopes

    def shapley(game: Callable[[Tensor], Tensor], tokens: int, sets: int, at_once: int, seed: int) -> Tensor:
        ends = torch.tensor([[1.0], [0.0]]).expand(2, tokens)
        if tokens == 1:  # captum draws proper subsets, of which there are none
            whole, empty = game(ends)
            return (whole - empty)[None]
        method = KernelShap(game)
        method.interpretable_model = LeastSquares()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return method.attribute(ends[:1], n_samples=sets, perturbations_per_eval=at_once)[0]

    return shapley
