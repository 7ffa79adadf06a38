"""The forward pass that explains a batch: the model's own, on its ordinary inputs, read at the readout positions.

Texts run with their padding on the right, where models need no position ids, or without padding where a model may
treat it in any way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide, wide_dtype
from closelook.lrp_core.operations.explain import PIXELS
from closelook.lrp_core.operations.watching import read_from
from closelook.lrp_core.parts.layers import ALTERED, weights_of
from closelook.lrp_core.records.explained import explained_by
from closelook.lrp_core.records.types import Batch, Relevance, UserError
from closelook.lrp_core.views.generic import GenericView, alike
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True)
class Piece:
    """Rows of a batch that run together."""

    rows: Tensor  # [R], of the whole batch
    columns: Tensor  # [R, T'], the column in the whole batch of each token
    batch: Batch  # these rows
    size: int  # the number of different texts: row i has text i modulo this number

    @property
    def texts(self) -> Batch:
        """The different texts."""
        return self.batch.rows(0, self.size)

    @property
    def text_of(self) -> Tensor:
        """The text [R] of each row."""
        return torch.arange(len(self.rows), device=self.rows.device) % max(self.size, 1)


def pieces_of(view: ModelView, batch: Batch, size: int) -> Iterator[Piece]:
    """The pieces of a batch, on the view's device, in which the same `size` texts repeat."""
    mask = batch.attention_mask[:size]
    order = torch.argsort(1 - mask, dim=1, stable=True)
    if not isinstance(view, GenericView) and not _runs_singly(view):
        yield _piece(view, batch, size, torch.arange(size, device=mask.device), order)
        return
    lengths = (mask != 0).sum(-1).cpu()
    for rows in alike(view, lengths):
        here = rows.to(mask.device)
        yield _piece(view, batch, size, here, order[here, : int(lengths[rows[0]])])


def _runs_singly(view: ModelView) -> bool:
    """True for a causal classifier without a padding token, which takes a single text at a time."""
    return view.kind.labels and view.kind.causal and view.config.pad_token_id is None


def _piece(view: ModelView, batch: Batch, size: int, texts: Tensor, columns: Tensor) -> Piece:
    """The piece of the `texts` [N] of a batch of `size` texts, with the tokens at their `columns` [N, T']."""
    times = len(batch) // max(size, 1)
    rows = (torch.arange(times, device=texts.device)[:, None] * size + texts).flatten()
    columns = columns.repeat(times, 1)
    of_rows = batch.mapped(lambda values: values[rows])
    counted = (of_rows.attention_mask.cumsum(-1) - 1).clamp_min(0)
    moved: Callable[[Tensor], Tensor] = partial(torch.gather, counted, 1)
    if batch.decoder_input_ids is not None:  # predictions are read in the decoder's text
        moved = _unmoved
    of_rows = of_rows.over_tokens(lambda of_tokens: of_tokens.gather(1, columns), moved)
    pad = view.config.pad_token_id if of_rows.pixel_values is None else None
    if pad is not None and 0 <= pad < view.vocab:  # some models count positions by it
        ids = of_rows.input_ids.masked_fill(of_rows.attention_mask == 0, pad)
        of_rows = replace(of_rows, input_ids=ids)
    return Piece(rows, columns, of_rows, len(texts))


def _unmoved(positions: Tensor) -> Tensor:
    return positions


def joined(batch: Batch, parts: Sequence[tuple[Piece, Relevance]]) -> Relevance:
    """The relevance of a batch from that of its pieces; 0 for rows that are in none."""
    if not parts:  # rows of padding alone
        zeros = batch.attention_mask.float()
        return Relevance(zeros, zeros[:, 0], zeros[:, 0], None if batch.foil_ids is None else zeros[:, 0])
    fields: dict[str, Any] = {}
    for name in parts[0][1].tensors:
        fields[name] = _whole(batch, name, [(piece, part.tensors[name]) for piece, part in parts])
    return replace(parts[0][1], **fields)


def _whole(batch: Batch, name: str, parts: Sequence[tuple[Piece, Tensor]]) -> Tensor:
    """The field `name` of a Relevance, from its values for pieces of the batch."""
    like = parts[0][1]
    shape = (len(batch), *like.shape[1:])
    whole = like.new_zeros(batch.input_ids.shape if name == "tokens" else shape)
    for piece, values in parts:
        rows, columns = piece.rows.to(values.device), piece.columns.to(values.device)
        if name == "tokens":
            whole[rows[:, None], columns] = values
            continue
        if name == "neuron_positions":
            positions = columns.gather(1, values.clamp_min(0).flatten(1)).view_as(values)
            values = positions.masked_fill(values < 0, -1)
        whole[rows] = values
    return whole


def inputs_of(view: ModelView, texts: Batch) -> dict[str, Any]:
    """The arguments of the model's forward for some texts."""
    if texts.pixel_values is not None:
        return {PIXELS: texts.pixel_values.to(view.dtype)}
    inputs = {
        "input_ids": texts.input_ids,
        "attention_mask": texts.attention_mask,
        "token_type_ids": texts.token_type_ids,
        "decoder_input_ids": texts.decoder_input_ids,
        "decoder_attention_mask": texts.decoder_attention_mask,
        "use_cache": False,
        "return_dict": True,
    }
    takes = signature(view.model.forward).parameters
    return {name: value for name, value in inputs.items() if value is not None and name in takes}


