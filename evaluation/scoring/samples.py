"""From relevance and views to scores: one row per sample and variant.

A variant is (explanation, embedding) as computed, times the tokens that count (non_special | all) and the scope
(full, and context for samples that have one).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.scoring.metrics import DEFECTS, METRICS, NO_EVIDENCE, Metric, Scores, score

VIEW_COLUMNS = ["sample_id", "evidence_mask", "special_mask", "scope_mask", "length", "label"]
LOGITS = ["logit_target", "logit_foil", "predicted_id"]
RELEVANCE_COLUMNS = ["sample_id", "explanation", "embedding", "relevance", "residual", *LOGITS]
VARIANT = ["explanation", "embedding", "tokens", "scope"]
_NAMES = 1 << 16  # that are objects at a time
NOISE = 1e-5  # of a logit: what rounding, or a norm's epsilon, leaves of relevance that is zero by the model's symmetry


class Mismatch(ValueError):
    """Relevance and views do not belong together."""


@dataclass(frozen=True)
class Index:
    """The positions of names in a list. Finding R names among N takes R log N steps."""

    names: np.ndarray  # [N] bytes, ascending
    at: np.ndarray  # [N] where each stands

    @classmethod
    def of(cls, names: pa.Array | pa.ChunkedArray) -> Index:
        """The index of a list of strings, no two of which are equal."""
        text = _as_bytes(names)
        order = np.argsort(text, kind="stable")
        return cls(text[order], order)

    def find(self, names: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """The position in the list of each of R names, [R]. Raises Mismatch with the first that is not there."""
        wanted = _as_bytes(names)
        nearest = np.minimum(np.searchsorted(self.names, wanted), max(0, len(self.names) - 1))
        lost = self.names[nearest] != wanted if len(self.names) else np.ones(len(wanted), bool)
        if lost.any():
            raise Mismatch(f"sample {names[int(lost.argmax())].as_py()} has relevance but no view")
        return self.at[nearest]


@dataclass(frozen=True)
class Masks:
    """The masks of a view that metrics need: which of its tokens [S] are evidence, special, or in the scope."""

    samples: Index  # of the ids [N]
    offsets: np.ndarray  # [N + 1]
    evidence: np.ndarray  # [S] bool, all False for a task without evidence
    special: np.ndarray  # [S] bool
    scope: np.ndarray | None  # [S] bool; None when no sample has a scope
    gold: np.ndarray  # [N] the model's number of a sample's gold label; -1 where it has none
    left_out: np.ndarray | None = None  # [S] bool, tokens that never count; None when all may

    @classmethod
    def of(cls, views: pa.Table, label_ids: Mapping[str, int] | None = None) -> Masks:
        """`views` holds VIEW_COLUMNS, `label_ids` the model's number of each label in it.

        Raises Mismatch when only some samples have a scope, or only some have evidence.
        """
        views = views.combine_chunks()
        scopes = views["scope_mask"]
        if 0 < views["evidence_mask"].null_count < len(views):
            lacking = views["evidence_mask"].null_count
            raise Mismatch(f"{lacking} of {len(views)} views have no evidence: a task has evidence for all or none")
        if 0 < scopes.null_count < len(scopes):
            raise Mismatch(
                f"{scopes.null_count} of {len(scopes)} views have no scope: a task has scopes for all or none"
            )
        offsets = np.concatenate(([0], np.cumsum(views["length"].to_numpy(), dtype=np.int64)))
        special = _flat_bool(views["special_mask"])
        unmarked = views["evidence_mask"].null_count
        evidence = np.zeros_like(special) if unmarked else _flat_bool(views["evidence_mask"])
        scope = None if scopes.null_count else _flat_bool(scopes)
        known = label_ids or {}
        gold = np.array([known.get(label, -1) for label in views["label"].to_pylist()], np.int64)
        return cls(Index.of(views["sample_id"]), offsets, evidence, special, scope, gold)

    def without_slots(self, positions: np.ndarray) -> Masks:
        """These masks without the token at each sample's position [N], where a masked model predicts."""
        left_out = np.zeros_like(self.special)
        left_out[self.offsets[:-1] + positions] = True
        return replace(self, left_out=left_out)

    def choices(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """(tokens, scope, which tokens count [S])."""
        scopes = {"full": np.ones_like(self.special)} | ({} if self.scope is None else {"context": self.scope})
        for name, inside in scopes.items():
            allowed = np.True_ if self.left_out is None else ~self.left_out
            yield "non_special", name, inside & ~self.special & allowed
            yield "all", name, (inside | self.special) & allowed


def score_relevance(
    relevance: pa.Table, masks: Masks, metrics: Mapping[str, Metric] = METRICS
) -> tuple[pa.Table, dict[str, int]]:
    """(one row per sample and variant: VARIANT, sample_id, correct, metrics as they compute; samples per defect).

    `relevance` holds RELEVANCE_COLUMNS, any number of explanations and embeddings. A sample of which is not known
    whether the model predicts it correctly is not counted as correct; that a sample has no evidence is no defect where
    no metric needs any. Raises Mismatch for a sample without a view or with another number of tokens.
    """
    relevance = relevance.combine_chunks()
    token, offsets = _tokens_of(relevance, masks)
    values = _flat(relevance["relevance"])
    correct = pc.fill_null(predicted_right(relevance, masks), False)
    known = {code: name for code, name in DEFECTS.items() if code != NO_EVIDENCE or _any_needs_evidence(metrics)}
    tables, defects = [], dict.fromkeys(known.values(), 0)
    for tokens, scope, chosen in masks.choices():
        scores = score(values, masks.evidence[token], chosen[token], offsets, metrics)
        for code, name in known.items():
            defects[name] += int((scores.defect == code).sum())
        tables.append(_rows(relevance, correct, tokens, scope, scores))
    return pa.concat_tables(tables), {name: count for name, count in defects.items() if count}


def predicted_right(relevance: pa.Table, masks: Masks) -> pa.ChunkedArray | pa.Array:
    """[R] bool: whether the predicted label is the gold one or, where the target is given, its logit above the foil's.

    Null where there is neither a gold label nor a foil.
    """
    view = masks.samples.find(relevance["sample_id"])
    gold = pa.array(masks.gold[view], mask=masks.gold[view] < 0)
    predicted = relevance["predicted_id"]
    given = pc.greater(relevance["logit_target"], relevance["logit_foil"])
    return pc.if_else(pc.is_valid(predicted), pc.equal(predicted.cast(pa.int64()), gold), given)


def negligible(relevance: pa.Table) -> np.ndarray:
    """[N] bool: whether no token has more than NOISE of the larger logit, where relevance is a share of the logit.

    That is what methods promise whose residual is not null. `relevance` holds RELEVANCE_COLUMNS.
    """
    relevance = relevance.combine_chunks()
    starts = np.concatenate(([0], np.cumsum(pc.list_value_length(relevance["relevance"]).to_numpy())))[:-1]
    largest = np.maximum.reduceat(np.abs(_flat(relevance["relevance"])), starts) if len(starts) else starts
    target, foil = (np.abs(pc.fill_null(relevance[name], 0.0).to_numpy()) for name in ("logit_target", "logit_foil"))
    shares = pc.is_valid(relevance["residual"]).to_numpy(zero_copy_only=False)
    return shares & (largest <= NOISE * np.maximum(target, foil))


def _tokens_of(relevance: pa.Table, masks: Masks) -> tuple[np.ndarray, np.ndarray]:
    """(which view token each relevance value belongs to [S'], where the rows of `relevance` start and end [R + 1])."""
    view = masks.samples.find(relevance["sample_id"])
    start, length = masks.offsets[view], np.diff(masks.offsets)[view]
    lengths = pc.list_value_length(relevance["relevance"]).to_numpy()
    if (lengths != length).any():
        at = int((lengths != length).argmax())
        name = relevance["sample_id"][at].as_py()
        raise Mismatch(f"sample {name} has {lengths[at]} relevances for {length[at]} tokens")
    offsets = np.concatenate(([0], np.cumsum(length)))
    return np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1]), offsets


