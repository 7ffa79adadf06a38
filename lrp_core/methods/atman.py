"""AtMan (Deb et al. 2023): the drop of the prediction when attention to a token is suppressed in all layers.

For every suppressed token of every sample, one row of a forward pass is run. In causal models the tokens before the
suppressed one do not change. So the rows of a forward start at the earliest token that is suppressed in it, and attend
to the keys and values that the unsuppressed run left for the tokens before. Shapes: R rows, S tokens from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide, wide_dtype
from closelook.lrp_core.device.progress import tell
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.operations.forward import explained_numbers
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention, attend_eagerly
from closelook.lrp_core.records.explained import LOG_PROB, TARGET, relevance_of
from closelook.lrp_core.records.types import Batch, Requests, Results
from closelook.lrp_core.records.variants import TOKEN_BUDGET, rows_of
from closelook.lrp_core.views.view import ModelView

IN_VAIN = 1 / 8  # the largest part of a row that may lie before its own suppressed token, and is computed needlessly


@dataclass
class _Layer:
    """Keys, values and mask of one attention module in the unsuppressed run."""

    key: Tensor  # [B, G, T, K]
    value: Tensor
    mask: Tensor | None  # [B, 1, T, T], additive


@dataclass
class _Suppression:
    """The rows of a forward pass, in each of which attention to one token is suppressed."""

    rows: Tensor  # [R], the sample of each row
    keys: Tensor  # [R], the suppressed token's position in the whole sample
    alike: Tensor | None  # [R, T], how much of the suppression each token gets; None: only the token in `keys` gets any
    start: int  # rows start at this token of their sample
    factor: float  # a suppressed score is multiplied by it
    as_printed: bool  # scores shrink towards 0, not towards the least score of their query
    layers: dict[nn.Module, _Layer] = field(default_factory=dict)  # of the unsuppressed run; empty if rows are whole

    def attend(self, _: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        """Eager attention with suppressed scores; stands in for an attention module's kernel.

        From queries [R, H, S, K], keys and values [R, G, S, K] of the tokens from `start` on, and a mask, to context
        [R, S, H, K] and weights [R, H, S, T].
        """
        query, key, value, mask = tensors
        if module in self.layers:
            rows = self.rows.to(query.device)
            before = self.layers[module]
            key = torch.cat([before.key[rows, :, : self.start], key], 2)  # [R, G, T, K]
            value = torch.cat([before.value[rows, :, : self.start], value], 2)
            mask = None if before.mask is None else before.mask[rows, :, self.start :]
        return attend_eagerly(query, key, value, mask, softmax=self._softmax, **options)

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
    layers: dict[nn.Module, _Layer] = {}

    def record(kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        layers[module] = _Layer(*tensors[1:])
        return kernel(module, *tensors, **options)

    recorded = [block.attention for block in view.blocks] if view.kind.causal else []
    with around_attention(view, dict.fromkeys(recorded, record), stock="eager"):
        logits, unsuppressed = explained_numbers(view, batch, explanations)
    drops = {explanation: logits.new_zeros(batch.input_ids.shape) for explanation in explanations}
    alike = _alike(view.tokens(batch), similarity) if similarity < 1 else None
    attentions = [layer.attention for layer in view.attentions_over_text]
    # rows must then be whole: similar earlier tokens are suppressed too, and tokens of a span may be predicted earlier
    whole_rows = similarity < 1 or batch.span_ids is not None
    for samples, keys, start in _parts(view, on_host, token_budget, whole=whole_rows):
        samples, keys = to_device(samples, view.device), to_device(keys, view.device)
        of_rows = None if alike is None else alike[samples, keys]
        run = _Suppression(samples, keys, of_rows, start, 1 - suppression, as_printed, layers)
        rows = _from(start, rows_of(batch, samples))
        with around_attention(view, dict.fromkeys(attentions, run.attend), stock="eager"):
            _, explained = explained_numbers(view, rows, explanations, first=start)
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


def _from(start: int, rows: Batch) -> Batch:
    """The batch without the first `start` tokens of its rows."""
    return rows.over_tokens(lambda of_tokens: of_tokens[:, start:], lambda positions: positions - start)


def _parts(view: ModelView, batch: Batch, token_budget: int, whole: bool) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield the rows of each forward: samples [R], suppressed tokens [R], and the token at which the rows start.

    The batch is on the CPU. In causal models rows are sorted by suppressed token, tokens after the readout position
    have none, and the rows of a forward start at its earliest suppressed token, unless they must be `whole`. What a row
    computes before its own token is needless: a forward ends where this would exceed IN_VAIN of a row, but not before
    it fills a quarter of the budget.
    """
    length = batch.input_ids.shape[1]
    suppressed = view.visible(batch)[:, :length]
    if view.kind.causal:
        keys, samples = (axis.contiguous() for axis in suppressed.T.nonzero(as_tuple=True))
    else:
        samples, keys = suppressed.nonzero(as_tuple=True)
    late, done = view.kind.causal and not whole, 0
    while done < len(keys):
        start = int(keys[done]) if late else 0
        size = max(1, token_budget // (length - start))
        if late:
            end = int(torch.searchsorted(keys, start + int((length - start) * IN_VAIN), right=True))
            size = min(size, max(end - done, size // 4))
        yield samples[done : done + size], keys[done : done + size], start
        done = min(done + size, len(keys))
        tell(done, len(keys))
