"""The view of a loaded model: its computation from tokens to hidden states, and to the logits that are explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import unrounded, wide
from closelook.lrp_core.parts.layers import weights_of
from closelook.lrp_core.parts.model import ModelParts
from closelook.lrp_core.records.types import Batch, UserError


def up_to(position: Tensor, mask: Tensor) -> Tensor:
    """True up to and at the `position` [B] of each row, in the shape of `mask` [B, T]."""
    return torch.arange(mask.shape[1], device=mask.device) <= position.to(mask.device)[:, None]


def counted_by(mask: Tensor) -> Tensor:
    """The position of each token [B, T], counted from 0 over the tokens of `mask` [B, T]; padding is ignored."""
    return (mask.cumsum(-1) - 1).clamp_min(0)


@dataclass(frozen=True, repr=False)
class ModelView(ModelParts):
    """A model in evaluation mode with frozen parameters; `load_model` and `view_of` make it."""

    #: Returns the model's tokenizer, needed only to read words of users; None if the model was opened without one.
    read_tokenizer: Callable[[], Any] | None = field(default=None, compare=False)

    def asking(self, batch: Batch, layer: int) -> Tensor:
        """True for the queries of an attention layer that the prediction may depend on, [B, queries]."""
        return self.visible(batch)

    def visible(self, batch: Batch) -> Tensor:
        """True for the tokens that the prediction may depend on, laid out like `batch.every_id`.

        Padding is False, and so are tokens after the readout position of a causal model.
        """
        real = batch.attention_mask.bool()
        return real & up_to(batch.position, real) if self.kind.causal else real

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers, {self.d_model} wide"
        return f"<{type(self).__name__} of {type(self.model).__name__}: {size}, {self.dtype} on {self.device}>"

    # from tokens to states

    def position_ids(self, batch: Batch) -> Tensor:
        """Position ids [B, T], counted without padding, and without pad tokens of the text if the model skips them."""
        if self.family.positions_after_padding:
            counted = batch.attention_mask * (batch.input_ids != self.config.pad_token_id)  # [B, T]
            return counted.cumsum(-1) * counted + self.config.pad_token_id
        return counted_by(batch.attention_mask)

    def check_input(self, batch: Batch) -> None:
        """Raise UserError for a batch of images, which a model of text does not read."""
        if batch.pixel_values is not None:
            raise UserError(f"{self.family.title} read text: leave pixel_values out")

    def tokens(self, batch: Batch) -> Tensor:
        """Token embeddings [B, T, D]."""
        return self.token_embedding(batch.input_ids)

    def source(self, batch: Batch) -> Tensor:
        """The continuous input of the model, which methods may change: token embeddings [B, T, D]."""
        return self.tokens(batch)

    def hidden_from(self, batch: Batch, source: Tensor) -> Tensor:
        """Last hidden state [B, T, D] of a batch for another `source`."""
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
        """The modules that embed tokens, each with the columns of `batch.every_id` that it embeds."""
        return [(self.token_embedding, slice(None))]

    def hidden(self, batch: Batch, token: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Last hidden state [B, T, D], final norm included, from `token` embeddings [B, T, D] (default: the batch's).

        `positions` [B, T] are position ids, by default those of `position_ids`.
        """
        with unrounded(self.dtype):
            return self._hidden(batch, token, positions)

    def _hidden(self, batch: Batch, token: Tensor | None, positions: Tensor | None) -> Tensor:
        """The result of `hidden`; subclasses override this method."""
        options = dict(self.kind.forward_options)
        if batch.token_type_ids is not None:
            options["token_type_ids"] = batch.token_type_ids
        if token is None:
            token = self.tokens(batch)
        if positions is None:
            positions = self.position_ids(batch)
        return self.model.base_model(
            inputs_embeds=token,
            attention_mask=batch.attention_mask,
            position_ids=positions,
            return_dict=True,
            **options,
        ).last_hidden_state

    # from states to logits

    def head(self, hidden: Tensor) -> Tensor:
        """Apply the head's transform (layers between hidden states and unembedding), if any: [..., D] to [..., D]."""
        if self.family.head_dense is None or self.head_activation is None:
            return hidden
        transformed = self.head_activation(self._at(self.family.head_dense)(hidden))
        return transformed if self.head_norm is None else self.head_norm.module(transformed)

    @contextmanager
    def unembedded(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Inside, the weight [V, D] and bias [V] (or None) of the unembedding, loaded if they are offloaded."""
        with weights_of(self.unembedding) as module:
            yield module.weight.detach(), None if module.bias is None else module.bias.detach()

    def unembedding_rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows [..., D] of the unembedding, and their biases [...] (or None), for token ids [...]."""
        with self.unembedded() as (weight, bias):
            ids = ids.to(weight.device)
            return weight[ids], None if bias is None else bias[ids]

    def all_logits(self, state: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of all tokens, or labels, for `state` [B, D] in pieces: (id of the first, logits [B, size]).

        Logits are in float32 at least.
        """
        with self.unembedded() as (weight, bias):
            state = wide(state.to(weight.device))
            for start in range(0, len(weight), size):
                some = slice(start, start + size)
                yield start, self._logits_of(state, weight[some], None if bias is None else bias[some])

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2] ([B, 1] without foils) at the readout position of `hidden` [B, T, D].

        Logits of other tokens and positions are not computed.
        """
        return self.unembed(self.prediction(hidden, batch), batch)

    def prediction(self, hidden: Tensor, batch: Batch) -> Tensor:
        """The input of the unembedding [B, D]: `hidden` [N, T, D] at the readout position, after the head's transform.

        For spans it is [B, M, D], one for each of M tokens. If N < B the batch repeats its N texts: row i reads text
        i modulo N.
        """
        at = torch.arange(len(batch), device=hidden.device) % max(len(hidden), 1)
        if batch.span_positions is not None:
            return self.head(hidden[at[:, None], batch.span_positions.to(hidden.device)])
        return self.head(hidden[at, batch.position.to(hidden.device)])

    def unembed(self, state: Tensor, batch: Batch) -> Tensor:
        """Logits of target and foil [B, 2, ...] ([B, 1, ...] without foils) of `state` [B, ..., D]; float32 at least.

        A sample may have many states, such as one for each of its tokens. For a span, whose states are [B, N, D], it is
        the weighted sum of its tokens' logits [B, 1].
        """
        if batch.span_ids is not None:
            return weighted(self.of_span(state, batch), batch)
        rows, bias = self.unembedding_rows(batch.explained_ids)  # [B, 2, D]
        return self._logits_of(wide(state.to(rows.device)), rows, bias)

    def of_span(self, state: Tensor, batch: Batch) -> Tensor:
        """The logit of each token of a span [B, N, 1], from the state at its readout position [B, N, D]."""
        assert batch.span_ids is not None
        rows, bias = self.unembedding_rows(batch.span_ids.flatten()[:, None])  # [B * N, 1, D]
        return self._logits_of(wide(state.to(rows.device)).flatten(0, 1), rows, bias).unflatten(0, batch.span_ids.shape)

    def _logits_of(self, state: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Logits of states by some rows of the unembedding, soft cap included, in the precision of the states."""
        logits = self.readout(state, rows.to(state.dtype), None if bias is None else bias.to(state.dtype))
        return logits if self.logit_cap is None else self.logit_cap(logits)


def weighted(numbers: Tensor, batch: Batch) -> Tensor:
    """The weighted sum over the tokens of each span: `numbers` [B, N, ...] to [B, ...]."""
    assert batch.span_weights is not None
    weights = batch.span_weights.to(numbers)
    return (numbers * weights.view(*weights.shape, *[1] * (numbers.dim() - 2))).sum(1)
