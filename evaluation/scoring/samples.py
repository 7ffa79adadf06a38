"""Scores of relevance against the evidence in tokenised views: a row for each sample and variant.

A variant (VARIANT) names the explanation and the embedding of the relevance, the tokens that count ("non_special" or
"all"), and the scope ("full", or "context" for samples that mark one).

Shapes: N samples of a view, S their tokens one sample after the other, R rows of relevance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.scoring.metrics import DEFECTS, METRICS, NO_EVIDENCE, Metric, Scores, score

VIEW_COLUMNS = ["sample_id", "evidence_mask", "special_mask", "scope_mask", "length", "label"]
LOGITS = ["logit_target", "logit_foil", "predicted_id"]
RELEVANCE_COLUMNS = ["sample_id", "explanation", "embedding", "relevance", "residual", *LOGITS]
VARIANT = ["explanation", "embedding", "tokens", "scope"]
#: Shares of a logit. Relevance that is zero by the model's symmetry keeps up to ROUNDING, from rounding or the epsilon
#: of a norm. How much it keeps differs between processors: between ROUNDING and TELLING, relevance and rounding cannot
#: be told apart.
ROUNDING, TELLING = 1e-5, 1e-4
NOISE, NEAR_NOISE = "noise", "near noise"


class Mismatch(ValueError):
    """Raised for relevance and views that do not fit: other samples, other lengths, or masks of some samples only."""


@dataclass(frozen=True)
class Masks:
    """Masks over the tokens of a task's views: evidence, special tokens, and the scope of metrics."""

    samples: pa.Array  # [N] sample ids, no two of which are equal
    offsets: np.ndarray  # [N + 1], sample i has the tokens offsets[i] to offsets[i + 1]
    evidence: np.ndarray  # [S] bool, all False for a task without evidence
    special: np.ndarray  # [S] bool
    scope: np.ndarray | None  # [S] bool; None if no sample has a scope
    gold: np.ndarray  # [N] the model's class number of a sample's gold label; -1 if the sample has no such label
    left_out: np.ndarray | None = None  # [S] bool, tokens that never count; None if all may count

    @classmethod
    def of(cls, views: pa.Table, label_ids: Mapping[str, int] | None = None) -> Masks:
        """The masks of the samples in `views`, a table of VIEW_COLUMNS; `label_ids` maps labels to the model's numbers.

        Raises Mismatch if only some samples have a scope, or only some have evidence.
        """
        views = views.combine_chunks()
        for name, every in (("evidence", "evidence"), ("scope", "scopes")):
            lacking = views[f"{name}_mask"].null_count
            if 0 < lacking < len(views):
                raise Mismatch(f"{lacking} of {len(views)} views have no {name}: a task has {every} for all or none")
        offsets = np.concatenate(([0], np.cumsum(views["length"].to_numpy(), dtype=np.int64)))
        special = _flat_bool(views["special_mask"])
        marks, scopes = views["evidence_mask"], views["scope_mask"]
        evidence = np.zeros_like(special) if marks.null_count else _flat_bool(marks)
        scope = None if scopes.null_count else _flat_bool(scopes)
        known = label_ids or {}
        gold = np.array([known.get(label, -1) for label in views["label"].to_pylist()], np.int64)
        return cls(views["sample_id"], offsets, evidence, special, scope, gold)

    def find(self, names: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """The positions [R] of R sample ids among `samples`. Raises Mismatch naming the first that they lack."""
        at = pc.index_in(names, value_set=self.samples)
        if at.null_count:
            raise Mismatch(f"sample {names.filter(pc.is_null(at))[0].as_py()} has relevance but no view")
        return at.to_numpy()

    def without_slots(self, positions: np.ndarray) -> Masks:
        """These masks without the slots of a masked model: the token at each sample's position [N] never counts."""
        left_out = np.zeros_like(self.special)
        left_out[self.offsets[:-1] + positions] = True
        return replace(self, left_out=left_out)

    def choices(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Every choice of the tokens that count, as (tokens, scope, mask [S] bool).

        "all" counts special tokens also where they lie outside the scope.
        """
        scopes = {"full": np.ones_like(self.special)} | ({} if self.scope is None else {"context": self.scope})
        for name, inside in scopes.items():
            allowed = np.True_ if self.left_out is None else ~self.left_out
            yield "non_special", name, inside & ~self.special & allowed
            yield "all", name, (inside | self.special) & allowed


def score_relevance(
    relevance: pa.Table, masks: Masks, metrics: Mapping[str, Metric] = METRICS
) -> tuple[pa.Table, Counter[str]]:
    """Scores `relevance`, a table of RELEVANCE_COLUMNS with any number of explanations and embeddings, by `metrics`.

    Returns a table with a row for each sample and variant (columns VARIANT, sample_id, correct, and one for each
    metric, not scaled to its unit), and how many of its rows have each defect. A sample counts as incorrect if it is
    not known whether the model predicts it correctly. Missing evidence is a defect only if a metric needs evidence.
    Raises Mismatch for a sample without a view, or with another number of tokens than its view.
    """
    relevance = relevance.combine_chunks()
    token, offsets = _tokens_of(relevance, masks)
    values = _flat(relevance["relevance"])
    correct = pc.fill_null(predicted_right(relevance, masks), False)
    needs_evidence = any(declared.needs_evidence for declared in metrics.values())
    known = {code: name for code, name in DEFECTS.items() if code != NO_EVIDENCE or needs_evidence}
    tables, defects = [], Counter[str]()
    for tokens, scope, chosen in masks.choices():
        scores = score(values, masks.evidence[token], chosen[token], offsets, metrics)
        for code, name in known.items():
            defects[name] += int((scores.defect == code).sum())
        tables.append(_rows(relevance, correct, tokens, scope, scores))
    return pa.concat_tables(tables), +defects  # without counts of 0


def predicted_right(relevance: pa.Table, masks: Masks) -> pa.ChunkedArray | pa.Array:
    """[R] bool, True where the model predicts the sample of a row of `relevance` correctly.

    Where the model explains its own prediction (`predicted_id`), it must be the gold label; elsewhere the logit of the
    target must exceed that of the foil. Null where there is neither a gold label nor a foil.
    """
    view = masks.find(relevance["sample_id"])
    gold = pa.array(masks.gold[view], mask=masks.gold[view] < 0)
    predicted = relevance["predicted_id"]
    above_foil = pc.greater(relevance["logit_target"], relevance["logit_foil"])
    return pc.if_else(pc.is_valid(predicted), pc.equal(predicted.cast(pa.int64()), gold), above_foil)


def noise_of(peak: float) -> str | None:
    """NOISE or NEAR_NOISE if relevance is, or may be, rounding error; None if it is more.

    `peak` is the largest absolute relevance of a token as a share of the larger logit.
    """
    if peak <= ROUNDING:
        return NOISE
    return NEAR_NOISE if peak <= TELLING else None


def peaks(relevance: pa.Table) -> np.ndarray:
    """[R] the largest absolute relevance of a token as a share of the larger logit; infinite if one is not finite.

    It is meant for methods whose relevance sums to the logit. `relevance` is a table of RELEVANCE_COLUMNS.
    """
    relevance = relevance.combine_chunks()
    starts = np.concatenate(([0], np.cumsum(pc.list_value_length(relevance["relevance"]).to_numpy())))[:-1]
    if not len(starts):
        return np.zeros(0)
    largest = np.maximum.reduceat(np.abs(_flat(relevance["relevance"]).astype(np.float64)), starts)
    logits = [pc.fill_null(relevance[name], 0.0).to_numpy().astype(np.float64) for name in LOGITS[:2]]
    scale = np.abs(logits).max(axis=0)
    shares = np.divide(largest, scale, out=np.where(largest > 0, np.inf, 0.0), where=scale > 0)
    return np.where(np.isfinite(shares), shares, np.inf)


def _tokens_of(relevance: pa.Table, masks: Masks) -> tuple[np.ndarray, np.ndarray]:
    """(the view token of each relevance value [S'], offsets [R + 1] of the rows of `relevance` into these values)."""
    view = masks.find(relevance["sample_id"])
    start, length = masks.offsets[view], np.diff(masks.offsets)[view]
    lengths = pc.list_value_length(relevance["relevance"]).to_numpy()
    if (lengths != length).any():
        at = int((lengths != length).argmax())
        name = relevance["sample_id"][at].as_py()
        raise Mismatch(f"sample {name} has relevance for {lengths[at]} tokens, but its view has {length[at]}")
    offsets = np.concatenate(([0], np.cumsum(length)))
    return np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1]), offsets


def _rows(relevance: pa.Table, correct: pa.Array, tokens: str, scope: str, scores: Scores) -> pa.Table:
    """The table of `scores` for one choice of tokens: VARIANT, sample_id, `correct` and a column for each metric."""
    columns = {name: relevance[name] for name in ("explanation", "embedding")}
    for name, value in (("tokens", tokens), ("scope", scope)):
        columns[name] = pa.array([value] * len(relevance), pa.string())
    columns |= {"sample_id": relevance["sample_id"], "correct": correct}
    return pa.table(columns | {name: pa.array(values) for name, values in scores.values.items()})


def _flat(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """The numbers of a list column, row after row."""
    return pc.list_flatten(column).to_numpy()


def _flat_bool(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """The values of a list column of booleans, row after row; Arrow's packed bits are unpacked to bytes on the way."""
    return np.asarray(pc.list_flatten(column).cast(pa.uint8())).astype(bool)
