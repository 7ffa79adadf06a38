"""What becomes of relevance from layer to layer, as a check that users can run: `closelook explain --layers`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from lrp_core.rules import KEPT
from lrp_core.types import Relevance


def print_layers(console: Console, name: str, relevance: Relevance) -> None:
    """A line a layer, the last one first, of a batch of one that was asked for `boundaries`.

    What enters a layer from above leaves it below, but for what biases and softmax keep, and what is left unaccounted
    for: nothing under rules that conserve, what nonlinearities add under the plain gradient. The last column is the
    largest relevance of a token below, by magnitude, which grows from layer to layer under unstable rules.
    """
    assert relevance.boundaries is not None
    assert relevance.peaks is not None
    assert relevance.kept is not None
    crossing, kept = relevance.boundaries[0].double().tolist(), relevance.kept[0].double().tolist()
    peaks = relevance.peaks[0].double().tolist()
    table = Table(box=None, pad_edge=False)
    reasons = [f"kept by {reason}" for reason in KEPT[: relevance.kept.shape[-1]]]
    told = ("from above", "to below", *reasons, "unaccounted", "largest")
    for heading in (name, *told):
        table.add_column(heading, justify="left" if heading == name else "right")
    table.add_row("head", *_signed(float(relevance.explained[0]), crossing[-1]))
    for layer in reversed(range(len(kept))):
        above, below = crossing[layer + 1], crossing[layer]
        numbers = _signed(above, below, *kept[layer], above - below - sum(kept[layer]))
        table.add_row(f"layer {layer}", *numbers, f"{peaks[layer]:.4g}")
    table.add_row("embeddings", *_signed(crossing[0], float(relevance.tokens[0].double().sum())))
    console.print(table)


def _signed(*values: float) -> list[str]:
    return [f"{value + 0.0:+.4f}".replace("-0.0000", "+0.0000") for value in values]
