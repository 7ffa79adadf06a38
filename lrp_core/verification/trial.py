"""A model under verification, with samples and methods."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.types import Batch, Relevance
from closelook.lrp_core.verification.rounding import Rounded, unit_of
from closelook.lrp_core.verification.samples import beginning
from closelook.lrp_core.views.view import ModelView

Row = Mapping[str, Any]
Tell = Callable[[str, int, int], None]  # called with a title, the number of steps that are done, and the number of all


@dataclass(frozen=True)
class Trial:
    """A view, the methods that apply to it, and samples of several lengths, to be verified."""

    view: ModelView
    methods: Mapping[str, Method]
    rows: Sequence[Row]  # the samples
    fresh: Callable[[], ModelView]  # returns a view of a copy of the model that has not run yet
    tell: Tell

    @cached_property
    def unit(self) -> float:
        """The relative unit of rounding of the model."""
        return unit_of(self.view)

    def batch(self, rows: Sequence[Row], side: str = "right") -> Batch:
        """The rows as a batch, padded on `side`."""
        return Batch.collate(rows, self.view.pad_id, side)

    @cached_property
    def together(self) -> Batch:
        """All samples in one batch, padded on the right."""
        return self.batch(self.rows)

    @cached_property
    def results(self) -> dict[str, Rounded]:
        """Relevance of the batch of all samples by each method, in the order of the methods."""
        methods = self.with_progress("methods, with and without rounding")
        return {name: self.rounded(partial(self.explained, method, self.together)) for name, method in methods}

    def of_row(self, name: str, row: int) -> Rounded:
        """Relevance of the tokens of sample number `row` by the method `name`, computed in the batch of all samples."""
        return self.results[name].map(lambda relevance: real_tokens(relevance, self.together, row))

    def rounded(self, compute: Callable[[], Any]) -> Rounded:
        """The result of `compute`, and its results with perturbed linear layers."""
        return Rounded.of(self.view, compute, self.unit)

    def with_progress(self, unit: str, backwards: bool = False) -> Iterator[tuple[str, Method]]:
        """Yield (name, method) in order, or `backwards`, and report progress under the title `unit`."""
        methods = list(self.methods.items())
        for done, item in enumerate(methods[::-1] if backwards else methods):
            self.tell(unit, done, len(methods))
            yield item
        self.tell(unit, len(methods), len(methods))

    def explained(self, method: Method, batch: Batch, view: ModelView | None = None, **finer: Any) -> Relevance:
        """Relevance of a batch by a method, on the CPU; `finer` asks for kinds besides that of tokens."""
        return Relevance.on_host([method(view or self.view, batch, **finer)])[0]

    def smallest(self, row: Row, fails: Callable[[Row], bool]) -> Row:
        """The shortest beginning of a row for which `fails` is true; the row itself if none is, and for pictures."""
        if self.view.kind.images:
            return row
        shorter = (beginning(self.view, row, length) for length in range(1, len(row["input_ids"])))
        return next((part for part in shorter if fails(part)), row)


def copies_of(view: ModelView) -> Callable[[], ModelView]:
    """A function that returns a view of a new copy of the model as it is now."""
    pristine = copy.deepcopy(view.model)
    return lambda: replace(view, model=copy.deepcopy(pristine))


def real_tokens(relevance: Relevance, batch: Batch, row: int) -> Tensor:
    """Relevance of the tokens of one row without padding, followed by that of the decoder's tokens, if any."""
    parts = [relevance.tokens[row][batch.attention_mask[row] != 0]]
    if relevance.decoder_tokens is not None and batch.decoder_attention_mask is not None:
        parts.append(relevance.decoder_tokens[row][batch.decoder_attention_mask[row] != 0])
    return torch.cat(parts)


def named(row: Row) -> str:
    """A sample in words for a message, complete enough to run it again."""
    fields = [name for name in ("input_ids", "decoder_input_ids", "position") if name in row]
    if "pixel_values" in row:
        return "a picture of random pixels"
    return ", ".join(f"{name} {row[name]}" for name in fields)
