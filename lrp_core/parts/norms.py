"""Norm layers of a model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from lrp_core.families import Family
from lrp_core.parts.weights import weights_of


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
