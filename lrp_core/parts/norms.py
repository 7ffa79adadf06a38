"""Norms as their family describes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from lrp_core.families import Family
from lrp_core.parts.weights import weights_of


@dataclass(frozen=True)
class NormView:
    """A LayerNorm or RMSNorm module and how to read it."""

    module: nn.Module
    kind: str  # "layer" | "rms"
    eps: float
    offset: float = 0.0  # added to the stored weight

    @classmethod
    def of(cls, root: nn.Module, path: str, family: Family) -> NormView:
        """The norm under this path."""
        module = root.get_submodule(path)
        return cls(module, family.norm, getattr(module, family.norm_eps), family.norm_offset)

    @classmethod
    def optional(cls, root: nn.Module, path: str | None, family: Family) -> NormView | None:
        """The norm under this path; None where there is no path, or the module does nothing."""
        return None if path is None or isinstance(root.get_submodule(path), nn.Identity) else cls.of(root, path, family)

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [D], offset included, and bias [D] (None for RMSNorm)."""
        with weights_of(self.module) as module:
            weight = module.weight.detach()
            bias = module.bias.detach() if self.kind == "layer" and module.bias is not None else None
            return (weight + self.offset if self.offset else weight), bias
