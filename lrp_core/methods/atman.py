"""AtMan (Deb et al. 2023): the drop of the prediction when attention to a token is suppressed in all layers.

Every suppressed token of every sample is a row of a forward. In causal models what stands before the suppressed token
does not change, so rows begin at the first token that is suppressed in their forward and look back at the keys and
values of the unsuppressed run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.device.precision import wide, wide_dtype
from lrp_core.device.progress import tell
from lrp_core.device.transfer import to_device
from lrp_core.readers.attention import Attended, Kernel, around_attention
from lrp_core.readers.readout import explained_numbers
from lrp_core.records.explained import LOG_PROB, TARGET, relevance_of
from lrp_core.records.types import Batch, Request, Results
from lrp_core.records.variants import TOKEN_BUDGET, rows_of
from lrp_core.views.view import ModelView

IN_VAIN = 1 / 8  # the most of its forward that a row may compute before its own token


@dataclass
class _Layer:
    """Keys, values and mask of one attention module in the unsuppressed run."""

    key: Tensor  # [B, G, T, K]
    value: Tensor
    mask: Tensor | None  # [B, 1, T, T], additive


@dataclass
class _Suppression:
    """Rows that differ in the token to which attention is suppressed, and begin at `start`."""

    rows: Tensor  # [R], samples
    keys: Tensor  # [R], the suppressed token's position in the whole sample
    alike: Tensor | None  # [R, T], the share of the suppression that each token has; None: that token all, no other any
    start: int
    factor: float
    as_printed: bool
    layers: dict[nn.Module, _Layer] = field(default_factory=dict)  # empty where rows are whole

    def attend(
        self,
        _: Kernel,
        module: nn.Module,
        *tensors: Any,
        scaling: float | None = None,
        softcap: float | None = None,
        position_bias: Tensor | None = None,
        **__: Any,
    ) -> Attended:
        """Queries [R, H, S, K], keys and values [R, G, S, K] of the tokens from `start` on to context [R, S, H, K]."""
        query, key, value, mask = tensors
        if module in self.layers:
            rows = self.rows.to(query.device)
            before = self.layers[module]
            key = torch.cat([before.key[rows, :, : self.start], key], 2)  # [R, G, T, K]
            value = torch.cat([before.value[rows, :, : self.start], value], 2)
            mask = None if before.mask is None else before.mask[rows, :, self.start :]
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = query @ key.transpose(-1, -2) * scale  # [R, H, S, T]
        if softcap is not None:  # what is suppressed is what enters the softmax
            scores = softcap * torch.tanh(scores / softcap)
        if position_bias is not None:
            scores = scores + position_bias
        scores = self._suppressed(scores, 0.0 if self.as_printed else _least(scores, mask))
        if mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores, -1, dtype=wide_dtype(scores.dtype)).to(value.dtype)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    def _suppressed(self, scores: Tensor, least: Tensor | float) -> Tensor:
        """Scores [R, H, S, T], of which `least` [R, H, S, 1] are each query's smallest."""
        if self.alike is not None:
            factors = 1 - (1 - self.factor) * self.alike.to(scores)[:, None, None]  # [R, 1, 1, T]
            return torch.where(factors < 1, factors * scores + (1 - factors) * least, scores)
        at = self.keys.to(scores.device)[:, None, None, None].expand(*scores.shape[:3], 1)
        return scores.scatter_(3, at, self.factor * scores.gather(3, at) + (1 - self.factor) * least)


