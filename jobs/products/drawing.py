"""Faithfulness curves of samples from the relevance of several methods. No Ray here.

All methods are drawn together, so that what their orders have in common runs once. A sample that one method has no
relevance for is a reject of that method's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import CURVES
from evaluation.scoring.faithfulness.flipping import Flipper
from evaluation.scoring.faithfulness.flips import AREAS, CONTRAST, TARGET_LOGIT, Flips
from evaluation.scoring.faithfulness.perturbing import Curves, PerturbedSample, compute_curves
from jobs.plan.units import NO_RELEVANCE, NOTHING_TO_FLIP
from jobs.products.record import Made, Reject, Row
from lrp_core.readers.predictions import with_predictions
from lrp_core.records.explained import CONTRASTIVE, NONE
from lrp_core.records.types import UserError
from lrp_core.views.guard import ROUNDING
from lrp_core.views.images import ImageView
from lrp_core.views.view import ModelView

#: The part of the input that a variant ranks, by its embedding.
_RANKED = {"full": "positions", "partial": "tokens", "none": "any"}
#: Columns of stored relevance that curves are drawn from.
RELEVANCE_COLUMNS = ["sample_id", "explanation", "embedding", "relevance", "logit_target", "pixels"]


@dataclass(frozen=True)
class Claim:
    """The relevance that a variant of a method gives a sample."""

    method: str
    explanation: str
    embedding: str
    relevance: np.ndarray  # [T]
    logit: float  # of the target, when it was explained
    pixels: np.ndarray | None = None  # [H * W] of an image, where the method reaches pixels

    def of(self, view: ModelView, pixels: bool) -> np.ndarray:
        """Relevance of tokens [T], or of `pixels` [H * W]: without any, those of a patch share the patch's."""
        if not pixels:
            return self.relevance if self.pixels is None else summed_by_patches(view, self.pixels, self.relevance[0])
        return shared_by_pixels(view, self.relevance) if self.pixels is None else self.pixels

    @property
    def ranked(self) -> str:
        """The part of the input that :meth:`of` speaks of."""
        return "pixels" if self.pixels is not None else _RANKED[self.embedding]

    def scores(self, flips: Flips, has_foil: bool) -> tuple[str, ...]:
        """The numbers that its curves follow: what it explains, and both where it explains neither."""
        if flips.measure != AREAS or not has_foil or not self.may_contrast:
            return (TARGET_LOGIT,)
        return (CONTRAST,) if self.explanation == CONTRASTIVE.name else (TARGET_LOGIT, CONTRAST)

    @property
    def may_contrast(self) -> bool:
        return self.explanation in (CONTRASTIVE.name, NONE)


@dataclass
class DrawnCurves:
    """Rows of the curves' schema and rejects, by method. `splits` counts halvings for want of memory."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    rejects: dict[str, dict[str, Reject]] = field(default_factory=lambda: defaultdict(dict))  # by sample id
    splits: int = 0

    def reject(self, row: Row, methods: Iterable[str], reason: str, detail: str) -> None:
        """Enter a reject for each method; the first reason of a sample stays."""
        for method in methods:
            self.rejects[method].setdefault(row["sample_id"], Reject(row["sample_id"], reason, detail))

    def only(self, samples: Collection[str]) -> DrawnCurves:
        """The rows and rejects of these samples."""
        rows = {
            name: [row for row in of_method if row["sample_id"] in samples] for name, of_method in self.rows.items()
        }
        rejects = {
            name: {sample: reject for sample, reject in of_method.items() if sample in samples}
            for name, of_method in self.rejects.items()
        }
        return DrawnCurves(defaultdict(list, rows), defaultdict(dict, rejects), self.splits)

    def made(self, method: str) -> Made:
        """The shard of one method."""
        table = pa.Table.from_pylist(self.rows[method], schema=CURVES)
        return Made(table, tuple(self.rejects[method].values()), self.splits)


def said_by(method: str, relevance: pa.Table, variants: Sequence[tuple[str, str]]) -> dict[str, list[Claim]]:
    """The claims of `variants` (explanation, embedding) in rows of RELEVANCE_COLUMNS, in order, by sample id."""
    claims: dict[str, dict[tuple[str, str], Claim]] = defaultdict(dict)
    names = [relevance[name].to_pylist() for name in ("sample_id", "explanation", "embedding", "logit_target")]
    tokens, pixels = (_lists(relevance[name]) for name in ("relevance", "pixels"))
    for row, (sample, explanation, embedding, logit) in enumerate(zip(*names, strict=True)):
        if (explanation, embedding) in variants:
            values, of_pixels = tokens[row], pixels[row]
            assert values is not None
            claims[sample][explanation, embedding] = Claim(method, explanation, embedding, values, logit, of_pixels)
    return {sample: [by_variant[v] for v in variants if v in by_variant] for sample, by_variant in claims.items()}


def _lists(column: pa.ChunkedArray) -> list[np.ndarray | None]:
    """A column of lists as views of one array; None for nulls."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    flat, known = pc.list_flatten(column).to_numpy(), column.is_valid().to_pylist()
    return [flat[starts[row] : starts[row + 1]] if is_known else None for row, is_known in enumerate(known)]


