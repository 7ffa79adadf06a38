"""Names of neurons: LAYER.NEURON, and in a layer with experts LAYER.EXPERT.NEURON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from closelook.lrp_core.parts.block import SHARED, FeedForward
from closelook.lrp_core.records.types import UserError


@dataclass(frozen=True)
class NeuronNames:
    """Translates between names of neurons and (layer, number); numbers run through all experts of a layer."""

    layers: tuple[tuple[FeedForward, ...], ...]  # the parts of each layer that have neurons

    def count(self, layer: int) -> int:
        """The number of neurons of a layer."""
        return sum(part.size for part in self.layers[layer])

    def check(self, layer: int, neuron: int) -> None:
        """Raise UserError, which tells the range, if the layer or the neuron does not exist."""
        _within(layer, len(self.layers), "layer", "the model's layers")
        size = self.count(layer)
        if not 0 <= neuron < size:
            alike = len({self.count(layer_number) for layer_number in range(len(self.layers))}) == 1
            _within(neuron, size, "neuron", "the model's neurons" if alike else f"the neurons of layer {layer}")

    def of(self, layer: int, neuron: int) -> str:
        """The name of the neuron with this number in a layer. Raises UserError as `check`."""
        self.check(layer, neuron)
        part = next(part for part in self.layers[layer] if neuron < part.first + part.size)
        return ".".join([str(layer), *([part.title] if part.title else []), str(neuron - part.first)])

    @staticmethod
    def is_name(text: str) -> bool:
        """True if `text` has the form LAYER.NEURON or LAYER.EXPERT.NEURON; the neuron need not exist."""
        first, *expert, last = text.split(".") if "." in text else ("", "")
        known = len(expert) < 2 and all(name.isdecimal() or name == SHARED for name in expert)
        return first.isdecimal() and last.isdecimal() and known

    def neuron(self, name: str) -> tuple[int, int]:
        """(layer, number) of the neuron with a name for which `is_name` is true.

        Raises UserError as `check`, for an unknown expert, for a name without the expert in a layer with experts, and
        for a name with an expert in a layer without.
        """
        first, *expert, last = name.split(".")
        layer, neuron = int(first), int(last)
        _within(layer, len(self.layers), "layer", "the model's layers")
        parts = self.layers[layer]
        if parts[0].title is None:
            if expert:
                raise UserError(f"layer {layer} has no experts: its neurons are called {layer}.NEURON, not {name}")
            self.check(layer, neuron)
            return layer, neuron
        titles = [part.title for part in parts if part.title is not None]
        if not expert:
            raise UserError(f"neurons of layer {layer} are called {layer}.EXPERT.NEURON, not {name}: {_range(parts)}")
        if expert[0] not in titles:
            raise UserError(f"there is no expert {expert[0]} in layer {layer}: {_range(parts)}")
        part = parts[titles.index(expert[0])]
        _within(neuron, part.size, "neuron", f"the neurons of expert {part.title} in layer {layer}")
        return layer, part.first + neuron


def _within(number: int, size: int, title: str, whose: str) -> None:
    """Raise UserError unless `number` is in 0 to `size` - 1; `title` and `whose` are for the message."""
    if not 0 <= number < size:
        raise UserError(f"there is no {title} {number}: {whose} are 0 to {size - 1}")


def _range(parts: Sequence[FeedForward]) -> str:
    """The experts of a layer in words, such as "its experts are 0 to 7 and shared"."""
    sent = [part.title for part in parts if part.expert is not None]
    shared = [f" and {part.title}" for part in parts if part.expert is None]
    return f"its experts are {sent[0]} to {sent[-1]}{''.join(shared)}"
