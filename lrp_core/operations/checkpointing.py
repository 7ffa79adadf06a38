"""Blocks that run again in the backward pass, so that the graph keeps their inputs alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.operations.scope import Scope


class _Checkpointed(nn.Module):
    """A block that runs again in the backward pass. All other attributes are those of the block that it wraps."""

    def __init__(self, block: nn.Module, mode: Scope, dtype: torch.dtype) -> None:
        super().__init__()
        self.block = block
        self._mode, self._dtype = mode, dtype

    def forward(self, *args: Any, **options: Any) -> Any:
        # with an early stop torch would skip the hook that unloads the block's last offloaded module
        once_more: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "early_stop": False}
        return checkpoint(self.block, *args, context_fn=self._contexts, **once_more, **options)

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The contexts in which the block runs first, and again."""
        return nullcontext(), _Again(self._mode, self._dtype)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


class _Again(AbstractContextManager[None]):
    """The context of rules, which a block enters whenever it runs again in a backward pass."""

    def __init__(self, mode: Scope, dtype: torch.dtype) -> None:
        self._mode, self._dtype = mode, dtype

    def __enter__(self) -> None:
        self._undo = ExitStack()
        self._undo.enter_context(self._mode)
        self._undo.enter_context(unrounded(self._dtype))

    def __exit__(self, *error: Any) -> None:
        self._undo.close()


@contextmanager
def checkpointed(model: nn.Module, stacks: Sequence[str], mode: Scope, dtype: torch.dtype) -> Iterator[None]:
    """Inside, the blocks of the lists at the paths `stacks` keep their inputs alone for the backward pass."""
    with ExitStack() as undo:
        for path in stacks:
            holder: Any = model.get_submodule(path)
            for i, block in enumerate(list(holder)):
                undo.callback(holder.__setitem__, i, block)
                holder[i] = _Checkpointed(block, mode, dtype)
        yield
