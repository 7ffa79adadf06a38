"""Transformer blocks, with their weights laid out by head, key-value head and neuron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn

from lrp_core.families import Family
from lrp_core.families.layout import CrossAttention, Experts
from lrp_core.parts.linear import LinearLayer
from lrp_core.parts.norms import NormView
from lrp_core.parts.weights import weights_of


@dataclass(frozen=True)
class AttentionView:
    """One attention layer: an index of the axis L of heads."""

    attention: nn.Module  # the module that calls the attention kernel
    query: nn.Module
    key: nn.Module
    value: nn.Module  # the same fused module as query and key in some families
    output: nn.Module

    @staticmethod
    def parts(block: nn.Module, paths: Family | CrossAttention) -> dict[str, Any]:
        """The modules of a block whose attention has these paths, by field."""
        every = {"attention": paths.attention, "query": paths.query, "key": paths.key, "value": paths.value}
        every["output"] = paths.output
        return {name: block.get_submodule(path) for name, path in every.items()}


@dataclass(frozen=True)
class ExpertsView:
    """A mixture of experts; see `lrp_core.families.base.Experts`."""

    router: Any
    all: Any
    shared: nn.Module | None
    shared_gate: nn.Module | None

    @classmethod
    def of(cls, block: nn.Module, paths: Experts) -> ExpertsView:
        """The experts of a block that has some."""
        shared, shared_gate = _optional(block, paths.shared), _optional(block, paths.shared_gate)
        return cls(block.get_submodule(paths.router), block.get_submodule(paths.all), shared, shared_gate)


def _optional(block: nn.Module, path: str | None) -> Any:
    return block.get_submodule(path) if path else None


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
class BlockView(AttentionView):
    """One transformer block."""

    module: nn.Module
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

    @classmethod
    def of(cls, module: nn.Module, family: Family, n_heads: int, n_kv_heads: int, head_dim: int) -> BlockView:
        """The block that is `module`, of a model, or one stack of it, that is laid out as `family` says."""
        known = family.experts
        if known is not None and known.all not in dict(module.named_modules()):
            known = None  # a block with an MLP
        of_mlp: list[str | None] = [family.activation, family.gate, family.up, family.down]
        if known is not None:
            shared = known.shared
            of_mlp = [path.replace(known.mlp, shared, 1) if path and shared else None for path in of_mlp]
        of_heads = (path for path in (family.query_norm, family.key_norm) if path)
        activation, gate, up, down = (_optional(module, path) for path in of_mlp)
        return cls(
            **cls.parts(module, family),
            module=module,
            attention_norm=NormView.optional(module, family.attention_norm, family),
            mlp_norm=NormView.of(module, family.mlp_norm, family),
            added_norms=tuple(NormView.of(module, path, family) for path in family.added_norms),
            head_norms=tuple(NormView.of(module, path, family) for path in of_heads),
            activation=activation,
            gate=gate,
            up=up,
            down=down,
            experts=None if known is None else ExpertsView.of(module, known),
            adds=module.get_submodule(family.down if known is None else known.mlp),
            family=family,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
        )

    @property
    def norms(self) -> tuple[NormView, ...]:
        """Every norm once, also where attention and MLP share theirs."""
        every = (self.attention_norm, self.mlp_norm, *self.added_norms, *self.head_norms)
        return tuple({norm.module: norm for norm in every if norm is not None}.values())

    @cached_property
    def feed_forwards(self) -> tuple[FeedForward, ...]:
        """The parts that have its neurons, in the order of their numbers: each expert, then its MLP or shared expert.

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
        """The part that has the neuron of this number."""
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
        weight, bias = self._projection(self.value)  # [out, D]
        rows, shape = self._rows(2), (self.n_kv_heads, self.head_dim)
        return weight[rows].unflatten(0, shape), None if bias is None else bias[rows].unflatten(0, shape)

    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Output projection by head: weight [H, K, D] and bias [D] (None where there is none)."""
        weight, bias = self._projection(self.output)  # [D, H * K]
        return weight.T.unflatten(0, (self.n_heads, self.head_dim)), bias

    def _projection(self, module: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Weight [out, in] and bias [out] of a linear layer of attention."""
        return LinearLayer(module, "", self.family.transposed).parameters()

    def neuron_vectors(self, neurons: Sequence[int], written: bool) -> Tensor:
        """Of each of these neurons [N, D]: what one unit of it adds behind the down projection or, if not `written`,
        its row of the input matrix, the gate's in gated layers. The router's weight of an expert is left out.
        """
        vectors: dict[int, Tensor] = {}
        for part in self.feed_forwards:
            of_part = [number for number in neurons if 0 <= number - part.first < part.size]
            if of_part:
                weights = self._neuron_weights(part, written)
                vectors |= {number: weights[number - part.first] for number in of_part}
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
        """The outputs of each module: queries [H, K], keys and values [G, K], outputs [D], each with its columns."""
        by_group = self.n_kv_heads, -1
        outputs: dict[nn.Module, dict[str, tuple[Tensor | slice, tuple[int, ...]]]] = {}
        outputs.setdefault(self.query, {})["queries"] = self._rows(0), (self.n_heads, self.head_dim)
        outputs.setdefault(self.key, {})["keys"] = self._rows(1), by_group
        outputs.setdefault(self.value, {})["values"] = self._rows(2), by_group
        outputs[self.output] = {"outputs": (slice(None), (-1,))}
        return outputs

    def _rows(self, part: int) -> Tensor | slice:
        """The outputs of its module that are queries (0), keys (1) or values (2), in the order of heads."""
        if self.family.qkv == "joined":
            sizes = (self.n_heads * self.head_dim, *[self.n_kv_heads * self.head_dim] * 2)
            return slice(sum(sizes[:part]), sum(sizes[: part + 1]))
        if self.family.qkv == "per_head":
            columns = torch.arange(3 * self.n_heads * self.head_dim).view(self.n_heads, 3, self.head_dim)
            return columns[:, part].flatten()
        return slice(None)
