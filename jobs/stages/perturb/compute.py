"""From the relevance of several methods to curves of the samples they explain, whatever goes wrong with a row. No Ray.

All methods of a unit are drawn together, so that what their orders have in common runs once. A row that fails alone
becomes a reject of every method's cell; a row that one method has no relevance for is a reject of that method's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import CURVES, REJECT
from evaluation.scoring.flipping import Flipper
from evaluation.scoring.flips import AREAS, Flips
from evaluation.scoring.perturbing import Asked, Curves, draw
from jobs.cluster.attempts import Attempts
from jobs.plan.units import NO_RELEVANCE, NOTHING_TO_FLIP
from jobs.stages.attribute.compute import PROGRAMMING_ERRORS, Reject, describe
from lrp_core.guard import ROUNDING
from lrp_core.images import ImageView
from lrp_core.memory import is_device_lost, is_out_of_memory
from lrp_core.readout import with_predictions
from lrp_core.types import UserError
from lrp_core.view import ModelView

Row = Mapping[str, Any]  # sample_id, input_ids, position, target_id, foil_id, special_mask, scope_mask
#: Columns of stored relevance that curves are drawn from.
RELEVANCE_COLUMNS = ["sample_id", "explanation", "embedding", "relevance", "logit_target", "pixels"]


@dataclass(frozen=True)
class Claim:
    """What a method's variant says of a sample."""

    method: str
    explanation: str
    embedding: str
    relevance: np.ndarray  # [T]
    logit: float  # of the target, when it was explained
    pixels: np.ndarray | None = None  # [H * W] of an image, where the method reaches pixels

    def of(self, view: ModelView, pixels: bool) -> np.ndarray:
        """Relevance of tokens [T], or of `pixels` [H * W]: without any, those of a patch share the patch's."""
        if not pixels:
            return self.relevance
        return shared_by_pixels(view, self.relevance) if self.pixels is None else self.pixels


@dataclass
class DrawnCurves:
    """Rows of the curves' schema and rejects, by method. `splits` counts halvings for want of memory."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    rejects: dict[str, list[Reject]] = field(default_factory=lambda: defaultdict(list))
    splits: int = 0

    def table(self, method: str) -> pa.Table:
        return pa.Table.from_pylist(self.rows[method], schema=CURVES)

    def reject_table(self, method: str) -> pa.Table:
        rows = [
            {"sample_id": r.sample_id, "stage": "perturb", "reason": r.reason, "where": None, "detail": r.detail}
            for r in self.rejects[method]
        ]
        return pa.Table.from_pylist(rows, schema=REJECT)


def said_by(method: str, relevance: pa.Table, variants: Sequence[tuple[str, str]]) -> dict[str, list[Claim]]:
    """What the `variants` (explanation, embedding) among rows of RELEVANCE_COLUMNS say, in that order, by sample id."""
    said: dict[str, dict[tuple[str, str], Claim]] = defaultdict(dict)
    names = [relevance[name].to_pylist() for name in ("sample_id", "explanation", "embedding", "logit_target")]
    tokens, pixels = (_lists(relevance[name]) for name in ("relevance", "pixels"))
    for row, (sample, explanation, embedding, logit) in enumerate(zip(*names, strict=True)):
        if (explanation, embedding) in variants:
            values, of_pixels = tokens[row], pixels[row]
            assert values is not None
            said[sample][explanation, embedding] = Claim(method, explanation, embedding, values, logit, of_pixels)
    return {sample: [own[v] for v in variants if v in own] for sample, own in said.items()}


def _lists(column: pa.ChunkedArray) -> list[np.ndarray | None]:
    """A column of lists as views of one array; None for nulls."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    flat, known = pc.list_flatten(column).to_numpy(), column.is_valid().to_pylist()
    return [flat[starts[row] : starts[row + 1]] if there else None for row, there in enumerate(known)]


