"""Deletion and insertion curves of samples, ordered by the relevance of several methods. No Ray here.

The curves of all methods are computed together, so that perturbed inputs that their orders share run once. A sample for
which one method has no relevance is a reject of that method only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import CURVES
from closelook.evaluation.scoring.faithfulness.flipping import Curves, Flipper, PerturbedSample, compute_curves
from closelook.evaluation.scoring.faithfulness.flips import AREAS, CONTRAST, TARGET_LOGIT, Flips
from closelook.jobs.plan.units import NO_RELEVANCE, NOTHING_TO_FLIP
from closelook.jobs.products.record import Made, Reject, Row
from closelook.lrp_core.readers.predictions import with_predictions
from closelook.lrp_core.records.explained import CONTRASTIVE, NONE
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.views.guard import ROUNDING
from closelook.lrp_core.views.images import ImageView
from closelook.lrp_core.views.view import ModelView

#: The part of the input that a variant ranks, by its embedding.
_RANKED = {"full": "positions", "partial": "tokens", "none": "any"}
#: Columns of stored relevance from which curves are computed.
RELEVANCE_COLUMNS = ["sample_id", "explanation", "embedding", "relevance", "logit_target", "pixels"]


@dataclass(frozen=True)
class Claim:
    """The relevance that a method gives to one sample's tokens or pixels, in one variant (explanation, embedding)."""

    method: str
    explanation: str
    embedding: str
    relevance: np.ndarray  # [T]
    logit: float  # of the target, when it was explained
    pixels: np.ndarray | None = None  # [H * W] of an image, where the method reaches pixels

    def of(self, view: ModelView, pixels: bool) -> np.ndarray:
        """The relevance of tokens [T] or, with `pixels`, of an image's pixels [H * W].

        If the method gives no relevance of pixels, those of a patch share the patch's equally. If it gives it, tokens
        have the sum over their patch.
        """
        if not pixels:
            return self.relevance if self.pixels is None else summed_by_patches(view, self.pixels, self.relevance[0])
        return shared_by_pixels(view, self.relevance) if self.pixels is None else self.pixels

    @property
    def ranked(self) -> str:
        """The part of the input that the variant ranks: `pixels`, `positions`, `tokens` or `any`."""
        return "pixels" if self.pixels is not None else _RANKED[self.embedding]

    def scores(self, flips: Flips, has_foil: bool) -> tuple[str, ...]:
        """The numbers for which curves are drawn: the one that the variant explains.

        A variant that explains neither the target's logit nor the contrast has curves of both, if the sample has a
        foil.
        """
        may_contrast = self.explanation in (CONTRASTIVE.name, NONE)
        if flips.measure != AREAS or not has_foil or not may_contrast:
            return (TARGET_LOGIT,)
        return (CONTRAST,) if self.explanation == CONTRASTIVE.name else (TARGET_LOGIT, CONTRAST)


@dataclass
class DrawnCurves:
    """Rows of schema CURVES, and rejects, by method.

    `splits` counts batches that were halved because memory ran out.
    """

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    rejects: dict[str, dict[str, Reject]] = field(default_factory=lambda: defaultdict(dict))  # by sample id
    splits: int = 0

    def reject(self, row: Row, methods: Iterable[str], reason: str, detail: str) -> None:
        """Add a reject of the sample `row` for each of `methods`; the first reason that a sample gets stays."""
        for method in methods:
            self.rejects[method].setdefault(row["sample_id"], Reject(row["sample_id"], reason, detail))

    def made(self, method: str) -> Made:
        """The curves of one method as the content of a shard."""
        table = pa.Table.from_pylist(self.rows[method], schema=CURVES)
        return Made(table, tuple(self.rejects[method].values()), self.splits)


