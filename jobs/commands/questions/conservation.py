"""`closelook explain --layers`: the sums of relevance at every layer, by which users can check conservation."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.commands.questions.answers import Answer
from jobs.commands.terminal import not_finite, say, say_table
from lrp_core.records.types import Relevance
from lrp_core.rules.boundaries import REASONS


def show_layers(answers: Sequence[Answer]) -> None:
    """Print the sums of relevance by layer, for each prediction and method."""
    for answer in answers:
        for name, relevance in answer.relevance.items():
            if relevance.finite.all():
                print_layers(name if len(answers) == 1 else f"{answer.target}, {name}", relevance)
            else:
                say(f"{name}: relevance between its layers is {not_finite(answer.opened.dtype)}")


def print_layers(name: str, relevance: Relevance) -> None:
    """Print one line for each layer, the last layer first, of relevance with `boundaries` for a batch of one sample.

    The relevance that enters a layer from above equals what leaves it below, plus what biases and softmax keep, plus an
    unaccounted rest, which is 0 under rules that conserve. The last column is the largest magnitude of a token's
    relevance below the layer: under unstable rules it grows from layer to layer.
    """
    assert relevance.boundaries is not None
    assert relevance.peaks is not None
    assert relevance.kept is not None
    crossing = relevance.boundaries[0].double().tolist()
    kept = relevance.kept[0].double().tolist()
    peaks = relevance.peaks[0].double().tolist()
    numbers = ["from above", "to below"]
    numbers += [f"kept by {reason}" for reason in REASONS[: relevance.kept.shape[-1]]]
    numbers += ["unaccounted", "largest"]
    rows = [["head", *_signed(float(relevance.explained[0]), crossing[-1])]]
    for layer in reversed(range(len(kept))):
        above, below = crossing[layer + 1], crossing[layer]
        unaccounted = above - below - sum(kept[layer])
        sums = _signed(above, below, *kept[layer], unaccounted)
        rows.append([f"layer {layer}", *sums, f"{peaks[layer]:.4g}"])
    tokens = float(relevance.tokens[0].double().sum())
    rows.append(["embeddings", *_signed(crossing[0], tokens)])
    say_table((name, *numbers), rows, numbers, lines=False)


def _signed(*values: float) -> list[str]:
    """The numbers with sign and four digits; a zero is always +0.0000."""
    return [f"{value + 0.0:+.4f}".replace("-0.0000", "+0.0000") for value in values]