def shared_by_pixels(view: ModelView, relevance: np.ndarray) -> np.ndarray:
    """Relevance of a class token and patches [T] as that of pixels [H * W]: an equal share of their patch's."""
    assert isinstance(view, ImageView)
    (tall, wide), (_, height, width) = view.patch_shape, view.image_shape
    shares = relevance[1:].reshape(height // tall, width // wide) / (tall * wide)
    return shares.repeat(tall, axis=0).repeat(wide, axis=1).ravel()


def summed_by_patches(view: ModelView, pixels: np.ndarray, of_class: float) -> np.ndarray:
    """Relevance of pixels [H * W] as that of the class token, `of_class`, and of patches [T], the sums of theirs."""
    assert isinstance(view, ImageView)
    (tall, wide), (_, height, width) = view.patch_shape, view.image_shape
    rows, columns = height // tall, width // wide
    picture = np.asarray(pixels, np.float64).reshape(height, width)[: rows * tall, : columns * wide]
    return np.concatenate([[of_class], picture.reshape(rows, tall, columns, wide).sum(axis=(1, 3)).ravel()])


@dataclass(frozen=True)
class Drawing:
    """The computation of curves of samples on a model; `said` holds the relevance of each method by method and sample
    id.

    Rows without a target have the curves of the model's own prediction, as they were explained for.
    """

    view: ModelView
    dtype: str
    ways: tuple[Flips, ...]
    token_budget: int
    said: Mapping[str, Mapping[str, Sequence[Claim]]]

    def run(self, rows: Sequence[Row]) -> DrawnCurves:
        """The curves of all rows, drawn together. Raises the error of a row that cannot be drawn."""
        drawn = DrawnCurves()
        kept = [row for row in rows if self._may_be_drawn(row, drawn)]
        if kept:
            whole = with_predictions(self.view, kept)
            curves = [
                compute_curves(self.view, [self._asked(row, way) for row in whole], way, self.token_budget)
                for way in self.ways
            ]
            self._keep(kept, curves, drawn)
        return drawn

    def _may_be_drawn(self, row: Row, drawn: DrawnCurves) -> bool:
        """True where some method has relevance of the row and in every way some token may go; others become rejects."""
        for method, claims in self.said.items():
            if row["sample_id"] not in claims:
                drawn.reject(row, [method], NO_RELEVANCE, f"{method} has no relevance of it")
        says = self._says(row)
        if not says:
            return False
        try:
            for flips in self.ways:
                flips.chosen(row, self.view.kind.slot)
        except UserError as error:
            drawn.reject(row, [claim.method for claim in says], NOTHING_TO_FLIP, str(error))
            return False
        return True

    def _says(self, row: Row) -> list[Claim]:
        """The claims of all methods about a row, variant by variant."""
        return [claim for claims in self.said.values() for claim in claims.get(row["sample_id"], ())]

    def _asked(self, row: Row, flips: Flips) -> PerturbedSample:
        """Raises ValueError where relevance is not of these tokens, UserError where none may go."""
        relevance = np.stack([claim.of(self.view, flips.pixels) for claim in self._says(row)])
        if not flips.pixels and relevance.shape[1] != len(row["input_ids"]):
            raise ValueError(f"{relevance.shape[1]} relevances for {len(row['input_ids'])} tokens")
        return PerturbedSample.of(row, relevance, flips, self.view.kind.slot)

    def _keep(self, rows: Sequence[Row], outcome: Sequence[tuple[list[Curves], Flipper]], drawn: DrawnCurves) -> None:
        """The curves of `rows`; a method that explained another logit than this forward gives gets a reject instead."""
        drawn.splits += sum(flipper.halved for _, flipper in outcome)
        for row, curves in zip(rows, zip(*(curves for curves, _ in outcome), strict=True), strict=True):
            whole = curves[0].logit[:, 0, 0]  # [V], of the whole input
            says = self._says(row)
            lost: set[str] = set()
            for claim, logit in zip(says, whole.tolist(), strict=True):
                if _differs(claim, logit, self.dtype):
                    detail = f"the target's logit is {logit:g} and was {claim.logit:g} when it was explained"
                    drawn.reject(row, [claim.method], "other_logit", detail)
                    lost.add(claim.method)
            for flips, way_curves in zip(self.ways, curves, strict=True):
                has_foil = way_curves.contrast is not None
                scores = [claim.scores(flips, has_foil) for claim in says]
                for claim, columns in zip(says, _columns(way_curves, scores), strict=True):
                    if claim.method not in lost:
                        sample_columns = {
                            "sample_id": row["sample_id"],
                            "target_id": way_curves.target_id,
                            "perturbation": flips.way,
                        }
                        variant = {
                            "explanation": claim.explanation,
                            "embedding": claim.embedding,
                            "ranked": claim.ranked,
                        }
                        drawn.rows[claim.method] += [sample_columns | variant | order for order in columns]


def _columns(curves: Curves, scores: Sequence[Sequence[str]]) -> Iterator[list[dict[str, Any]]]:
    """For each variant, what is stored of the curves of both orders by each of its `scores`."""
    is_area = curves.flips.measure == AREAS
    areas = {score: curves.areas(score) for score in {*chain(*scores)}} if is_area else {}
    for at, claim_scores in enumerate(scores):
        yield [
            {
                "order": name,
                "score": score,
                "percent": curves.flips.percent,
                "removed": curves.counts[order],
                "logit": curves.values(score)[at, order],
                "probability": None if curves.probability is None else curves.probability[at, order],
                "correct": None if curves.correct is None else _booleans(curves.correct[at, order]),
                "area": float(areas[score][f"area_{name}"][at]) if is_area else None,
            }
            for score in claim_scores
            for order, name in enumerate(curves.flips.orders)
        ]


def _booleans(values: np.ndarray) -> list[bool | None]:
    return [None if value != value else bool(value) for value in values.tolist()]


def _differs(claim: Claim, whole: float, dtype: str) -> bool:
    """False where the logit `whole` of the input as it is now is not finite: that shows in the curve."""
    return abs(claim.logit - whole) > ROUNDING[dtype] * max(1.0, abs(claim.logit))