def claims_of(method: str, relevance: pa.Table, variants: Sequence[tuple[str, str]]) -> dict[str, list[Claim]]:
    """The claims of one method by sample id, in the order of `variants` (explanation, embedding).

    `relevance` is a table with the RELEVANCE_COLUMNS of the method's stored relevance.
    """
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
    """A column of lists as one array for each row, all views of the same memory; None for nulls."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    flat, known = pc.list_flatten(column).to_numpy(), column.is_valid().to_pylist()
    return [flat[starts[row] : starts[row + 1]] if is_known else None for row, is_known in enumerate(known)]


def shared_by_pixels(view: ModelView, relevance: np.ndarray) -> np.ndarray:
    """Relevance of pixels [H * W] from that of a class token and patches [T].

    Each pixel gets an equal share of its patch's relevance; that of the class token is left out.
    """
    assert isinstance(view, ImageView)
    (tall, wide), (_, height, width) = view.patch_shape, view.image_shape
    shares = relevance[1:].reshape(height // tall, width // wide) / (tall * wide)
    return shares.repeat(tall, axis=0).repeat(wide, axis=1).ravel()


def summed_by_patches(view: ModelView, pixels: np.ndarray, of_class: float) -> np.ndarray:
    """Relevance of a class token and patches [T] from that of pixels [H * W], which are summed over each patch.

    `of_class` is the relevance of the class token. Pixels beyond the last whole patch are left out.
    """
    assert isinstance(view, ImageView)
    (tall, wide), (_, height, width) = view.patch_shape, view.image_shape
    rows, columns = height // tall, width // wide
    picture = np.asarray(pixels, np.float64).reshape(height, width)[: rows * tall, : columns * wide]
    return np.concatenate([[of_class], picture.reshape(rows, tall, columns, wide).sum(axis=(1, 3)).ravel()])


@dataclass(frozen=True)
class Drawing:
    """Computes the curves of samples on one model. `claims` has the claims of each method by sample id.

    Samples without a target have the curves of the model's own prediction, which is what was explained.
    """

    view: ModelView
    dtype: str
    ways: tuple[Flips, ...]  # how tokens are removed; each has curves of its own
    token_budget: int
    claims: Mapping[str, Mapping[str, Sequence[Claim]]]

    def run(self, rows: Sequence[Row]) -> DrawnCurves:
        """The curves of all rows, computed together. Raises the error of a row for which curves cannot be computed."""
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
        """True if some method has relevance of the row, and some of its tokens may be removed in each of the `ways`."""
        for method, of_samples in self.claims.items():
            if row["sample_id"] not in of_samples:
                drawn.reject(row, [method], NO_RELEVANCE, f"{method} has no relevance of it")
        row_claims = self._claims_about(row)
        if not row_claims:
            return False
        try:
            for flips in self.ways:
                flips.chosen(row, self.view.kind.slot)
        except UserError as error:
            drawn.reject(row, [claim.method for claim in row_claims], NOTHING_TO_FLIP, str(error))
            return False
        return True

    def _claims_about(self, row: Row) -> list[Claim]:
        """The claims of all methods about a row, a claim for each variant."""
        return [claim for of_samples in self.claims.values() for claim in of_samples.get(row["sample_id"], ())]

    def _asked(self, row: Row, flips: Flips) -> PerturbedSample:
        """The row with the relevance of all claims [V, T] or [V, H * W], as `flips` removes its tokens.

        Raises ValueError if relevance has another length than the tokens, and UserError if no token may be removed.
        """
        relevance = np.stack([claim.of(self.view, flips.pixels) for claim in self._claims_about(row)])
        if not flips.pixels and relevance.shape[1] != len(row["input_ids"]):
            raise ValueError(f"relevance has {relevance.shape[1]} numbers for {len(row['input_ids'])} tokens")
        return PerturbedSample.of(row, relevance, flips, self.view.kind.slot)

    def _keep(self, rows: Sequence[Row], outcome: Sequence[tuple[list[Curves], Flipper]], drawn: DrawnCurves) -> None:
        """Add the curves of `rows` to `drawn`; `outcome` has the curves of all rows and the flipper for each way."""
        drawn.splits += sum(flipper.halved for _, flipper in outcome)
        for row, curves in zip(rows, zip(*(curves for curves, _ in outcome), strict=True), strict=True):
            whole = curves[0].logit[:, 0, 0]  # [V], of the whole input
            row_claims = self._claims_about(row)
            lost: set[str] = set()
            for claim, logit in zip(row_claims, whole.tolist(), strict=True):
                # False if the logit is not finite: the curve shows that itself
                if abs(claim.logit - logit) > ROUNDING[self.dtype] * max(1.0, abs(claim.logit)):
                    detail = f"the target's logit is {logit:g} and was {claim.logit:g} when it was explained"
                    drawn.reject(row, [claim.method], "other_logit", detail)
                    lost.add(claim.method)
            for flips, way_curves in zip(self.ways, curves, strict=True):
                of_way = {"sample_id": row["sample_id"], "target_id": way_curves.target_id, "perturbation": flips.way}
                has_foil = way_curves.contrast is not None
                scores = [claim.scores(flips, has_foil) for claim in row_claims]
                for claim, columns in zip(row_claims, _columns(way_curves, scores), strict=True):
                    if claim.method not in lost:
                        variant = {"explanation": claim.explanation, "embedding": claim.embedding}
                        shared = {**of_way, **variant, "ranked": claim.ranked}
                        drawn.rows[claim.method] += [shared | order for order in columns]


def _columns(curves: Curves, scores: Sequence[Sequence[str]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the columns of each variant's curves: an entry for each of its `scores` and each order (MoRF, LeRF)."""
    areas = {}
    if curves.flips.measure == AREAS:
        areas = {score: curves.areas(score) for score in {*chain(*scores)}}
    for variant, claim_scores in enumerate(scores):
        rows = []
        for score, order in product(claim_scores, range(len(curves.flips.orders))):
            row = _curve(curves, score, variant, order)
            name = row["order"]
            row["area"] = float(areas[score][f"area_{name}"][variant]) if areas else None
            rows.append(row)
        yield rows


def _curve(curves: Curves, score: str, variant: int, order: int) -> dict[str, Any]:
    """The columns of one curve in schema CURVES, without its area; `variant` and `order` are indices."""
    probability = correct = None
    if curves.probability is not None:
        probability = curves.probability[variant, order]
    if curves.correct is not None:
        correct = _booleans(curves.correct[variant, order])
    return {
        "order": curves.flips.orders[order],
        "score": score,
        "percent": curves.flips.percent,
        "removed": curves.counts[order],
        "logit": curves.values(score)[variant, order],
        "probability": probability,
        "correct": correct,
    }


def _booleans(values: np.ndarray) -> list[bool | None]:
    """0 and 1 as booleans, NaN as None."""
    return [None if value != value else bool(value) for value in values.tolist()]
