"""Transformer blocks, with their weights laid out by head, key-value head and neuron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn

from closelook.lrp_core.families import Family
from closelook.lrp_core.families.layout import CrossAttention, Experts
from closelook.lrp_core.parts.layers import LinearLayer, NormView, weights_of

SHARED = "shared"  # stands for the shared expert's number in the names of neurons


@dataclass(frozen=True)
class AttentionView:
    """The modules of one attention layer. The axis L of heads counts these layers."""

    attention: nn.Module  # the module that calls the attention kernel
    query: nn.Module  # the projections; families that fuse them have the same module three times
    key: nn.Module
    value: nn.Module
    output: nn.Module  # the output projection

    @staticmethod
    def parts(block: nn.Module, paths: Family | CrossAttention) -> dict[str, Any]:
        """The modules of a block's attention, found by their `paths`, as arguments of this class."""
        return {part.name: block.get_submodule(getattr(paths, part.name)) for part in fields(AttentionView)}


@dataclass(frozen=True)
class ExpertsView:
    """The modules of a mixture of experts; see `lrp_core.families.layout.Experts`."""

    router: Any
    all: Any
    shared: nn.Module | None
    shared_gate: nn.Module | None

    @classmethod
    def of(cls, block: nn.Module, paths: Experts) -> ExpertsView:
        """The modules of a block with experts, found by their `paths`."""
        shared, shared_gate = _optional(block, paths.shared), _optional(block, paths.shared_gate)
        return cls(block.get_submodule(paths.router), block.get_submodule(paths.all), shared, shared_gate)


def _optional(block: nn.Module, path: str | None) -> Any:
    """The module of a block at `path`; None without a path."""
    return block.get_submodule(path) if path else None


@dataclass(frozen=True)
class FeedForward:
    """A part of a block that has neurons: its MLP, a routed expert, or the shared expert, which all tokens pass."""

    first: int  # the number of its first neuron in the block
    size: int  # its number of neurons
    title: str | None = None  # the name of an expert: its number, or SHARED; None for an MLP
    expert: int | None = None  # the number of a routed expert; None for other parts

    @classmethod
    def of_experts(cls, experts: Any) -> list[FeedForward]:
        """A part for each of the E routed experts; `experts` is the module with their `down_proj` [E, D, F]."""
        number, _, size = experts.down_proj.shape
        return [cls(at * size, size, str(at), at) for at in range(number)]


