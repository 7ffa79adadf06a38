"""AtMan (Deb et al. 2023): the drop of the prediction when attention to a token is suppressed in all layers.

For every suppressed token of every sample, one row of a forward pass is run. Shapes: R rows, S queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide, wide_dtype
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.operations.forward import explained_numbers
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention, attend_eagerly
from closelook.lrp_core.records.explained import LOG_PROB, TARGET, relevance_of
from closelook.lrp_core.records.types import Batch, Requests, Results
from closelook.lrp_core.records.variants import TOKEN_BUDGET, pieces, rows_of
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True)
class _Suppression:
    """The rows of a forward pass, in each of which attention to one token is suppressed."""

    keys: Tensor  # [R], the suppressed token's position
    alike: Tensor | None  # [R, T], how much of the suppression each token gets; None: only the token in `keys` gets any
    factor: float  # a suppressed score is multiplied by it
    as_printed: bool  # scores shrink towards 0, not towards the least score of their query

    def attend(self, _: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        """Eager attention with suppressed scores; stands in for an attention module's kernel.

        From queries [R, H, S, K], keys and values [R, G, T, K] and a mask to context [R, S, H, K] and weights
        [R, H, S, T].
        """
        return attend_eagerly(*tensors, softmax=self._softmax, **options)

    def _softmax(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """The softmax of suppressed scores [R, H, S, T]; scores are those after the soft cap, if there is one."""
        scores = self._suppressed(scores, 0.0 if self.as_printed else _least(scores, mask))
        if mask is not None:
            scores = scores + mask
        return torch.softmax(scores, -1, dtype=wide_dtype(scores.dtype)).to(scores.dtype)

    def _suppressed(self, scores: Tensor, least: Tensor | float) -> Tensor:
        """The scores [R, H, S, T], those of suppressed tokens changed in place to f * score + (1 - f) * `least`.

        f is the factor, `least` [R, H, S, 1] the least score of each query.
        """
        if self.alike is not None:
            factors = 1 - (1 - self.factor) * self.alike.to(scores)[:, None, None]  # [R, 1, 1, T]
            return torch.where(factors < 1, factors * scores + (1 - factors) * least, scores)
        at = self.keys.to(scores.device)[:, None, None, None].expand(*scores.shape[:3], 1)
        return scores.scatter_(3, at, self.factor * scores.gather(3, at) + (1 - self.factor) * least)


def _least(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The least unmasked score of each query, [R, H, S, 1]; 0 if all its scores are masked."""
    if mask is None:
        return scores.amin(-1, keepdim=True)
    least = scores.masked_fill(mask != 0, torch.inf).amin(-1, keepdim=True)
    return least.masked_fill(least == torch.inf, 0)


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    suppression: float,
    as_printed: bool,
    similarity: float,
    score: str,
    token_budget: int = TOKEN_BUDGET,
) -> Results:
    """Relevance of a token is the explained number minus its value with attention to the token suppressed.

    Suppression scales the distance of a score from the least score of its query by `1 - suppression` (Deb et al., their
    code), or the score itself (`as_printed` in AttnLRP A.1.5, where that raises negative scores). Scaling by the head
    width before or after is the same. With a `similarity` below 1, tokens whose embeddings, without positions, have at
    least this cosine are suppressed too, by `suppression` times the cosine (their code, of concepts). In an
    encoder-decoder the encoder's tokens are suppressed, in its own attention and in cross-attention.
    `score` "log_prob" explains the target's log-probability in place of its logit.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    explanation_of = {request: request.explanation for request in requests}
    if score == LOG_PROB.name and not view.predicts_score:  # a regressor's score has no probability
        # contrastive requests stay: the difference of two log-probabilities is that of the logits
        for request, name in explanation_of.items():
            explanation_of[request] = LOG_PROB.name if name == TARGET.name else name
    explanations = tuple(dict.fromkeys(explanation_of.values()))
    with around_attention(view, {}, stock="eager"):
        logits, unsuppressed = explained_numbers(view, batch, explanations)
    drops = {explanation: logits.new_zeros(batch.input_ids.shape) for explanation in explanations}
    alike = _alike(view.tokens(batch), similarity) if similarity < 1 else None
    attentions = [layer.attention for layer in view.attentions_over_text]
    every_sample, every_key = view.visible(on_host)[:, : batch.input_ids.shape[1]].nonzero(as_tuple=True)
    for part in pieces(range(len(every_key)), batch.every_id.shape[1], token_budget):
        of_part = slice(part.start, part.stop)
        samples, keys = (to_device(every[of_part], view.device) for every in (every_sample, every_key))
        of_rows = None if alike is None else alike[samples, keys]
        run = _Suppression(keys, of_rows, 1 - suppression, as_printed)
        rows = rows_of(batch, samples)
        with around_attention(view, dict.fromkeys(attentions, run.attend), stock="eager"):
            _, explained = explained_numbers(view, rows, explanations)
        samples, keys = samples.to(logits.device), keys.to(logits.device)
        for explanation, numbers in explained.items():
            drops[explanation][samples, keys] = unsuppressed[explanation][samples] - numbers
    results: Results = {}
    for request, name in explanation_of.items():
        tokens = drops[name].to(batch.input_ids.device)
        results[request] = relevance_of(tokens, logits, unsuppressed[name], conserves=False)
    return results


def _alike(token: Tensor, similarity: float) -> Tensor:
    """The share of the suppression of token i that token j gets, [B, T, T] over (i, j), from embeddings [B, T, D].

    It is their cosine if that is at least `similarity`, else 0; and 1 for the token itself.
    """
    unit = nn.functional.normalize(wide(token), dim=-1)
    cosine = (unit @ unit.mT).clamp(max=1)
    itself = torch.eye(token.shape[1], device=token.device, dtype=torch.bool)
    return torch.where(cosine >= similarity, cosine, 0).masked_fill(itself, 1)
