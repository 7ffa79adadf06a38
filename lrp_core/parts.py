"""Parts of a model as its family describes them: norms and transformer blocks, with their weights laid out by head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn

from lrp_core.families import Family

#: What is added to the weights of modules that an adapter stands beside, laid out like them.
ADDED_WEIGHTS: WeakKeyDictionary[nn.Module, Callable[[], Tensor]] = WeakKeyDictionary()


@contextmanager
def weights_of(module: nn.Module) -> Iterator[Any]:
    """Something with the module's `weight` and `bias`, even if they are offloaded, and with what an adapter adds.

    Tensors read inside stay valid afterwards.
    """
    with align_module_device(module):
        if module in ADDED_WEIGHTS:
            added = ADDED_WEIGHTS[module]().detach()
            whole: Any = module
            yield SimpleNamespace(weight=whole.weight.detach() + added, bias=whole.bias)
        else:
            yield module


@dataclass(frozen=True)
class NormView:
    """A LayerNorm or RMSNorm module and how to read it."""

    module: nn.Module
    kind: str  # "layer" | "rms"
    eps: float
    offset: float = 0.0  # added to the stored weight

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [D], offset included, and bias [D] (None for RMSNorm)."""
        with weights_of(self.module) as module:
            weight = module.weight.detach()
            bias = module.bias.detach() if self.kind == "layer" and module.bias is not None else None
            return (weight + self.offset if self.offset else weight), bias


class SoftCap(nn.Module):
    """cap * tanh(z / cap), elementwise: z where it is small, never beyond the cap (Gemma 2)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(z / self.cap) * self.cap


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
        """What the module reads, as inputs [..., in] of a linear layer."""
        return x

    def outputs(self, y: Tensor) -> Tensor:
        """What the module puts out, as outputs [..., out] of a linear layer."""
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


class Readout(nn.Module):
    """The product of the unembedding, as a module, so that rules find it."""

    def forward(self, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[B, C] of states [B, D] by `weight` [C, D]; or [B, C, ...] of [B, ..., D], each by a weight of [B, C, D]."""
        if weight.dim() == 2:
            logits = state @ weight.T
            return logits if bias is None else logits + bias
        logits = torch.einsum("b...d,bcd->bc...", state, weight)
        return logits if bias is None else logits + bias.view(*bias.shape, *(1,) * (logits.dim() - 2))


@dataclass(frozen=True)
class AttentionView:
    """One attention layer: an index of the axis L of heads."""

    attention: nn.Module  # the module that calls the attention kernel
    query: nn.Module
    key: nn.Module
    value: nn.Module  # the same fused module as query and key in some families
    output: nn.Module


@dataclass(frozen=True)
class ExpertsView:
    """A mixture of experts; see `lrp_core.families.base.Experts`."""

    router: Any
    all: Any
    shared: nn.Module | None
    shared_gate: nn.Module | None


SHARED = "shared"  # in place of an expert's number, in the names of neurons


@dataclass(frozen=True)
class FeedForward:
    """Some neurons of a block: those of its MLP, of an expert, or of the expert that every token is sent to."""

    first: int  # number of its first neuron in the block
    size: int
    title: str | None = None  # of an expert
    expert: int | None = None  # its number, of those that tokens are sent to

    @classmethod
    def of_experts(cls, experts: Any) -> list[FeedForward]:
        """Those that tokens are sent to; `experts` has their down projections [E, D, F]."""
        number, _, size = experts.down_proj.shape
        return [cls(at * size, size, str(at), at) for at in range(number)]


