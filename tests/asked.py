"""Asking methods of tiny models: rows in one padded batch, and the forwards that this took."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from closelook.lrp_core import METHODS, Batch, ModelView

#: Of numbers in float64 that were summed in another order.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
EXPLANATIONS = ("contrastive", "log_prob")  # one that is linear in the logits, and one that is not


def in_turn(first: Sequence[Any], second: Sequence[Hashable], each: int = 1) -> list[tuple[Any, Any]]:
    """Pairs of every value of `first` with `each` values of `second`, which take turns; no value is left out.

    A test of these pairs finds every defect of one value. A defect that needs a certain pair may pass.
    """
    each = min(each, len(second))
    pairs = []
    for at in range(max(len(first), -(-len(second) // each))):
        pairs += [(first[at % len(first)], second[(each * at + step) % len(second)]) for step in range(each)]
    return pairs


def explain(name: str, view: ModelView, rows: list[dict], **options) -> list[torch.Tensor]:
    """Relevance of each row [T], computed in one padded batch."""
    relevance = METHODS[name](view, Batch.collate(rows, 0), **options).tokens
    return [relevance[i, : len(row["input_ids"])] for i, row in enumerate(rows)]


def close(result: list[torch.Tensor], expected: list[torch.Tensor], **tolerance) -> None:
    for ours, oracle in zip(result, expected, strict=True):
        assert oracle.abs().max() > 1e-4, "the oracle must say something"
        torch.testing.assert_close(ours, oracle, **(tolerance or CLOSE))


def widths(view: ModelView) -> tuple[list[tuple[int, int]], Callable[[], None]]:
    """Rows and tokens of every forward from now on, and how to stop listening."""
    sizes: list[tuple[int, int]] = []

    def listen(_, args, options):
        tokens = [*args, options.get("input_ids"), options.get("inputs_embeds")]
        sizes.append(tuple(next(each for each in tokens if each is not None).shape[:2]))

    return sizes, view.model.base_model.register_forward_pre_hook(listen, with_kwargs=True).remove