def _rows(relevance: pa.Table, correct: pa.Array, tokens: str, scope: str, scores: Scores) -> pa.Table:
    columns = {name: relevance[name] for name in ("explanation", "embedding")}
    for name, value in (("tokens", tokens), ("scope", scope)):
        columns[name] = pa.array([value] * len(relevance), pa.string())
    columns |= {"sample_id": relevance["sample_id"], "correct": correct}
    return pa.table(columns | {name: pa.array(values) for name, values in scores.values.items()})


def _any_needs_evidence(metrics: Mapping[str, Metric]) -> bool:
    return any(declared.needs_evidence for declared in metrics.values())


def _as_bytes(names: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """[N] of a fixed width, which compares faster and takes less than objects."""
    chunks = names.chunks if isinstance(names, pa.ChunkedArray) else [names]
    parts = [chunk.slice(start, _NAMES).cast(pa.binary()) for chunk in chunks for start in range(0, len(chunk), _NAMES)]
    return np.concatenate([np.zeros(0, "S1"), *(np.array(part.to_pylist(), "S") for part in parts)])


def _flat(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """The values of a list column, one after the other."""
    return pc.list_flatten(column).to_numpy()


def _flat_bool(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    return np.asarray(pc.list_flatten(column).cast(pa.uint8())).astype(bool)
