"""Notes modules of a model in memory that may compute something else than their class and weights say.

What a model runs is explained as it ran. Methods that read weights, or look inside such modules, refuse them by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn
from transformers.pytorch_utils import Conv1D

from closelook.lrp_core.parts.layers import ALTERED
from closelook.lrp_core.views.view import ModelView

_KNOWN = {"torch", "transformers", "peft", "accelerate", "closelook"}  # packages whose modules compute what they should


def may_be_altered(module: nn.Module, known: Collection[str] = _KNOWN) -> bool:
    """True if hooks, a replaced `forward` or a class of no `known` package may change what a module computes."""
    fields = vars(module)
    replaced = "forward" in fields and "_hf_hook" not in fields  # accelerate replaces it to move weights
    package = type(module).forward.__module__.partition(".")[0]
    return bool(module._forward_hooks or module._forward_pre_hooks) or replaced or package not in known


def note_altered(view: ModelView) -> None:
    """Enter the modules of a described model in ALTERED that may be altered or are of another class than usual."""
    known = {*_KNOWN, str(view.family.classes).partition(".")[0]}  # a package may bring the classes of its family
    unusual = set(_of_other_classes(view))
    for path, module in view.model.named_modules():
        ALTERED.pop(module, None)
        if module in unusual or may_be_altered(module, known):
            ALTERED[module] = path or type(module).__name__


def _of_other_classes(view: ModelView) -> Iterator[nn.Module]:
    """Yield norms and linear layers of another class than the family has, such as a factorised linear layer."""
    for norm in view.norms():
        if isinstance(norm.module, nn.LayerNorm) != (norm.kind == "layer"):
            yield norm.module
    for layer in view.linear_layers():
        if not isinstance(layer.module, (Conv1D if layer.transposed else nn.Linear, nn.Conv2d)):
            yield layer.module
