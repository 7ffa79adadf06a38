"""Transformer blocks, with their weights laid out by head, key-value head and neuron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn

from lrp_core.families import Family
from lrp_core.families.base import Experts
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


@dataclass(frozen=True)
class ExpertsView:
    """A mixture of experts; see `lrp_core.families.base.Experts`."""

    router: Any
    all: Any
    shared: nn.Module | None
    shared_gate: nn.Module | None

    @classmethod
    def of(cls, block: nn.Module, paths: Experts) -> ExpertsView:
        return cls(
            router=block.get_submodule(paths.router),
            all=block.get_submodule(paths.all),
            shared=block.get_submodule(paths.shared) if paths.shared else None,
            shared_gate=block.get_submodule(paths.shared_gate) if paths.shared_gate else None,
        )


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

    @classmethod
    def of(cls, module: nn.Module, family: Family, n_heads: int, n_kv_heads: int, head_dim: int) -> BlockView:
        """The block that is `module`, of a model, or one stack of it, that is laid out as `family` says."""
        known = family.experts
        if known is not None and known.all not in dict(module.named_modules()):
            known = None  # a block with an MLP

        def of_mlp(path: str | None) -> Any:
            if path is None or known is None:
                return None if path is None else module.get_submodule(path)
            return None if known.shared is None else module.get_submodule(path.replace(known.mlp, known.shared, 1))

        return cls(
            module=module,
            attention=module.get_submodule(family.attention),
            query=module.get_submodule(family.query),
            key=module.get_submodule(family.key),
            value=module.get_submodule(family.value),
            output=module.get_submodule(family.output),
            attention_norm=NormView.optional(module, family.attention_norm, family),
            mlp_norm=NormView.of(module, family.mlp_norm, family),
            added_norms=tuple(NormView.of(module, path, family) for path in family.added_norms),
            head_norms=tuple(
                NormView.of(module, path, family) for path in (family.query_norm, family.key_norm) if path
            ),
            activation=of_mlp(family.activation),
            gate=of_mlp(family.gate),
            up=of_mlp(family.up),
            down=of_mlp(family.down),
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
        rows = self._rows(2)
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