def ids_of(batch: Batch) -> Tensor:
    """Ids [R, N, 2] of the target and the foil at each readout position; [R, N, 1] without foils."""
    return batch.explained_ids[:, None] if batch.span_ids is None else batch.span_ids[..., None]


def _is_linear(module: Any) -> bool:
    """True for a linear layer that computes what its weights say: nothing hooks into it or replaces its forward."""
    hooks = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    if type(module) is not nn.Linear or hooks or "forward" in vars(module):
        return False
    return not module._forward_hooks and not module._forward_pre_hooks and module not in ALTERED


class ReadRows:
    """Computes logits at readout positions alone, where the model's output embeddings read hidden states."""

    def __init__(self, view: ModelView, piece: Piece, explanations: Sequence[str]) -> None:
        self._head: Any = None if view.kind.labels else view.model.get_output_embeddings()
        self._text, self._at, self._ids = piece.text_of, piece.batch.read_positions, ids_of(piece.batch)
        self._all_logits = not all(explained_by(name).linear for name in explanations)
        self._is_linear = _is_linear(self._head)
        self._states: Tensor | None = None  # [R, N, D], what the output embeddings read
        self._output: Tensor | None = None  # [R, N, V]

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Inside, the output embeddings get hidden states [R, N, D] at the readout positions of R rows."""
        if not isinstance(self._head, nn.Module):
            yield
            return
        with self._head.register_forward_pre_hook(self._choose), self._head.register_forward_hook(self._note):
            yield

    def _choose(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook of the output embeddings."""
        states, *others = args
        self._states = self._rows(states)
        return (self._states, *others)

    def _note(self, _: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Forward hook of the output embeddings, whose gradient needs the rows of explained tokens alone."""
        self._output = output
        if self._all_logits or not self._is_linear:
            return output
        with weights_of(self._head) as weights:
            rows = weights.weight.detach()[self._ids.to(weights.weight.device)]  # [R, N, 2, D]
        return read_from(output, args[0], rows, self._ids)

    def _rows(self, of_texts: Tensor) -> Tensor:
        """The values [R, N, ...] at the readout positions of rows, from those of texts [B, T, ...]."""
        text, at = self._text.to(of_texts.device), self._at.to(of_texts.device)
        return of_texts[text[:, None], at]

    def read(self, logits: Tensor) -> Tensor:
        """The logits [R, N, V] of rows in the model's output, or [R, 1, C] of labels; float32 at least."""
        if logits.dim() == 2:
            return wide(logits[self._text.to(logits.device)][:, None])
        return wide(logits if self._states is not None else self._rows(logits))

    def unrounded(self, pairs: Tensor, ids: Tensor) -> Tensor:
        """The logits [R, N, 2] of the tokens `ids`, without the rounding of half-precision output embeddings.

        Logits that the model changes afterwards, as by a soft cap, stay as they are.
        """
        states, output, head = self._states, self._output, self._head
        if states is None or output is None or not self._is_linear:
            return pairs
        rounded = wide(output.detach().gather(2, ids))
        if wide_dtype(output.dtype) == output.dtype or not torch.equal(rounded, pairs.detach()):
            return pairs
        with weights_of(head) as weights:
            rows = wide(weights.weight.detach()[ids])
            bias = 0 if weights.bias is None else wide(weights.bias.detach()[ids])
        exact = torch.einsum("rnd,rncd->rnc", wide(states.detach()), rows) + bias
        return pairs + (exact - rounded)


def numbers_of(
    view: ModelView, head: ReadRows, output: Tensor, batch: Batch, explanations: Sequence[str]
) -> dict[str, Tensor]:
    """The explained numbers [R] by explanation, from the logits in the model's `output`.

    "logits" are those of target and foil, [R, 2] ([R, 1] without foils). Raises what `Explained.of` raises, and
    UserError for the log-probability of a score.
    """
    choices = [explained_by(name) for name in explanations]
    if view.predicts_score and not all(choice.linear for choice in choices):
        raise UserError("a score has no probability: explain it by 'target'")
    logits = head.read(output)  # [R, N, V]
    ids = ids_of(batch).to(logits.device)
    pairs = head.unrounded(logits.gather(2, ids), ids)
    weights = pairs.new_ones(pairs.shape[:2]) if batch.span_weights is None else batch.span_weights.to(pairs)
    others = None
    if not all(choice.linear for choice in choices):
        others = logits.scatter(2, ids[..., :1], -torch.inf).logsumexp(-1).flatten()
    numbers = {"logits": (pairs * weights[..., None]).sum(1)}
    for choice in choices:
        number = choice.of(pairs.flatten(0, 1), others).view(weights.shape)
        numbers[choice.name] = (number * weights).sum(1)
    return numbers
