"""Rules on operations around any computation, for tests that look inside it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from closelook.lrp_core import Batch, ModelView
from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.operations.explain import Forward
from closelook.lrp_core.operations.forward import forward_pass
from closelook.lrp_core.operations.mode import Operations
from closelook.lrp_core.operations.nodes import Plan
from closelook.lrp_core.operations.roots import Roots
from closelook.lrp_core.rules import PLAIN, Composite


class Rules(Operations):
    """The mode of one composite, which may be planned with others."""

    def root(self, x: Tensor) -> Tensor:
        """The same x, as a leaf that carries relevance."""
        leaf = x.detach().requires_grad_()
        self.roots._leaves[id(leaf)] = leaf
        return leaf


@contextmanager
def rules(
    composite: Composite, *planned: Composite, ids: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Iterator[Rules]:
    """Inside, operations on what descends from `root` (or from embeddings of `ids`) follow the composite's rules.

    Nothing is rounded below `dtype`.
    """
    plan = Plan(planned or (composite,))
    plan.current = plan.composites.index(composite)
    mode = Rules(plan, Roots({} if ids is None else {"input_ids": ids}), nn.Module())
    with torch.enable_grad(), mode, unrounded(dtype):
        yield mode


def forward(view: ModelView, batch: Batch, composite: Composite) -> Forward:
    """A forward pass under a composite's rules, whose `output` has the "logits" of target and foil."""
    return forward_pass(view, batch, batch, (), [composite])


def embeddings(view: ModelView, batch: Batch) -> tuple[Tensor, Tensor]:
    """Embeddings [B, T, D] of the words, and those with positions and segments, as the model looks them up."""
    found = forward(view, batch, PLAIN).roots.found
    words = [root.value.detach() for root in found if root.words]
    return sum(words), sum(root.value.detach() for root in found)
