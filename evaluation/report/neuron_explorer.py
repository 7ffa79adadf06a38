"""The explorer of neurons: what its list needs of each neuron, and each in full, in leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from evaluation.report.leaves import LEAF_BYTES, Leaves, escaped_json

#: What a line of the list says of a neuron, in this order. `ranked` has [place, mean relevance, samples] for each place
#: of the choices, a task under a method; `words` are what it writes first.
FIELDS = ("model", "layer", "neuron", "name", "ranked", "words")
WORDS = 3  # of a line
#: What the page calls what happens without a neuron, by what it has instead.
WITHOUT = {"zero": "Without it", "mean": "With its mean over the corpus in its place"}


@dataclass(frozen=True)
class NeuronExplorer:
    """Neurons of models, in the order that they come in."""

    index: Leaves  # lines of FIELDS
    entries: Leaves  # in full, numbered as the lines
    choices: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        entries: Iterable[Mapping[str, Any]],
        places: Sequence[str] = (),
        value: str = "zero",
        budget_bytes: float = LEAF_BYTES,
    ) -> NeuronExplorer:
        """`entries` are of :func:`entry`, gone through once; `places` are what their `ranked` count, `value`
        of WITHOUT is what neurons that are removed have instead.
        """
        lines, texts = [], []
        models: dict[str, set[int]] = {}
        for one in entries:
            written = one["writes"]["promoted"][:WORDS] if one["writes"] else []
            words = [word for word, _ in written]
            lines.append([one["model"], one["layer"], one["neuron"], one["name"], one["ranked"], words])
            texts.append(escaped_json(one))
            models.setdefault(one["model"], set()).add(one["layer"])
        choices = {
            "without": WITHOUT[value],
            "places": list(places),
            "models": {name: sorted(layers) for name, layers in models.items()},
        }
        index = Leaves.of("neurons-list", lines, budget_bytes)
        return cls(index, Leaves.of_json("neurons", texts, budget_bytes), choices)

    @property
    def leaves(self) -> tuple[Leaves, ...]:
        return (self.index, self.entries) if self.count else ()

    @property
    def count(self) -> int:
        return self.index.starts[-1]

    @property
    def choices_element(self) -> Markup:
        """The element of the page of neurons that holds the choices, beside its leaves."""
        facts = Markup(escaped_json({"fields": FIELDS, **self.choices}))
        return Markup('<script type="application/json" id="neuron-choices">{}</script>').format(facts)


def entry(
    model: str, layer: int, neuron: int, ranked: Sequence[tuple[int, float, int]], **known: Any
) -> dict[str, Any]:
    """The facts of a neuron on the page. `known` are those of these that there are:

    * `name`: where it is another than `layer.neuron`
    * `writes`: `promoted` and `suppressed`, each (word, logit), and `entropy`; `key`: the tokens nearest to it
    * `contexts`: of :func:`shown`, each with `activation`, the first the largest; `corpus`: its name;
      `explained`: the label of the method whose relevance for the activation they have
    * `histogram`: `edges` and one `count` fewer or more, of activations at tokens of the corpus, and their `mean`
    * `samples`: of :func:`shown`, each with `id`, `task`, `method`, `relevance` and `activation`
    * `removed`: (place, mean drop of the explained number, samples) without this neuron, of those that it is first in
    """
    unknown: dict[str, Any] = {"writes": None, "contexts": [], "corpus": "", "explained": "", "histogram": None}
    unknown |= {"samples": [], "removed": [], "name": f"{layer}.{neuron}"}
    rounded = [[place, short(mean), samples] for place, mean, samples in ranked]
    return {"model": model, "layer": layer, "neuron": neuron, "ranked": rounded, **unknown, **known}


def shown(
    tokens: Sequence[str], position: int, values: Sequence[float] | None = None, around: int | None = None, **facts: Any
) -> dict[str, Any]:
    """A text with the position where a neuron is active, and the relevance of its tokens for that, where it is known.

    `around` is how many tokens on either side are shown; default all.
    """
    start = 0 if around is None else max(0, position - around)
    end = len(tokens) if around is None else min(len(tokens), position + around + 1)
    cut = ["…"] if start else []
    said = {"tokens": [*cut, *tokens[start:end], *(["…"] if end < len(tokens) else [])]}
    of_tokens = {} if values is None else {"values": [0.0] * len(cut) + [short(v) for v in values[start:end]]}
    return said | of_tokens | {"position": position - start + len(cut)} | facts


def short(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")