def _least(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The least score of what each query may see, [R, H, S, 1]; 0 for queries that see nothing."""
    if mask is None:
        return scores.amin(-1, keepdim=True)
    least = scores.masked_fill(mask != 0, torch.inf).amin(-1, keepdim=True)
    return least.masked_fill(least == torch.inf, 0)


@torch.no_grad()
def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    suppression: float,
    as_printed: bool,
    similarity: float,
    score: str,
    token_budget: int = TOKEN_BUDGET,
) -> Results:
    """The explained number minus its value with attention to the token suppressed, for each token.

    A score of the suppressed token becomes `1 - suppression` times itself, counted from the least score that its query
    sees (Deb et al., their code) or from 0 (`as_printed` in AttnLRP A.1.5, where suppression raises negative scores).
    Scaling by the head width before or after is the same. With a `similarity` below 1, tokens whose embeddings, without
    positions, are that alike are suppressed too: by `suppression` times the cosine (their code, of concepts). Of
    encoder-decoders, tokens of the encoder are suppressed, in its own attention and where the decoder reads it.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    read = {request: request.explanation for request in requests}
    if score == LOG_PROB.name and not view.predicts_score:  # a regressor's score has no probability
        # a contrast of log-probabilities is one of logits
        read = {request: LOG_PROB.name if name == TARGET.name else name for request, name in read.items()}
    explanations = tuple(dict.fromkeys(read.values()))
    layers: dict[nn.Module, _Layer] = {}

    def record(kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        layers[module] = _Layer(*tensors[1:])
        return kernel(module, *tensors, **options)

    recorded = [block.attention for block in view.blocks] if view.kind.causal else []
    with around_attention(view, dict.fromkeys(recorded, record), stock="eager"):
        logits, whole = explained_numbers(view, view.hidden(batch), batch, explanations)
    drops = {explanation: logits.new_zeros(batch.input_ids.shape) for explanation in explanations}
    token, positions = view.tokens(batch), view.position_ids(batch)
    alike = _alike(token[:, : batch.input_ids.shape[1]], similarity) if similarity < 1 else None
    attentions = [layer.attention for layer in view.attentions_over_text]
    whole_rows = similarity < 1 or batch.span_ids is not None  # a span may be read before the suppressed token, too
    for samples, keys, start in _parts(view, on_host, token_budget, whole=whole_rows):
        samples, keys = to_device(samples, token.device), to_device(keys, token.device)
        of_rows = None if alike is None else alike[samples, keys]
        run = _Suppression(samples, keys, of_rows, start, 1 - suppression, as_printed, layers)
        rows = _from(start, rows_of(batch, samples))
        counted = positions[samples, start:] if view.kind.causal else None
        with around_attention(view, dict.fromkeys(attentions, run.attend), stock="eager"):
            hidden = view.hidden(rows, token[samples, start:], counted)
        _, explained = explained_numbers(view, hidden, rows, explanations)
        samples, keys = samples.to(logits.device), keys.to(logits.device)
        for explanation, numbers in explained.items():
            drops[explanation][samples, keys] = whole[explanation][samples] - numbers
    results: Results = {}
    for request, name in read.items():
        tokens = drops[name].to(batch.input_ids.device)
        results[request] = relevance_of(tokens, logits, whole[name], conserves=False)
    return results


def _alike(token: Tensor, similarity: float) -> Tensor:
    """The share that every token has in each one's suppression [B, T, T], by embeddings [B, T, D]: the cosine or 0."""
    unit = nn.functional.normalize(wide(token), dim=-1)
    cosine = (unit @ unit.mT).clamp(max=1)
    itself = torch.eye(token.shape[1], device=token.device, dtype=torch.bool)
    return torch.where(cosine >= similarity, cosine, 0).masked_fill(itself, 1)


def _from(start: int, rows: Batch) -> Batch:
    """The rows without their first `start` tokens."""
    return rows.over_tokens(lambda of_tokens: of_tokens[:, start:], lambda positions: positions - start)


def _parts(view: ModelView, batch: Batch, token_budget: int, whole: bool) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Samples [R], suppressed tokens [R] and the first token of the rows of each forward, of a batch on the CPU.

    In causal models tokens behind the predicted position have no say, and rows come in the order of their tokens. Rows
    that share a forward all begin at its first token, unless they must be `whole`, since others are suppressed too: a
    row computes in vain up to its own. A forward ends where that would exceed an eighth of a row, but not before it
    fills a quarter of the budget.
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