def shared_by_pixels(view: ModelView, relevance: np.ndarray) -> np.ndarray:
    """Relevance of a class token and patches [T] as that of pixels [H * W]: an equal share of their patch's."""
    assert isinstance(view, ImageView)
    (tall, wide), (_, height, width) = view.patch_shape, view.image_shape
    shares = relevance[1:].reshape(height // tall, width // wide) / (tall * wide)
    return shares.repeat(tall, axis=0).repeat(wide, axis=1).ravel()


@dataclass(frozen=True)
class CurveDrawing:
    """The curves of a unit's samples on one model; `said` has what each method says, by method and sample id.

    Rows without a target have the curves of the model's own prediction, as they were explained for.
    """

    view: ModelView
    dtype: str
    ways: tuple[Flips, ...]
    token_budget: int
    said: Mapping[str, Mapping[str, Sequence[Claim]]]

    def run(self, rows: Sequence[Row], attempts: Attempts) -> DrawnCurves:
        """All rows together or, where that fails or has ended workers, row by row.

        Raises the error of a lost device, and what no row is to blame for.
        """
        drawn = DrawnCurves()
        kept = [row for row in rows if self._may_be_drawn(row, drawn)]
        suspicious = attempts.ended_by(*(f"{row['sample_id']}|" for row in kept))
        outcome = Reject("", "", "") if attempts.begin_batch("all") or suspicious else self._attempt(kept)
        if isinstance(outcome, Reject):
            for row in kept:
                self._draw_alone(row, drawn, attempts)
        else:
            self._keep(kept, outcome, drawn)
        attempts.end_batch("all")
        return drawn

    def _may_be_drawn(self, row: Row, drawn: DrawnCurves) -> bool:
        """Whether some method has relevance of the row and some token may go; what is missing is noted."""
        for method, said in self.said.items():
            if row["sample_id"] not in said:
                _reject(row, [method], NO_RELEVANCE, f"{method} has no relevance of it", drawn)
        if not self._says(row):
            return False
        try:
            self._asked(row, self.ways[0])
        except UserError as error:
            self._reject(row, NOTHING_TO_FLIP, str(error), drawn)
            return False
        return True

    def _says(self, row: Row) -> list[Claim]:
        return [one for said in self.said.values() for one in said.get(row["sample_id"], ())]

    def _asked(self, row: Row, flips: Flips) -> Asked:
        """Raises ValueError where relevance is not of these tokens, UserError where none may go."""
        relevance = np.stack([said.of(self.view, flips.pixels) for said in self._says(row)])
        if not flips.pixels and relevance.shape[1] != len(row["input_ids"]):
            raise ValueError(f"{relevance.shape[1]} relevances for {len(row['input_ids'])} tokens")
        return Asked.of(row, relevance, flips, self.view.kind.slot)

    def _attempt(self, rows: Sequence[Row]) -> list[tuple[list[Curves], Flipper]] | Reject:
        """What :func:`draw` gives for each way, or why there is nothing as a reject of the first row.

        What is done about it is done by the caller, when nothing of a failed batch is alive any more.
        """
        try:
            told = with_predictions(self.view, rows)
            return [draw(self.view, [self._asked(row, w) for row in told], w, self.token_budget) for w in self.ways]
        except Exception as error:
            if is_device_lost(error) or isinstance(error, PROGRAMMING_ERRORS):
                raise
            reason = "out_of_memory" if is_out_of_memory(error) else "model_error"
            return Reject(rows[0]["sample_id"], reason, describe(error))

    def _draw_alone(self, row: Row, drawn: DrawnCurves, attempts: Attempts) -> None:
        mark = f"{row['sample_id']}|curves"
        if attempts.begin_row(mark):
            self._reject(row, "ended_worker", f"the process ended while drawing it{attempts.reason}", drawn)
            return
        outcome = self._attempt([row])
        if isinstance(outcome, Reject):
            self._reject(row, outcome.reason, outcome.detail, drawn)
        else:
            self._keep([row], outcome, drawn)
        attempts.end_row(mark)

    def _reject(self, row: Row, reason: str, detail: str, drawn: DrawnCurves) -> None:
        _reject(row, [said.method for said in self._says(row)], reason, detail, drawn)

    def _keep(self, rows: Sequence[Row], outcome: Sequence[tuple[list[Curves], Flipper]], drawn: DrawnCurves) -> None:
        """The curves of `rows`; a method that explained another logit than this forward gives gets a reject instead."""
        drawn.splits += sum(flipper.halved for _, flipper in outcome)
        for row, curves in zip(rows, zip(*(curves for curves, _ in outcome), strict=True), strict=True):
            whole = curves[0].logit[:, 0, 0]  # [V], of the whole input
            says = self._says(row)
            lost: set[str] = set()
            for one, logit in zip(says, whole.tolist(), strict=True):
                if _differs(one, logit, self.dtype):
                    detail = f"the target's logit is {logit:g} and was {one.logit:g} when it was explained"
                    _reject(row, [one.method], "other_logit", detail, drawn)
                    lost.add(one.method)
            for flips, own in zip(self.ways, curves, strict=True):
                for one, columns in zip(says, _columns(own), strict=True):
                    if one.method not in lost:
                        place = {
                            "sample_id": row["sample_id"],
                            "target_id": own.target_id,
                            "perturbation": flips.way,
                        }
                        variant = {"explanation": one.explanation, "embedding": one.embedding}
                        drawn.rows[one.method] += [place | variant | order for order in columns]


def _columns(curves: Curves) -> Iterator[list[dict[str, Any]]]:
    """For each variant, what is stored of the curves of both orders."""
    areas = curves.areas if curves.flips.measure == AREAS else {}
    for at in range(len(curves.logit)):
        yield [
            {
                "order": name,
                "percent": curves.flips.percent,
                "removed": curves.counts[order],
                "logit": curves.logit[at, order],
                "probability": None if curves.probability is None else curves.probability[at, order],
                "correct": None if curves.correct is None else _booleans(curves.correct[at, order]),
                "area": float(areas[f"area_{name}"][at]) if areas else None,
            }
            for order, name in enumerate(curves.flips.orders)
        ]


def _booleans(values: np.ndarray) -> list[bool | None]:
    return [None if value != value else bool(value) for value in values.tolist()]


def _reject(row: Row, methods: Iterable[str], reason: str, detail: str, drawn: DrawnCurves) -> None:
    """A reject for each method, once."""
    for method in dict.fromkeys(methods):
        if all(reject.sample_id != row["sample_id"] for reject in drawn.rejects[method]):
            drawn.rejects[method].append(Reject(row["sample_id"], reason, detail))


def _differs(said: Claim, whole: float, dtype: str) -> bool:
    """False where the logit `whole` of the input as it is now is not finite: that shows in the curve."""
    return abs(said.logit - whole) > ROUNDING[dtype] * max(1.0, abs(said.logit))
