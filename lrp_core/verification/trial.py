"""A model under verification: its samples, and their relevance alone, in batches and with perturbed layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from lrp_core.methods.record import Method
from lrp_core.records.types import Batch, Relevance
from lrp_core.verification.rounding import Rounded, unit_of
from lrp_core.verification.samples import beginning
from lrp_core.views.view import ModelView

Row = Mapping[str, Any]
Tell = Callable[[str, int, int], None]  # of a unit, how many are done, and how many there are


@dataclass(frozen=True)
class Trial:
    """A view, the methods that apply to it, and samples of several lengths."""

    view: ModelView
    methods: Mapping[str, Method]
    rows: Sequence[Row]
    fresh: Callable[[], ModelView]  # gives a view of the same model in other memory, which nothing has run
    tell: Tell

    @cached_property
    def unit(self) -> float:
        return unit_of(self.view)

    def batch(self, rows: Sequence[Row], side: str = "right") -> Batch:
        return Batch.collate(rows, self.view.pad_id, side)

    @cached_property
    def together(self) -> Batch:
        """All samples in one batch, padded on the right."""
        return self.batch(self.rows)

    @cached_property
    def results(self) -> dict[str, Rounded]:
        """Relevance of all samples together by each method, in the order of the methods."""
        methods = self.told("methods, with and without rounding")
        return {name: self.rounded(partial(self.explained, method, self.together)) for name, method in methods}

    def of_row(self, name: str, row: int) -> Rounded:
        """Relevance of the tokens of one sample by a method, beside the others."""
        return self.results[name].map(lambda relevance: real_tokens(relevance, self.together, row))

    def rounded(self, compute: Callable[[], Any]) -> Rounded:
        """The result of `compute`, and in runs with layers moved."""
        return Rounded.of(self.view, compute, self.unit)

    def told(self, unit: str, backwards: bool = False) -> Iterator[tuple[str, Method]]:
        """Every method by name, in their order or `backwards`; progress is told as they are taken."""
        methods = list(self.methods.items())
        for done, item in enumerate(methods[::-1] if backwards else methods):
            self.tell(unit, done, len(methods))
            yield item
        self.tell(unit, len(methods), len(methods))

    def explained(self, method: Method, batch: Batch, view: ModelView | None = None, **finer: Any) -> Relevance:
        """Relevance of a batch, on the CPU; `finer` is asked for beside that of tokens."""
        return Relevance.on_host([method(view or self.view, batch, **finer)])[0]

    def smallest(self, row: Row, fails: Callable[[Row], bool]) -> Row:
        """The shortest beginning of a row that fails; of a picture, which has none, and of what never does, the row."""
        if self.view.kind.images:
            return row
        shorter = (beginning(self.view, row, length) for length in range(1, len(row["input_ids"])))
        return next((part for part in shorter if fails(part)), row)


def copies_of(view: ModelView) -> Callable[[], ModelView]:
    """A function that gives views of copies of the model as it is now."""
    pristine = copy.deepcopy(view.model)
    return lambda: replace(view, model=copy.deepcopy(pristine))


def real_tokens(relevance: Relevance, batch: Batch, row: int) -> Tensor:
    """Relevance of the tokens of one row without padding; of an encoder-decoder those of the decoder behind."""
    parts = [relevance.tokens[row][batch.attention_mask[row] != 0]]
    if relevance.decoder_tokens is not None and batch.decoder_attention_mask is not None:
        parts.append(relevance.decoder_tokens[row][batch.decoder_attention_mask[row] != 0])
    return torch.cat(parts)


def named(row: Row) -> str:
    """A sample in a message, so that it can be made again."""
    fields = [name for name in ("input_ids", "decoder_input_ids", "position") if name in row]
    if "pixel_values" in row:
        return "a picture of random pixels"
    return ", ".join(f"{name} {row[name]}" for name in fields)