@dataclass(frozen=True)
class BlockView:
    """One transformer block."""

    module: nn.Module
    attention: nn.Module  # the module that calls the attention kernel
    query: nn.Module
    key: nn.Module
    value: nn.Module  # the same fused module as query and key in some families
    output: nn.Module
    # of the attention's input, its output, or residual + attention, by the norm order; None where a block has none
    attention_norm: NormView | None
    mlp_norm: NormView
    added_norms: tuple[NormView, ...]  # of what attention and MLP put out, beside those of their inputs
    head_norms: tuple[NormView, ...]  # of queries and keys, over the head width or all heads
    activation: Any  # with gate, up and down the MLP, or the shared expert; None where other experts stand alone
    gate: nn.Module | None
    up: Any
    down: Any
    experts: ExpertsView | None
    adds: nn.Module  # puts out what is added behind attention
    family: Family
    n_heads: int
    n_kv_heads: int
    head_dim: int

    @property
    def norms(self) -> tuple[NormView, ...]:
        """Every norm once, also where attention and MLP share theirs."""
        every = (self.attention_norm, self.mlp_norm, *self.added_norms, *self.head_norms)
        return tuple({norm.module: norm for norm in every if norm is not None}.values())

    @cached_property
    def feed_forwards(self) -> tuple[FeedForward, ...]:
        """Where its neurons are, in the order of their numbers: each expert's, then those of its MLP or shared expert.

        Neurons are what enters a down projection.
        """
        layers = [] if self.experts is None else FeedForward.of_experts(self.experts.all)
        if self.down is not None:  # offloaded weights have a shape, too
            size = self.down.weight.shape[0 if self.family.transposed else 1]
            layers.append(FeedForward(sum(part.size for part in layers), size, SHARED if layers else None))
        return tuple(layers)

    @property
    def n_neurons(self) -> int:
        return sum(part.size for part in self.feed_forwards)

    def part_of(self, neuron: int) -> FeedForward:
        """Where the neuron of this number is."""
        return next(part for part in self.feed_forwards if neuron < part.first + part.size)

    @property
    def mlp_width(self) -> int:
        """Activations that a token has behind attention, those of all its experts together."""
        for_all = sum(part.size for part in self.feed_forwards if part.expert is None)
        if self.experts is None:
            return for_all
        return for_all + self.experts.router.top_k * self.experts.all.down_proj.shape[-1]

    @property
    def sum_norms(self) -> tuple[NormView, NormView]:
        """The norms of a post-norm block, behind the sums of residual and attention, and of residual and MLP."""
        assert self.attention_norm is not None
        return self.attention_norm, self.mlp_norm

    def value_weights(self) -> tuple[Tensor, Tensor | None]:
        """Value projection: weight [G, K, D] and bias [G, K] (None where there is none)."""
        with weights_of(self.value) as module:
            weight = module.weight.detach()
            weight = weight.T if self.family.transposed else weight  # [out, D]
            bias = None if module.bias is None else module.bias.detach()
        rows = self._value_rows(weight.shape[0])
        return (
            weight[rows].unflatten(0, (self.n_kv_heads, self.head_dim)),
            None if bias is None else bias[rows].unflatten(0, (self.n_kv_heads, self.head_dim)),
        )

    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Output projection by head: weight [H, K, D] and bias [D] (None where there is none)."""
        with weights_of(self.output) as module:
            weight = module.weight.detach()
            weight = weight if self.family.transposed else weight.T  # [H * K, D]
            bias = None if module.bias is None else module.bias.detach()
        return weight.unflatten(0, (self.n_heads, self.head_dim)), bias

    def neuron_vectors(self, neurons: Sequence[int], written: bool) -> Tensor:
        """Of each of these neurons [N, D]: what one unit of it adds behind the down projection or, if not `written`,
        its row of the input matrix, the gate's in gated layers. The router's weight of an expert is left out.
        """
        vectors: dict[int, Tensor] = {}
        for part in self.feed_forwards:
            own = [number for number in neurons if 0 <= number - part.first < part.size]
            if own:
                rows = self._neuron_weights(part, written)[[number - part.first for number in own]]
                vectors |= dict(zip(own, rows, strict=True))
        return torch.stack([vectors[number] for number in neurons])

    def _neuron_weights(self, part: FeedForward, written: bool) -> Tensor:
        """Rows [F, D] of a part's neurons; in modules that put out gate and up, the gate's come first."""
        if part.expert is not None and self.experts is not None:
            with align_module_device(self.experts.all):
                weights = self.experts.all.down_proj if written else self.experts.all.gate_up_proj
                weight = weights[part.expert].detach()
            return weight.T if written else weight
        with weights_of(self.down if written else self.up if self.gate is None else self.gate) as module:
            weight = module.weight.detach()
        return weight.T if self.family.transposed != written else weight

    def projections(self) -> dict[nn.Module, dict[str, tuple[Tensor | slice, tuple[int, ...]]]]:
        """What each module puts out: queries [H, K], keys and values [G, K], outputs [D], each with its columns."""
        shapes = {"queries": (self.n_heads, self.head_dim), **dict.fromkeys(("keys", "values"), (self.n_kv_heads, -1))}
        outputs: dict[nn.Module, dict[str, tuple[Tensor | slice, tuple[int, ...]]]] = {}
        for at, (module, (name, shape)) in enumerate(
            zip((self.query, self.key, self.value), shapes.items(), strict=True)
        ):
            outputs.setdefault(module, {})[name] = (self._rows(at), shape)
        return outputs | {self.output: {"outputs": (slice(None), (-1,))}}

    def _value_rows(self, width: int) -> Tensor | slice:
        """Which outputs of the value module are values, in the order of heads."""
        return self._rows(2)

    def _rows(self, part: int) -> Tensor | slice:
        """Which outputs of its module are queries (0), keys (1) or values (2), in the order of heads."""
        if self.family.qkv == "joined":
            ends = [0, *accumulate(heads * self.head_dim for heads in (self.n_heads, self.n_kv_heads, self.n_kv_heads))]
            return slice(ends[part], ends[part + 1])
        if self.family.qkv == "per_head":
            return (
                torch.arange(3 * self.n_heads * self.head_dim).view(self.n_heads, 3, self.head_dim)[:, part].flatten()
            )
        return slice(None)
