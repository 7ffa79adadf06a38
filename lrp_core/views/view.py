"""A loaded model seen through its family: from tokens to states, and to logits where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.device.precision import unrounded, wide
from lrp_core.parts.model import ModelParts
from lrp_core.parts.weights import weights_of
from lrp_core.records.types import Batch, UserError


@dataclass(frozen=True)
class Traced:
    """The embeddings of a batch with a graph behind them: where gradients are taken."""

    token: Tensor  # [B, T, D]
    full: Tensor  # [B, T, D], with positions and segments; without a graph
    pixels: Tensor | None = None  # [B, C, H, W], of models of images


def up_to(position: Tensor, mask: Tensor) -> Tensor:
    """Bool of the shape of `mask` [B, T], True up to the `position` [B]."""
    return torch.arange(mask.shape[1], device=mask.device) <= position.to(mask.device)[:, None]


def counted_by(mask: Tensor) -> Tensor:
    """Positions [B, T] from 0 on that ignore padding on either side."""
    return (mask.cumsum(-1) - 1).clamp_min(0)


@dataclass(frozen=True, repr=False)
class ModelView(ModelParts):
    """A model in evaluation mode with frozen parameters; from `load_model` or `view_of`."""

    #: Gives its tokenizer, where whoever opened the model knows it; words of one's own are asked of it alone.
    read_tokenizer: Callable[[], Any] | None = field(default=None, compare=False)

    def asking(self, batch: Batch, layer: int) -> Tensor:
        """Bool [B, queries] of the queries of an attention layer that the prediction may depend on."""
        return self.visible(batch)

    def visible(self, batch: Batch) -> Tensor:
        """The tokens that the prediction may depend on, bool, laid out like `batch.every_id`: of causal models none
        behind it."""
        real = batch.attention_mask.bool()
        return real & up_to(batch.position, real) if self.kind.causal else real

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers, {self.d_model} wide"
        return f"<{type(self).__name__} of {type(self.model).__name__}: {size}, {self.dtype} on {self.device}>"

    # from tokens to states

    def position_ids(self, batch: Batch) -> Tensor:
        """Positions [B, T] that ignore padding on either side, and padding tokens of the text where the model does."""
        if self.family.positions_after_padding:
            counted = batch.attention_mask * (batch.input_ids != self.config.pad_token_id)  # [B, T]
            return counted.cumsum(-1) * counted + self.config.pad_token_id
        return counted_by(batch.attention_mask)

    def check_input(self, batch: Batch) -> None:
        """Raises UserError for a batch whose input is not of this model's kind."""
        if batch.pixel_values is not None:
            raise UserError(f"{self.family.title} read text: leave pixel_values out")

    def tokens(self, batch: Batch) -> Tensor:
        """Token embeddings [B, T, D]."""
        return self.token_embedding(batch.input_ids)

    def traced(self, batch: Batch) -> Traced:
        """Embeddings of which gradients may be taken."""
        token, full = self.embed(batch)
        return Traced(token.detach().requires_grad_(), full.detach())

    def source(self, batch: Batch) -> Tensor:
        """The input that methods move to see how the prediction changes: token embeddings [B, T, D]."""
        return self.tokens(batch)

    def hidden_from(self, batch: Batch, source: Tensor) -> Tensor:
        """Last hidden state [B, T, D] of a `source` that was moved."""
        return self.hidden(batch, source)

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Token embeddings and their sum with position and segment embeddings, both [B, T, D]."""
        token = self.tokens(batch)
        full = token
        if self.family.position_embedding:
            ids = self.position_ids(batch) + self.family.position_shift
            with weights_of(self._at(self.family.position_embedding)) as module:
                full = full + nn.functional.embedding(ids, module.weight)
        if self.family.segment_embedding:
            ids = torch.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
            full = full + self._at(self.family.segment_embedding)(ids)
        return token, full

    def embeddings_of(self, batch: Batch) -> list[tuple[nn.Module, slice]]:
        """The modules that embed tokens, and which of `batch.every_id`."""
        return [(self.token_embedding, slice(None))]

    def hidden(self, batch: Batch, token: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Last hidden state [B, T, D], final norm included, of `token` embeddings [B, T, D] (default: the batch's).

        `positions` [B, T] are by default those of `position_ids`.
        """
        with unrounded(self.dtype):
            return self._hidden(batch, token, positions)

    def _hidden(self, batch: Batch, token: Tensor | None, positions: Tensor | None) -> Tensor:
        segments = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
        return self.model.base_model(
            inputs_embeds=self.tokens(batch) if token is None else token,
            attention_mask=batch.attention_mask,
            position_ids=self.position_ids(batch) if positions is None else positions,
            return_dict=True,
            **segments,
            **self.kind.forward_options,
        ).last_hidden_state

    # from states to logits

    def head(self, hidden: Tensor) -> Tensor:
        """Apply the layers between hidden states and the unembedding, if there are any. [..., D] to [..., D]."""
        if self.family.head_dense is None or self.head_activation is None:
            return hidden
        transformed = self.head_activation(self._at(self.family.head_dense)(hidden))
        return transformed if self.head_norm is None else self.head_norm.module(transformed)

    @contextmanager
    def unembedded(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Weight [V, D] and bias [V] (None where there is none) of the unembedding."""
        with weights_of(self.unembedding) as module:
            yield module.weight.detach(), None if module.bias is None else module.bias.detach()

    def unembedding_rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows [..., D] and biases [...] (None where there are none) of the unembedding for token ids [...]."""
        with self.unembedded() as (weight, bias):
            ids = ids.to(weight.device)
            return weight[ids], None if bias is None else bias[ids]

    def all_logits(self, state: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        """Logits of all tokens, or labels, of `state` [B, D], `size` at a time: the first one's id and [B, `size`].

        In float32 at least.
        """
        with self.unembedded() as (weight, bias):
            state = wide(state.to(weight.device))
            for start in range(0, len(weight), size):
                some = slice(start, start + size)
                yield start, self._logits_of(state, weight[some], None if bias is None else bias[some])

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2] ([B, 1] without foils) at the predicted position of `hidden` [B, T, D].

        No logits of other tokens or positions are formed.
        """
        return self.unembed(self.prediction(hidden, batch), batch)

    def prediction(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Input of the unembedding [B, D]: the predicted position of `hidden` [B, T, D], head transform included.

        Of spans [B, N, D], a position for each token. Rows of `batch` may come back to those of `hidden`, again and
        again.
        """
        at = torch.arange(len(batch), device=hidden.device) % max(len(hidden), 1)
        if batch.span_positions is not None:
            return self.head(hidden[at[:, None], batch.span_positions.to(hidden.device)])
        return self.head(hidden[at, batch.position.to(hidden.device)])

    def unembed(self, state: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2, ...] ([B, 1, ...] without foils) of `state` [B, ..., D].

        In float32 at least. A sample may have many states, such as one for each of its tokens. Of a span, whose states
        are [B, N, D], the weighted sum of its tokens' logits [B, 1].
        """
        if batch.span_ids is not None:
            return weighted(self.of_span(state, batch), batch)
        rows, bias = self.unembedding_rows(batch.explained_ids)  # [B, 2, D]
        return self._logits_of(wide(state.to(rows.device)), rows, bias)

    def of_span(self, state: Tensor, batch: Batch) -> Tensor:
        """The logit of each token of a span [B, N, 1], from the state at its position [B, N, D]."""
        assert batch.span_ids is not None
        rows, bias = self.unembedding_rows(batch.span_ids.flatten()[:, None])  # [B * N, 1, D]
        return self._logits_of(wide(state.to(rows.device)).flatten(0, 1), rows, bias).unflatten(0, batch.span_ids.shape)

    def _logits_of(self, state: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Logits of states by rows of the unembedding, in the precision of the states."""
        logits = self.readout(state, rows.to(state.dtype), None if bias is None else bias.to(state.dtype))
        return logits if self.logit_cap is None else self.logit_cap(logits)


def weighted(numbers: Tensor, batch: Batch) -> Tensor:
    """The sum over the tokens of each span of `numbers` [B, N, ...] times their weights."""
    assert batch.span_weights is not None
    weights = batch.span_weights.to(numbers)
    return (numbers * weights.view(*weights.shape, *[1] * (numbers.dim() - 2))).sum(1)
