"""Kernel SHAP (Lundberg & Lee 2017): the Shapley value of the presence of each token.

A set of tokens is run with its complement (Covert & Lee 2021). The weighted least squares of both is that of their
difference, fitted to signs: 1 for tokens of the set, -1 for those of the complement.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrp_core.device.transfer import to_device
from lrp_core.methods.random_baseline import seeds_of
from lrp_core.readers.attention import Attended, Kernel, around_attention
from lrp_core.readers.readout import explained_numbers
from lrp_core.records.ablated import Ablated, UnitRelevance
from lrp_core.records.explained import explanations_of, relevance_of
from lrp_core.records.types import Batch, Relevance, Request, Results, UserError
from lrp_core.records.variants import TOKEN_BUDGET, pieces, rows_of
from lrp_core.views.view import ModelView

_DRAWS = 4  # for each pair that is run: short texts have few, some of which are drawn again and again


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    samples: int,
    units: bool = False,
    seed: int = 0,
    token_budget: int = TOKEN_BUDGET,
) -> Results:
    """Shapley values of tokens; those of `units` are made of ablations (`of_units`).

    An absent token has a zero embedding; its position and segment stay.

    The players are the tokens that the prediction can see; all others have exactly 0. All their sets are run where that
    takes no more than `samples` beside none and all: values are then exact. Otherwise pairs are drawn from `seed` and
    the players, so that batching, padding and what stands behind the prediction change nothing. The sum over tokens is
    the explained number minus its value without any token.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    explanations = explanations_of(requests)
    masks: list[Tensor | None] = []

    def record(kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        masks.append(tensors[3])
        return kernel(module, *tensors, **options)

    recorded = [] if view.kind.decoder else [block.attention for block in view.blocks]
    with around_attention(view, dict.fromkeys(recorded, record)):
        logits, whole = explained_numbers(view, view.hidden(batch), batch, explanations)
    players = _visible(view, batch, masks).cpu()
    seeds = seeds_of(on_host, seed, players)
    drawn = [pairs_of(int(row.sum()), samples, of_row) for row, of_row in zip(players, seeds, strict=True)]
    sets = [_sets(row, pairs) for row, (pairs, _) in zip(players, drawn, strict=True)]
    with around_attention(view, {}):
        worths = _worths(view, batch, sets, explanations, token_budget)
    ends = torch.stack(list(whole.values()), -1).double().cpu()  # [B, E]
    tokens = torch.zeros(*players.shape, len(explanations), dtype=torch.float64)
    for number, row in enumerate(players):
        tokens[number, row] = shapley_values(*drawn[number], worths[number], ends[number])
    empty = torch.stack([worth[0] for worth in worths])  # [B, E]
    tokens, empty = (to_device(values.to(logits.dtype), logits.device) for values in (tokens, empty))
    results: dict[str, Relevance] = {}
    for at, (explanation, explained) in enumerate(whole.items()):
        parts = batch.parted(tokens[..., at].to(batch.input_ids.device))
        results[explanation] = relevance_of(logits=logits, explained=explained, baseline=empty[:, at], **parts)
    return {request: results[request.explanation] for request in requests}


def of_units(ablated: Ablated, **_: Any) -> UnitRelevance:
    """Shapley values of the units of a prompt for the summed logits and for the log-probability of the answer.

    Exact where the ablations have all sets of units. Raises UserError where no sets for Shapley values were run.
    """
    if not len(ablated.shapley):
        raise UserError("kernel_shap of units: the ablations have no sets for Shapley values; set `ablations.shapley`")
    pairs = ablated.kept[ablated.shapley[1 : 1 + len(ablated.shapley_weights)]]
    worths = torch.from_numpy(np.stack([ablated.summed_logits, ablated.log_probability], axis=1))  # [M, 2]
    drawn = torch.from_numpy(pairs), torch.from_numpy(ablated.shapley_weights)
    target, log_prob = shapley_values(*drawn, worths[ablated.shapley], worths[ablated.full]).numpy().T
    return UnitRelevance({"target": target, "log_prob": log_prob}, 1 + len(ablated.shapley))


def _visible(view: ModelView, batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
    """The tokens that the prediction can see [B, T], of an encoder-decoder [B, T + U].

    `masks` [B | 1, 1, T, T] are those of attention from the first layer to the last, bool or added to scores; None, or
    a mask of another shape, hides nothing but what is behind and padding.
    """
    seen = view.visible(batch)
    places = torch.arange(seen.shape[1], device=seen.device)
    windows = [mask for mask in masks if mask is not None and mask.dim() == 4]
    if not windows or len(windows) < len(masks):
        return seen
    reached = places == batch.position[:, None]
    for mask in reversed(windows):
        shown = mask if mask.dtype == torch.bool else mask == 0
        shown = shown[:, 0].to(seen.device).expand(-1, len(places), -1)
        reached = reached | (reached[:, :, None] & shown).any(1)
    return seen & reached


def pairs_of(players: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """One set of each pair to run [M, players], bool, and the pairs' weights [M]; the other set has the last player."""
    return _all_pairs(players) if 2**players - 2 <= samples else _drawn_pairs(players, samples // 2, seed)


def _all_pairs(players: int) -> tuple[Tensor, Tensor]:
    codes = torch.arange(1, max(1, 2 ** (players - 1)))
    pairs = (codes[:, None] >> torch.arange(players) & 1).bool()
    weights = [1 / (comb(players, size) * size * (players - size)) for size in pairs.sum(1).tolist()]
    return pairs, torch.tensor(weights, dtype=torch.float64)


def _drawn_pairs(players: int, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """At most so many different pairs, by the kernel's share of their sizes; weights say how often each was drawn."""
    generator, sizes = np.random.default_rng(seed), np.arange(1, players)
    share = 1 / (sizes * (players - sizes))
    size = generator.choice(sizes, (_DRAWS * most, 1), p=share / share.sum())
    drawn = generator.random((len(size), players)).argsort(1).argsort(1) < size
    drawn ^= drawn[:, -1:]
    pairs, first, times = np.unique(drawn, axis=0, return_index=True, return_counts=True)
    kept = first.argsort()[:most]
    return torch.from_numpy(pairs[kept]), torch.from_numpy(times[kept]).double()


def _sets(players: Tensor, pairs: Tensor) -> Tensor:
    """The tokens that are present [1 + 2 M, T]: none, then those of every pair, then their complements."""
    sets = torch.zeros(1 + 2 * len(pairs), len(players), dtype=torch.bool)
    sets[1:, players] = torch.cat([pairs, ~pairs])
    return sets


def _worths(
    view: ModelView, batch: Batch, sets: Sequence[Tensor], explanations: Sequence[str], token_budget: int
) -> list[Tensor]:
    """The explained numbers of each sample's `sets` of present tokens, [1 + 2 M, E] each, in float64 on the CPU."""
    sizes = [len(of_row) for of_row in sets]
    samples = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(sizes))
    samples, present = (to_device(values, view.device) for values in (samples, torch.cat(list(sets))))
    token = view.tokens(batch)
    worths: list[Tensor] = []
    for part in pieces(range(len(samples)), present.shape[1], token_budget):
        of_part = slice(part.start, part.stop)
        rows = rows_of(batch, samples[of_part])
        hidden = view.hidden(rows, token[samples[of_part]] * present[of_part, :, None])
        _, numbers = explained_numbers(view, hidden, rows, explanations)
        worths.append(torch.stack(list(numbers.values()), -1))
    return list(torch.cat(worths).double().cpu().split(sizes))


def shapley_values(pairs: Tensor, weights: Tensor, worths: Tensor, whole: Tensor) -> Tensor:
    """Values of the players [players, E], which sum to what is gained from none to all: `whole` [E] minus the first of
    `worths` [1 + 2 M, E]. Of many fits the one of least norm around equal shares.
    """
    gain = whole - worths[0]
    sets, complements = worths[1 : 1 + len(pairs)], worths[1 + len(pairs) :]
    signs, root = 2.0 * pairs.double() - 1, weights.sqrt()[:, None]
    mean = signs.mean(1, keepdim=True)
    # What is not finite stays in its own column; LAPACK's least squares would stop there.
    inverse = torch.linalg.pinv(root * (signs - mean), rtol=1e-10)
    return gain / max(1, pairs.shape[1]) + inverse @ (root * (sets - complements - mean * gain))
