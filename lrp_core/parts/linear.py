"""Linear layers as their rules need them: weight [out, in] and inputs [..., in], whatever the module's own layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lrp_core.parts.weights import weights_of


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

    def inputs(self, x: Tensor) -> Tensor:
        """The module's input x as inputs [..., in] of the linear layer."""
        return x

    def outputs(self, y: Tensor) -> Tensor:
        """The module's output y as outputs [..., out] of the linear layer."""
        return y

    def gathered(self, dx: Tensor, x: Tensor) -> Tensor:
        """The gradient at the module's input `x` from the gradient dx at `inputs(x)`, [..., in]."""
        return dx


@dataclass(frozen=True)
class Convolution(LinearLayer):
    """A convolution over an image, as a linear layer that reads all pixels under the kernel at each position."""

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [out, in] and bias [out]; `in` runs over channels and the kernel's pixels."""
        weight, bias = super().parameters()
        return weight.flatten(1), bias

    def inputs(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, positions, in]."""
        return nn.functional.unfold(x, **self._kernel).mT

    def outputs(self, y: Tensor) -> Tensor:
        """[B, out, H, W] to [B, positions, out]."""
        return y.flatten(2).mT

    def gathered(self, dx: Tensor, x: Tensor) -> Tensor:
        """[B, positions, in] to [B, C, H, W]: each pixel gets the sum over the positions that read it."""
        return nn.functional.fold(dx.mT, x.shape[-2:], **self._kernel)

    @property
    def _kernel(self) -> dict[str, Any]:
        """The arguments of `unfold` and `fold` that describe the kernel."""
        module: Any = self.module
        return {name: getattr(module, name) for name in ("kernel_size", "stride", "padding", "dilation")}


@dataclass(frozen=True)
class ReadRows(LinearLayer):
    """The rows of the unembedding that a readout uses: `weight` [C, D] for all samples, or [B, C, D], one set each."""

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