@dataclass(frozen=True)
class BlockView(AttentionView):
    """One transformer block: its modules and sizes."""

    module: nn.Module
    # normalises the input of attention, its output, or the sum of residual and attention, by the family's norm order
    attention_norm: NormView | None
    mlp_norm: NormView  # the same for the MLP or experts
    added_norms: tuple[NormView, ...]  # norms of the outputs of attention and MLP, in addition to those of their inputs
    head_norms: tuple[NormView, ...]  # norms of queries and keys, over each head's width or over all heads
    # activation, gate, up and down make the MLP, or the shared expert; they are None if there are routed experts only
    activation: Any
    gate: nn.Module | None  # None also if the MLP has no gate; the same module as `up` if one module has both
    up: Any
    down: Any
    experts: ExpertsView | None
    adds: nn.Module  # the module whose output is added to the residual stream after attention
    family: Family
    n_heads: int
    n_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, module: nn.Module, family: Family, n_heads: int, n_kv_heads: int, head_dim: int) -> BlockView:
        """The view of `module`, a block of a model (or of one of its stacks) that `family` describes."""
        known = family.experts
        if known is not None and known.all not in dict(module.named_modules()):
            known = None  # some blocks of the model have an MLP in place of experts
        of_mlp: list[str | None] = [family.activation, family.gate, family.up, family.down]
        experts, adds = None, family.down
        if known is not None:
            experts, adds = ExpertsView.of(module, known), known.mlp
            shared = known.shared
            of_mlp = [path.replace(known.mlp, shared, 1) if path and shared else None for path in of_mlp]
        of_heads = (path for path in (family.query_norm, family.key_norm) if path)
        activation, gate, up, down = (_optional(module, path) for path in of_mlp)
        added_norms = [NormView.of(module, path, family) for path in family.added_norms]
        head_norms = [NormView.of(module, path, family) for path in of_heads]
        return cls(
            **cls.parts(module, family),
            module=module,
            attention_norm=NormView.optional(module, family.attention_norm, family),
            mlp_norm=NormView.of(module, family.mlp_norm, family),
            added_norms=tuple(added_norms),
            head_norms=tuple(head_norms),
            activation=activation,
            gate=gate,
            up=up,
            down=down,
            experts=experts,
            adds=module.get_submodule(adds),
            family=family,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
        )

    @property
    def norms(self) -> tuple[NormView, ...]:
        """All norms of the block; one that attention and MLP share comes once."""
        every = (self.attention_norm, self.mlp_norm, *self.added_norms, *self.head_norms)
        return tuple({norm.module: norm for norm in every if norm is not None}.values())

    @cached_property
    def feed_forwards(self) -> tuple[FeedForward, ...]:
        """The parts that have neurons, in the order of their numbers: routed experts, then the MLP or shared expert.

        Neurons are the inputs of a down projection.
        """
        layers = [] if self.experts is None else FeedForward.of_experts(self.experts.all)
        if self.down is not None:  # the shape is known even if the weights are offloaded
            size = self.down.weight.shape[0 if self.family.transposed else 1]
            layers.append(FeedForward(sum(part.size for part in layers), size, SHARED if layers else None))
        return tuple(layers)

    @property
    def n_neurons(self) -> int:
        """The number of neurons of the block, those of all its experts together."""
        return sum(part.size for part in self.feed_forwards)

    def part_of(self, neuron: int) -> FeedForward:
        """The part that has the neuron with this number in the block."""
        return next(part for part in self.feed_forwards if neuron < part.first + part.size)

    @property
    def mlp_width(self) -> int:
        """The number of feed-forward activations of one token; with experts, of those that it is sent to."""
        for_all = sum(part.size for part in self.feed_forwards if part.expert is None)
        if self.experts is None:
            return for_all
        return for_all + self.experts.router.top_k * self.experts.all.down_proj.shape[-1]

    @property
    def sum_norms(self) -> tuple[NormView, NormView]:
        """The two norms of a post-norm block: of the sum of residual and attention, and of residual and MLP."""
        assert self.attention_norm is not None
        return self.attention_norm, self.mlp_norm

    def value_weights(self) -> tuple[Tensor, Tensor | None]:
        """The value projection: weight [G, K, D] and bias [G, K] (or None)."""
        weight, bias = self._projection(self.value)  # [out, D]
        rows, shape = self._outputs_of(2), (self.n_kv_heads, self.head_dim)
        return weight[rows].unflatten(0, shape), None if bias is None else bias[rows].unflatten(0, shape)

    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """The output projection by head: weight [H, K, D] and bias [D] (or None)."""
        weight, bias = self._projection(self.output)  # [D, H * K]
        return weight.T.unflatten(0, (self.n_heads, self.head_dim)), bias

    def _projection(self, module: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Weight [out, in] and bias [out] of a linear layer of attention."""
        return LinearLayer(module, "", self.family.transposed).parameters()

    def neuron_vectors(self, neurons: Sequence[int], written: bool) -> Tensor:
        """The vectors of N neurons, given by number: [N, D], without a router's weight.

        With `written` a vector is what one unit of activation adds to the output of the down projection. Otherwise it
        is the neuron's row of the input projection, in gated layers of the gate.
        """
        vectors: dict[int, Tensor] = {}
        for part in self.feed_forwards:
            of_part = [number for number in neurons if 0 <= number - part.first < part.size]
            if of_part:
                weights = self._neuron_weights(part, written)
                vectors |= {number: weights[number - part.first] for number in of_part}
        return torch.stack([vectors[number] for number in neurons])

    def _neuron_weights(self, part: FeedForward, written: bool) -> Tensor:
        """The vectors [F, D] of all neurons of a part, as in `neuron_vectors`."""
        if part.expert is not None and self.experts is not None:
            with align_module_device(self.experts.all):
                weights = self.experts.all.down_proj if written else self.experts.all.gate_up_proj
                weight = weights[part.expert].detach()
            return weight.T if written else weight
        with weights_of(self.down if written else self.up if self.gate is None else self.gate) as module:
            weight = module.weight.detach()
        return weight.T if self.family.transposed != written else weight

    def projections(self) -> dict[nn.Module, dict[str, tuple[Tensor | slice, tuple[int, ...]]]]:
        """By module of attention and field of `Relevance`: the columns of the module's output, and the field's shape.

        Fields are queries [H, K], keys and values [G, K], and outputs [D].
        """
        by_group = self.n_kv_heads, -1
        outputs: dict[nn.Module, dict[str, tuple[Tensor | slice, tuple[int, ...]]]] = {}
        outputs.setdefault(self.query, {})["queries"] = self._outputs_of(0), (self.n_heads, self.head_dim)
        outputs.setdefault(self.key, {})["keys"] = self._outputs_of(1), by_group
        outputs.setdefault(self.value, {})["values"] = self._outputs_of(2), by_group
        outputs[self.output] = {"outputs": (slice(None), (-1,))}
        return outputs

    def _outputs_of(self, part: int) -> Tensor | slice:
        """The output features of a projection that are queries (`part` 0), keys (1) or values (2), head by head."""
        if self.family.qkv == "joined":
            sizes = (self.n_heads * self.head_dim, *[self.n_kv_heads * self.head_dim] * 2)
            return slice(sum(sizes[:part]), sum(sizes[: part + 1]))
        if self.family.qkv == "per_head":
            columns = torch.arange(3 * self.n_heads * self.head_dim).view(self.n_heads, 3, self.head_dim)
            return columns[:, part].flatten()
        return slice(None)
