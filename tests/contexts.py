"""The max-activating examples of a neuron."""

from collections.abc import Sequence

from closelook.lrp_core import ModelView
from closelook.lrp_core.neurons.activity import Activity
from closelook.lrp_core.neurons.contexts import Context


def best_contexts(
    view: ModelView, texts: Sequence[Sequence[int]], layer: int, neuron: int, count: int
) -> list[tuple[float, Context]]:
    """(activation, context) of the texts in which the neuron is most active, the largest first."""
    activity = Activity(view, count)
    activity.add(texts, range(len(texts)))
    of_layer = activity.layer(layer)
    best = []
    for value, number, at in zip(
        of_layer.values[neuron].tolist(),
        of_layer.contexts[neuron].tolist(),
        of_layer.positions[neuron].tolist(),
        strict=True,
    ):
        if number < len(texts):
            best.append((value, Context(texts[number], at, layer, neuron)))
    return best
