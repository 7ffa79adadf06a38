"""Linear layers as their rules see them: whatever a module reads, a weight [out, in] and inputs [..., in]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lrp_core.parts.weights import weights_of


@dataclass(frozen=True)
class LinearLayer:
    """A linear module, the group that names its rule, and whether its weight is stored as [in, out]."""

    module: nn.Module
    group: str
    transposed: bool

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [out, in] and bias [out] (None where there is none)."""
        with weights_of(self.module) as module:
            weight, bias = module.weight.detach(), module.bias
            return weight.T if self.transposed else weight, None if bias is None else bias.detach()

    def inputs(self, x: Tensor) -> Tensor:
        """The module's input as inputs [..., in] of a linear layer."""
        return x

    def outputs(self, y: Tensor) -> Tensor:
        """The module's output as outputs [..., out] of a linear layer."""
        return y

    def gathered(self, dx: Tensor, x: Tensor) -> Tensor:
        """A gradient [..., in] of such inputs as one of `x`."""
        return dx


@dataclass(frozen=True)
class Convolution(LinearLayer):
    """A convolution over an image: a linear layer that reads every pixel under its kernel."""

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [out, in] over channels and the kernel's pixels, and bias [out]."""
        weight, bias = super().parameters()
        return weight.flatten(1), bias

    def inputs(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, positions, in]."""
        return nn.functional.unfold(x, **self._kernel).mT

    def outputs(self, y: Tensor) -> Tensor:
        """[B, out, H, W] to [B, positions, out]."""
        return y.flatten(2).mT

    def gathered(self, dx: Tensor, x: Tensor) -> Tensor:
        return nn.functional.fold(dx.mT, x.shape[-2:], **self._kernel)

    @property
    def _kernel(self) -> dict[str, Any]:
        module: Any = self.module
        return {name: getattr(module, name) for name in ("kernel_size", "stride", "padding", "dilation")}


@dataclass(frozen=True)
class ReadRows(LinearLayer):
    """Rows of the unembedding that are read: `weight` [C, D] of all samples, or [B, C, D] with one set for each."""

    weight: Tensor
    bias: Tensor | None

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias if self.bias is None or self.weight.dim() == 2 else self.bias[:, None]

    def inputs(self, x: Tensor) -> Tensor:
        """[B, D] to [B, 1, D]."""
        return x if self.weight.dim() == 2 else x[:, None]

    def outputs(self, y: Tensor) -> Tensor:
        """[B, C] to [B, 1, C]."""
        return self.inputs(y)

    def gathered(self, dx: Tensor, x: Tensor) -> Tensor:
        return dx.reshape(x.shape)
