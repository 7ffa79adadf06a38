"""The explorer of neurons: the lines of its list, and each neuron in full, in leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from evaluation.report.explorers.leaves import LEAF_BYTES, Entry, Leaves, escaped_json

#: The fields of a line of the list. `ranked` has [place, mean relevance, samples] for each place of the choices, which
#: is a task under a method; `words` are the first words of the neuron's logit lens.
FIELDS = ("model", "layer", "neuron", "name", "ranked", "words")
WORDS = 3  # of the logit lens in a line
#: The page's heading of the effect of ablating a neuron, by the config's name of the value of ablated neurons.
WITHOUT = {"zero": "Ablation: without it", "mean": "Ablation: with its mean over the corpus"}


@dataclass(frozen=True)
class NeuronExplorer:
    """Neurons of models, in the order of the entries."""

    index: Leaves  # lines of FIELDS
    entries: Leaves  # of `entry`, numbered as the lines
    choices: Mapping[str, Any]  # the values of the filters, and a heading

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        places: Sequence[str] = (),
        value: str = "zero",
        budget_bytes: float = LEAF_BYTES,
    ) -> NeuronExplorer:
        """The explorer of `entries`, facts of :func:`entry`, which are iterated once.

        `places` are the tasks and methods that `ranked` counts by index; `value`, a key of WITHOUT, is the config's
        name of the value of ablated neurons.
        """
        lines, texts = [], []
        models: dict[str, set[int]] = {}
        for neuron in entries:
            promoted = neuron["writes"]["promoted"][:WORDS] if neuron["writes"] else []
            words = [word for word, _ in promoted]
            lines.append([*(neuron[field] for field in FIELDS[:-1]), words])
            texts.append(escaped_json(neuron))
            models.setdefault(neuron["model"], set()).add(neuron["layer"])
        choices = {
            "without": WITHOUT[value],
            "places": list(places),
            "models": {name: sorted(layers) for name, layers in models.items()},
        }
        index = Leaves.of("neurons-list", lines, budget_bytes)
        return cls(index, Leaves.of_json("neurons", texts, budget_bytes), choices)

    @property
    def leaves(self) -> tuple[Leaves, ...]:
        """The leaves of the page of neurons; none without neurons."""
        return (self.index, self.entries) if self.count else ()

    @property
    def count(self) -> int:
        """The number of neurons."""
        return self.index.starts[-1]

    @property
    def choices_element(self) -> Markup:
        """The script element of the page of neurons that holds the choices as JSON."""
        facts = Markup(escaped_json({"fields": FIELDS, **self.choices}))
        return Markup('<script type="application/json" id="neuron-choices">{}</script>').format(facts)


def entry(model: str, layer: int, neuron: int, ranked: Sequence[tuple[int, float, int]], **known: Any) -> Entry:
    """The facts of a neuron on the page, as JSON.

    `ranked` are (place, mean relevance, samples); a place is the index of a task under a method in the explorer's
    `places`. `known` are further facts, each of which may be absent:

    * `name`: if it is not `layer.neuron`
    * `writes`: the logit lens: lists `promoted` and `suppressed` of (word, logit), their `entropy`, and `key`, the
      tokens nearest to the neuron's key
    * `contexts`: max-activating examples of :func:`shown`, each with its `activation`, from the largest on;
      `corpus`: the name of their corpus; `explained`: the label of the method that explains the activation in them
    * `histogram`: counts of activations at tokens of the corpus between `edges`, and their `mean`
    * `samples`: of :func:`shown`, each with `id`, `task`, `method`, `relevance` and `activation`
    * `removed`: (place, mean drop of the explained number, samples) after ablation of this neuron, over the samples in
      which it ranks first
    """
    unknown: dict[str, Any] = {"writes": None, "contexts": [], "corpus": "", "explained": "", "histogram": None}
    unknown |= {"samples": [], "removed": [], "name": f"{layer}.{neuron}"}
    rounded = [[task_method, short(mean), samples] for task_method, mean, samples in ranked]
    return {"model": model, "layer": layer, "neuron": neuron, "ranked": rounded, **unknown, **known}


def shown(
    tokens: Sequence[str], position: int, values: Sequence[float] | None = None, around: int | None = None, **facts: Any
) -> Entry:
    """A text with the position at which a neuron is active, as JSON, with further `facts`.

    `values` are the relevance of the tokens for the activation. `around` is the number of tokens that are shown on
    either side of the position; by default all are shown.

    >>> shown(["The", " keys", " to", " the"], 2, around=1)
    {'tokens': ['…', ' keys', ' to', ' the'], 'position': 2}
    """
    start = 0 if around is None else max(0, position - around)
    end = len(tokens) if around is None else min(len(tokens), position + around + 1)
    before = ["…"] if start else []
    after = ["…"] if end < len(tokens) else []
    text: dict[str, Any] = {"tokens": [*before, *tokens[start:end], *after]}
    if values is not None:
        text["values"] = [0.0] * len(before) + [short(value) for value in values[start:end]]
    return text | {"position": position - start + len(before)} | facts


def short(value: float) -> float:
    """A number rounded to four significant digits.

    >>> short(0.123456)
    0.1235
    """
    return float(f"{value:.4g}")
