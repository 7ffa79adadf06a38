"""Kernel SHAP (Lundberg & Lee 2017): the Shapley value of the presence of each token.

The worth of a set of tokens is the explained number when only they are present. Every set is run together with its
complement (Covert & Lee 2021). The difference of their worths is then fitted by weighted least squares to signs: 1 for
tokens of the set, -1 for those of the complement. Shapes: M pairs of a set and its complement, E explanations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.interventions.tokens import embeddings_zeroed
from closelook.lrp_core.methods.baselines import seeds_of
from closelook.lrp_core.operations.forward import explained_numbers
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention
from closelook.lrp_core.records.ablated import Ablated, UnitRelevance
from closelook.lrp_core.records.explained import explanations_of, relevance_of
from closelook.lrp_core.records.types import Batch, Relevance, Requests, Results, UserError
from closelook.lrp_core.records.variants import TOKEN_BUDGET, pieces, rows_of
from closelook.lrp_core.views.view import ModelView

_DRAWS = 4  # draws for each pair that is run, since short texts have few pairs and many draws repeat one


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    samples: int,
    units: bool = False,
    seed: int = 0,
    token_budget: int = TOKEN_BUDGET,
) -> Results:
    """Shapley values of tokens. An absent token has a zero embedding; its position and segment stay.

    The players are the tokens that the prediction can see; all others have exactly 0. If there are at most `samples`
    sets besides the empty and the full one, all are run and values are exact. Otherwise pairs of sets are drawn, from
    `seed` and the players' ids: batching, padding and later tokens change nothing. Values sum to the explained number
    minus its value without any token (`baseline`). `units` is not used here: relevance of units of a prompt comes from
    :func:`of_units`.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    explanations = explanations_of(requests)
    masks: list[Tensor | None] = []

    def record(kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        masks.append(tensors[3])
        return kernel(module, *tensors, **options)

    recorded = [] if view.kind.decoder else [block.attention for block in view.blocks]
    with around_attention(view, dict.fromkeys(recorded, record)):
        logits, whole = explained_numbers(view, batch, explanations)
    players = _visible(view, batch, masks).cpu()
    seeds = seeds_of(on_host, seed, players)
    drawn = [pairs_of(int(row.sum()), samples, of_row) for row, of_row in zip(players, seeds, strict=True)]
    sets = [_sets(row, pairs) for row, (pairs, _) in zip(players, drawn, strict=True)]
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
    """Shapley values of the units of a prompt, for the summed logits and for the log-probability of the answer.

    They are exact if the ablations have all sets of units. Raises UserError if no sets for Shapley values were run.
    """
    if not len(ablated.shapley):
        raise UserError("kernel_shap of units: the ablations have no sets for Shapley values; set `ablations.shapley`")
    pairs = ablated.kept[ablated.shapley[1 : 1 + len(ablated.shapley_weights)]]
    worths = torch.from_numpy(np.stack([ablated.summed_logits, ablated.log_probability], axis=1))  # [M, 2]
    drawn = torch.from_numpy(pairs), torch.from_numpy(ablated.shapley_weights)
    target, log_prob = shapley_values(*drawn, worths[ablated.shapley], worths[ablated.full]).numpy().T
    return UnitRelevance({"target": target, "log_prob": log_prob}, 1 + len(ablated.shapley))


def _visible(view: ModelView, batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
    """True for tokens that the prediction can see through attention, laid out like `Batch.every_id`.

    `masks` [B | 1, 1, T, T] are the attention masks from the first layer to the last, bool or additive. They are
    followed back from the readout position only if all layers have one of four dimensions; otherwise only padding and
    later tokens are hidden.
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
    """The pairs to run: of each the set without the last player [M, players], bool, and the pairs' weights [M].

    All pairs are run if they make up at most `samples` sets; otherwise pairs are drawn.
    """
    return _all_pairs(players) if 2**players - 2 <= samples else _drawn_pairs(players, samples // 2, seed)


def _all_pairs(players: int) -> tuple[Tensor, Tensor]:
    """Every set without the last player [M, players], and its weight in the Shapley kernel [M]."""
    codes = torch.arange(1, max(1, 2 ** (players - 1)))
    pairs = (codes[:, None] >> torch.arange(players) & 1).bool()
    weights = [1 / (comb(players, size) * size * (players - size)) for size in pairs.sum(1).tolist()]
    return pairs, torch.tensor(weights, dtype=torch.float64)


def _drawn_pairs(players: int, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """At most `most` different random pairs, as the set without the last player, and how often each was drawn.

    The size of a set is drawn by its total weight in the Shapley kernel, its players evenly. If more than `most` pairs
    are drawn, the first ones are kept.
    """
    generator, sizes = np.random.default_rng(seed), np.arange(1, players)
    share = 1 / (sizes * (players - sizes))
    size = generator.choice(sizes, (_DRAWS * most, 1), p=share / share.sum())
    # the second argsort gives the ranks of players in a random order; a set has the players of the lowest ranks
    drawn = generator.random((len(size), players)).argsort(1).argsort(1) < size
    drawn ^= drawn[:, -1:]  # a set with the last player becomes its complement
    pairs, first, times = np.unique(drawn, axis=0, return_index=True, return_counts=True)
    kept = first.argsort()[:most]
    return torch.from_numpy(pairs[kept]), torch.from_numpy(times[kept]).double()


def _sets(players: Tensor, pairs: Tensor) -> Tensor:
    """Masks of present tokens [1 + 2 M, T]: no token, then the set of every pair, then their complements.

    `players` [T] are the tokens that may be present, `pairs` [M, players] the sets of players.
    """
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
    worths: list[Tensor] = []
    for part in pieces(range(len(samples)), present.shape[1], token_budget):
        of_part = slice(part.start, part.stop)
        with embeddings_zeroed(view, rows_of(batch, samples[of_part]), ~present[of_part]) as rows:
            _, numbers = explained_numbers(view, rows, explanations)
        worths.append(torch.stack(list(numbers.values()), -1))
    return list(torch.cat(worths).double().cpu().split(sizes))


def shapley_values(pairs: Tensor, weights: Tensor, worths: Tensor, whole: Tensor) -> Tensor:
    """Shapley values [players, E] fitted to the worths of sets; they sum to `whole` minus the worth of no player.

    `pairs` [M, players] and `weights` [M] are as in `pairs_of`, `worths` [1 + 2 M, E] in the order of `_sets`, `whole`
    [E] is the worth of all players. If several fits are equally good, the one closest to equal shares is taken.
    """
    gain = whole - worths[0]
    sets, complements = worths[1 : 1 + len(pairs)], worths[1 + len(pairs) :]
    signs, root = 2.0 * pairs.double() - 1, weights.sqrt()[:, None]
    mean = signs.mean(1, keepdim=True)
    # a pseudoinverse keeps worths that are not finite in their own column; LAPACK's least squares would fail for all
    inverse = torch.linalg.pinv(root * (signs - mean), rtol=1e-10)
    return gain / max(1, pairs.shape[1]) + inverse @ (root * (sets - complements - mean * gain))
