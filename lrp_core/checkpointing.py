"""Blocks that keep their inputs alone inside a `with`, and are run again when the gradient reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lrp_core.precision import unrounded
from lrp_core.view import ModelView


class _Checkpointed(nn.Module):
    """A block that is run again in the backward pass; other attributes are the block's own."""

    def __init__(self, block: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.block = block
        self._dtype = dtype

    def forward(self, *args: Any, **options: Any) -> Any:
        # an early stop would skip the hook that unloads the last offloaded module of the block
        once_more: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "early_stop": False}
        return checkpoint(self._run, *args, **once_more, **options)

    def _run(self, *args: Any, **options: Any) -> Any:
        with unrounded(self._dtype):  # in the backward pass, too
            return self.block(*args, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


@contextmanager
def checkpointed_blocks(view: ModelView, path: str) -> Iterator[None]:
    """Inside, the blocks of the list under `path` keep their inputs alone."""
    holder: Any = view.model.get_submodule(path)
    blocks = list(holder)
    try:
        for i, block in enumerate(blocks):
            holder[i] = _Checkpointed(block, view.dtype)
        yield
    finally:
        for i, block in enumerate(blocks):
            holder[i] = block
