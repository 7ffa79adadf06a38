"""Contexts whose ranks rounding may have decided: activations computed again, from forwards of one context each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evaluation.benchmark.contexts import template_of
from evaluation.schema import CONTEXTS_TIES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lrp_core import ModelView


@dataclass(frozen=True)
class TiesTask:
    """Contexts with the neurons whose activations are asked."""

    title: str
    path: str
    asked: Sequence[tuple[int, int, int]]  # layer, neuron, context
    ids: Mapping[int, Sequence[int]]  # the tokens of each context

    @classmethod
    def of(cls, title: str, path: str, near: pa.Table, texts: pa.Table) -> TiesTask:
        """Of `near` ties (layer, neuron, context); `texts` has the contexts by `key`."""
        asked = list(zip(*(near[name].to_pylist() for name in ("layer", "neuron", "context")), strict=True))
        named = {context for *_, context in asked}
        ids = zip(texts["key"].to_pylist(), texts["input_ids"].to_pylist(), strict=True)
        return cls(title, path, asked, {context: own for context, own in ids if context in named})


def computed_alone(view: ModelView, tokenizer: PreTrainedTokenizerBase, task: TiesTask) -> pa.Table:
    """The table of schema CONTEXTS_TIES."""
    from lrp_core.activity import Activity

    by_context: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for layer, neuron, context in task.asked:
        by_context[context][layer].append(neuron)
    apart, rows = template_of(tokenizer), list[dict[str, Any]]()
    for context, by_layer in by_context.items():
        activity = Activity(view, 1, apart)
        activity.add([task.ids[context]], [0])
        for layer, neurons in by_layer.items():
            own = activity.layer(layer)
            numbers = (own.values[neurons, 0].tolist(), own.positions[neurons, 0].tolist())
            for neuron, activation, position in zip(neurons, *numbers, strict=True):
                facts = {"layer": layer, "neuron": neuron, "context": context}
                rows.append(facts | {"activation": activation, "position": position})
    return pa.Table.from_pylist(rows, schema=CONTEXTS_TIES)
