"""Roots: the embeddings of a batch's own tokens, and what positions and types add to them, found while a model runs.

A root is told by its indices. Look-ups by other indices, such as relative positions, are weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.operations.marks import INSERTED, NONE, Mark, mark_of, marked, replaced, tensors_in
from closelook.lrp_core.records.types import UnsupportedMethod

PATCHES = "patches"  # the stream of an image's tokens
LOOK_UPS = (torch.nn.functional.embedding, Tensor.__getitem__, torch.index_select, Tensor.index_select)


@dataclass(frozen=True)
class Root:
    """Embeddings [B, T, D] at which relevance is read."""

    stream: str  # the key of the ids that they embed
    value: Tensor
    words: bool  # False: what positions or types add to the embeddings of words


class Roots:
    """The roots of a forward pass."""

    def __init__(
        self, ids: Mapping[str, Tensor], pixels: Tensor | None = None, instead: Mapping[str, Tensor] | None = None
    ) -> None:
        """`ids` are the batch's tokens [B, T] by the name of their stream; `pixels` [B, C, H, W] are a root, too."""
        self.ids, self.pixels, self._instead = dict(ids), pixels, instead or {}
        self.found: list[Root] = []
        self._apart: set[str | None] = set()  # streams whose embeddings are transposed, or stand beside others
        # By stream: the column of its first token, if a model puts others before or after.
        self._first: dict[str | None, int] = {}
        self._leaves = {} if pixels is None else {id(pixels): pixels}

    def __contains__(self, leaf: Tensor) -> bool:
        return id(leaf) in self._leaves

    def require_one_table(self) -> None:
        """Raise UnsupportedMethod if tokens have embeddings in several tables, for methods that read those of one."""
        words = [root.stream for root in self.found if root.words and root.stream != INSERTED]
        if len(set(words)) < len(words):
            raise UnsupportedMethod(
                "the model looks its tokens up in several tables, as with an adapter kept beside its embeddings, and "
                "this method takes the gradient at one: merge the adapter, or use attnlrp or gradient_x_input"
            )

    def looked_up(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The rows of a table for some indices: a root if these are ids of the batch."""
        rows = func(*args, **kwargs)
        if func is torch.nn.functional.embedding:
            indices, table = args[0], args[1] if len(args) > 1 else kwargs["weight"]
        else:
            table, indices = args[0], args[-1]
        place = self.place(indices) if isinstance(indices, Tensor) else None
        if place is None or not table.is_floating_point():
            return rows
        stream, is_transposed, first = place
        if self.may_be_positions(indices, stream):
            return rows
        ids = self.ids[stream]
        if is_transposed or indices.numel() > ids.numel():
            self._apart.add(stream)
        if is_transposed:
            rows = rows.transpose(0, 1)
        rows = rows.detach().reshape(len(ids), -1, *rows.shape[indices.dim() :])
        root = self._root(rows[:, first : first + ids.shape[-1]].contiguous(), stream, words=True)
        if rows.shape[1] > ids.shape[-1]:
            root = self._between(rows, root, first)
        of_indices = indices.shape[::-1] if is_transposed else indices.shape
        root = marked(root.view(*of_indices, *rows.shape[2:]), mark_of(root))
        return marked(root.transpose(0, 1), mark_of(root)) if is_transposed else root

    def _between(self, rows: Tensor, root: Tensor, first: int) -> Tensor:
        """A root between rows of tokens that a model puts before and after the batch's own, as padding or prompts."""
        last = first + root.shape[1]
        parts = [rows[:, :first], root, rows[:, last:]]
        for at in (0, 2):
            if parts[at].numel():
                parts[at] = self._root(parts[at].contiguous(), INSERTED, words=True)
        self._first[mark_of(root).embedding] = first
        return marked(torch.cat(parts, 1), mark_of(root))

    def stream(self, indices: Tensor) -> str | None:
        """The name of the stream whose ids the `indices` are; None if they are no stream's."""
        if indices.is_floating_point() or indices.dtype == torch.bool:
            return None
        alike = {name: ids for name, ids in self.ids.items() if ids.numel() == indices.numel()}
        for name, ids in alike.items():
            if _is_same(ids, indices):
                return name
        return next((name for name, ids in alike.items() if torch.equal(ids.flatten(), indices.flatten())), None)

    def place(self, indices: Tensor) -> tuple[str, bool, int] | None:
        """The stream whose ids some indices are, whether they are transposed, and the column of the first; or None."""
        stream = self.stream(indices)
        if stream is not None:
            return stream, False, 0
        if indices.dim() != 2 or indices.is_floating_point() or indices.dtype == torch.bool:
            return None
        for name, ids in self.ids.items():
            if ids.dim() != 2:
                continue
            if indices.shape == ids.mT.shape and torch.equal(indices, ids.mT):
                return name, True, 0
            more = indices.shape[1] - ids.shape[1]
            if len(indices) == len(ids) and more > 0:
                for first in (0, more):
                    if torch.equal(indices[:, first : first + ids.shape[1]], ids):
                        return name, False, first
        return None

    def may_be_positions(self, indices: Tensor, stream: str) -> bool:
        """True for indices that equal ids of the batch, but may be positions: from 0, 1 or 2 on, each one higher."""
        if _is_same(self.ids[stream], indices):
            return False
        return bool(indices.min() <= 2 and (indices.diff(dim=-1) <= 1).all())

    def _root(self, value: Tensor, stream: str, words: bool) -> Tensor:
        """Make `value` a root; returns a copy that the model may change in place."""
        if words and stream in self._instead:
            value = self._instead[stream].to(value)
        leaf = value.detach().requires_grad_()
        self._leaves[id(leaf)] = leaf
        self.found.append(Root(stream, leaf, words))
        return marked(leaf.clone(), Mark(embedding=stream))

    def put_out(self, embeddings: Tensor) -> Tensor:
        """What a module makes of embeddings that it looked up, such as a multiple, as the root in their place."""
        stream = mark_of(embeddings).embedding
        if stream is None or stream in self._apart or not embeddings.requires_grad:
            return embeddings
        del self.found[max(at for at, root in enumerate(self.found) if root.stream == stream)]
        return self._root(embeddings, stream, words=True)

    def added(self, embeddings: Tensor, constant: Any) -> Any:
        """The `constant` that a model adds to embeddings: a root if it has a row for each token, as positions have."""
        stream = mark_of(embeddings).embedding
        if stream is None or not isinstance(constant, Tensor) or constant.requires_grad:
            return constant
        if mark_of(constant).constant or constant.dim() < 2 or embeddings.dim() != 3:
            return constant
        if constant.shape[-2:] != embeddings.shape[-2:]:
            return constant
        self.capture(embeddings)
        rows = constant.expand_as(embeddings).contiguous()
        ids = self.ids.get(stream)
        if ids is None or ids.shape[-1] == rows.shape[-2]:
            return self._root(rows, stream, words=False)
        first = self._first.get(stream)
        if first is None:  # a model puts tokens beside the batch's own, but not by a union
            return self._root(rows, INSERTED, words=True)
        root = self._root(rows[:, first : first + ids.shape[-1]].contiguous(), stream, words=False)
        return self._between(rows, root, first)

    def inserted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a union: tokens that a model puts beside embeddings, such as registers, are roots."""
        tensors = list(tensors_in(args))
        streams = [mark_of(tensor).embedding for tensor in tensors]
        if not self.found or not any(streams):
            return args
        if all(tensor.dim() == 3 for tensor in tensors):
            at = next(at for at, stream in enumerate(streams) if stream)
            self._first[streams[at]] = sum(tensor.shape[1] for tensor in tensors[:at])
        own = [tensor for tensor in tensors if tensor.is_floating_point() and not tensor.requires_grad]
        own = [tensor for tensor in own if mark_of(tensor) is NONE and tensor.dim() == 3 and tensor.numel()]
        return replaced(args, {id(tensor): self._root(tensor, INSERTED, words=True) for tensor in own})

    def projected(self, embeddings: Tensor, result: Tensor) -> Tensor:
        """The result of a layer on embeddings, to which a model may add positions after it, if it has not before."""
        stream = mark_of(embeddings).embedding
        if stream not in self.ids or any(root.stream == stream and not root.words for root in self.found):
            return result
        return marked(result, Mark(embedding=stream))

    def convolved(self, patches: Tensor) -> Tensor:
        """The embeddings of image patches."""
        return marked(patches, mark_of(patches)._replace(embedding=PATCHES))

    def capture(self, tokens: Tensor) -> None:
        """Take embeddings of patches [B, T, D] as the words' root, unless they have one."""
        if mark_of(tokens).embedding == PATCHES and not self.found:
            self.found.append(Root(PATCHES, tokens, words=True))


def _is_same(ids: Tensor, indices: Tensor) -> bool:
    """True if `indices` share the memory of `ids`, which a device need not be waited for to know."""
    if not (ids.is_contiguous() and indices.is_contiguous()):
        return False
    return ids.dtype == indices.dtype and ids.data_ptr() == indices.data_ptr()
