"""Layers of a model: their weights, linear layers and norms as rules need them, and the last steps to logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from accelerate.utils import align_module_device
from torch import Tensor, nn

from closelook.lrp_core.families import Family
from closelook.lrp_core.records.types import UnsupportedMethod

#: Modules that may compute something else than their class and weights say, with their paths in the model.
ALTERED: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def check_unaltered(modules: Iterable[nn.Module]) -> None:
    """Raise UnsupportedMethod if one of `modules` is in ALTERED; for methods that read weights or look inside them."""
    for module in modules:
        if module in ALTERED:
            raise UnsupportedMethod(
                f"{ALTERED[module]} may compute something else than its class and weights say (a hook, a replaced "
                "forward, another class, or an adapter beside its base), which this method would read: undo the change "
                "or merge the adapter, or take relevance of tokens by attnlrp"
            )


@contextmanager
def weights_of(module: nn.Module) -> Iterator[Any]:
    """Inside, the module with its `weight` and `bias` loaded if they are offloaded."""
    check_unaltered([module])
    with align_module_device(module):
        yield module


@dataclass(frozen=True)
class LinearLayer:
    """A linear module, with the group of layers to which its rule belongs."""

    module: nn.Module
    group: str  # a field of `LinearRules`
    transposed: bool  # the module stores its weight as [in, out]

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [out, in] and bias [out] (or None), loaded if they are offloaded."""
        with weights_of(self.module) as module:
            weight, bias = module.weight.detach(), module.bias
            return weight.T if self.transposed else weight, None if bias is None else bias.detach()


@dataclass(frozen=True)
class NormView:
    """A LayerNorm or RMSNorm module, with its kind and constants."""

    module: nn.Module
    kind: str  # "layer" | "rms"
    eps: float
    offset: float = 0.0  # added to the stored weight

    @classmethod
    def of(cls, root: nn.Module, path: str, family: Family) -> NormView:
        """The norm at `path`, a submodule of `root`."""
        module = root.get_submodule(path)
        return cls(module, family.norm, getattr(module, family.norm_eps), family.norm_offset)

    @classmethod
    def optional(cls, root: nn.Module, path: str | None, family: Family) -> NormView | None:
        """The norm at `path`; None without a path, or if the module there is an identity."""
        return None if path is None or isinstance(root.get_submodule(path), nn.Identity) else cls.of(root, path, family)

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [D], offset included, and bias [D] (None for RMSNorm)."""
        with weights_of(self.module) as module:
            weight = module.weight.detach()
            bias = module.bias.detach() if self.kind == "layer" and module.bias is not None else None
            return (weight + self.offset if self.offset else weight), bias
