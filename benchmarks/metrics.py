"""`closelook bench metrics`: scoring many samples at once against a loop over samples, and the memory for many samples.

Relevance is random, with the lengths of the tasks; one core. The loop is careful numpy code for one sample at a time.
The memory of a process that scores a cell is measured for two numbers of samples, and extrapolated to ten million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from benchmarks.parts.harness import RowsInMemory, Runs, interleave, parser
from benchmarks.parts.stores.views import write_columns
from evaluation.schema import RELEVANCE, VIEW
from evaluation.scoring.metrics import METRICS, score
from jobs.bench.record import summary
from jobs.plan.node import Part
from jobs.products.record import NodeFailed, Opened
from jobs.products.scores import Metrics, ScoresNode, compute
from jobs.store import Artifact, Store

Array = np.ndarray
#: Fewest and most tokens of a sample, and samples, by task.
TASKS = {"ra": (4, 21, 1_000), "sva": (8, 55, 30_000), "qa": (60, 400, 10_000)}
TARGET = 20  # times as fast as the loop
SHARD_ROWS = 10_000
LENGTHS = (8, 30)  # fewest and most tokens of a sample, where memory is measured


def main(arguments: Sequence[str] | None = None) -> dict:
    """Measure every task; see `--help`. Returns the result as JSON."""
    options = parser("metrics", __doc__)
    options.number("--rows", 400_000, "samples of the larger cell", quick=2_000)
    bench = options.begin(arguments)
    for task, (shortest, longest, samples) in TASKS.items():
        count = samples // 20 if bench.quick else samples
        whole = made_up(shortest, longest, count)
        part = made_up(shortest, longest, count // 10)  # for the loop, which is slow, at the same cost a sample
        at_once: Callable[..., object] = score
        runs: Runs = {"at once": partial(at_once, *whole), "loop": partial(loop, *part)}
        tokens = {"at once": int(whole[3][-1]), "loop": int(part[3][-1])}
        rates = []
        for name, seconds in interleave(runs, repeats=3 if bench.quick else 7).items():
            rates.append([tokens[name] / value for value in seconds])
            bench.row(task=task, scoring=name, samples=len(whole[3]) - 1, tokens_per_s=summary(rates[-1]))
        bench.paired(f"{task}: tokens/s at once / loop", rates, TARGET, "higher")
    bench.memory_of_rows(CELL, sizes=(bench.chosen.rows // 4, bench.chosen.rows))
    return bench.finish()


def _score(root: str, rows: int) -> None:
    """Score a cell that `_prepare` has written. Raises RuntimeError if that fails."""
    cell = {"model": "m", "task": "sva", "dtype": "float32", "method": "lrp"}
    store, relevance, scores = Store(root), Artifact("relevance", **cell), Artifact("scores", **cell)
    shards, views = tuple(store.files("relevance")), tuple(store.files("views"))
    metrics: Metrics = [[name, 1] for name in METRICS]
    node = ScoresNode(artifact=scores, made_of=(relevance,), scored_by=metrics, views=views, values=rows)
    part = Part(node, "", shards)
    made = compute(Opened(store), [part], ())[part]
    if isinstance(made, NodeFailed) or made.facts["defects"]:
        raise RuntimeError(f"the made-up relevance was not scored: {made}")


def _prepare(root: str, rows: int) -> None:
    """Write views and random relevance of a cell with so many samples, in shards."""
    store, draw = Store(root), np.random.default_rng(0)
    for start in range(0, rows, SHARD_ROWS):
        relevance, evidence, chosen, offsets = made_up(*LENGTHS, min(SHARD_ROWS, rows - start))
        count = len(offsets) - 1
        ids = [f"{start + index:020x}" for index in range(count)]
        lists = partial(pa.ListArray.from_arrays, pa.array(offsets, pa.int32()))
        view = {"sample_id": ids, "length": np.diff(offsets)}
        view["input_ids"] = lists(pa.array(np.zeros(offsets[-1], np.int32)))
        view["evidence_mask"] = lists(pa.array(evidence))
        view["special_mask"] = lists(pa.array(~chosen))
        explained = {"sample_id": ids * 2, "embedding": ["full"] * 2 * count}
        explained["explanation"] = ["contrastive"] * count + ["target"] * count
        explained["relevance"] = pa.concat_arrays([lists(pa.array(relevance)), lists(pa.array(-relevance))])
        for logit in ("logit_target", "logit_foil"):
            explained[logit] = draw.standard_normal(count).tolist() * 2
        write_columns(store, f"views/{start:09d}.parquet", view, VIEW)
        write_columns(store, f"relevance/{start:09d}.parquet", explained, RELEVANCE)


CELL = RowsInMemory(_prepare, _score, 10_000_000, 8.0, "samples of a cell", "the worker that scores it")


def made_up(shortest: int, longest: int, samples: int) -> tuple[Array, ...]:
    """Random relevance, evidence and chosen tokens [S] of N samples, laid end to end, and the offsets [N + 1].

    The first token of a sample is special and not chosen; one of the others is evidence.
    """
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(shortest, longest + 1, samples))[::-1]  # as the attribute stage writes them
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    relevance = rng.standard_normal(offsets[-1]).astype(np.float32)
    evidence, chosen = np.zeros(offsets[-1], bool), np.ones(offsets[-1], bool)
    evidence[offsets[:-1] + rng.integers(1, lengths)] = True
    chosen[offsets[:-1]] = False
    return relevance, evidence, chosen, offsets


def loop(relevance: Array, evidence: Array, chosen: Array, offsets: Array) -> dict[str, list[float]]:
    """The metrics of :func:`score`, computed for one sample and metric after the other."""
    values: dict[str, list[float]] = {name: [] for name in ONE_SAMPLE}
    for start, end in pairwise(offsets):
        mask = chosen[start:end]
        r, e = relevance[start:end][mask], evidence[start:end][mask]
        for name, metric in ONE_SAMPLE.items():
            values[name].append(metric(r, e))
    return values


# metrics of one sample, from relevance r and evidence e of its chosen tokens; see evaluation.scoring.metrics


def pg(r: Array, e: Array) -> float:
    """1.0 if the token of largest relevance is evidence, else 0.0."""
    return float(e[r.argmax()])


def pg2(r: Array, e: Array) -> float:
    """1.0 if one of the two tokens of largest relevance is evidence, else 0.0."""
    return float(e[np.argsort(-r, kind="stable")[:2]].any())


def mrr(r: Array, e: Array) -> float:
    """1 / the rank of the highest evidence token; ranks count from the lowest value, and equal values share one."""
    dense_rank = np.unique(r, return_inverse=True)[1] + 1
    return (1 / (len(r) - dense_rank[e] + 1)).max()


def mrr_strict(r: Array, e: Array) -> float:
    """1 / the rank of the evidence token that ranks highest; of equal values all get the best rank."""
    return 1 / (1 + (r > r[e].max()).sum())


def rma(r: Array, e: Array) -> float:
    """The share of positive relevance that evidence has."""
    positive = np.clip(r, 0, None)
    return positive[e].sum() / positive.sum() if positive.any() else 0.0


def pta(r: Array, e: Array) -> float:
    """The share of tokens whose relevance is positive if and only if they are evidence."""
    return ((r > 0) == e).mean()


def _top(r: Array, e: Array) -> Array:
    """True for the tokens of largest relevance, as many as there are evidence tokens."""
    marks = np.zeros(len(r), bool)
    marks[np.argsort(-r, kind="stable")[: e.sum()]] = True
    return marks


def rra(r: Array, e: Array) -> float:
    """The share of evidence among the tokens of largest relevance, as many as there are evidence tokens."""
    return (_top(r, e) & e).sum() / e.sum()


def _overlap(first: Array, second: Array) -> float:
    """Intersection over union of two sets of tokens."""
    return (first & second).sum() / (first | second).sum()


def iou(r: Array, e: Array) -> float:
    """Intersection over union of the evidence and the tokens of largest relevance, positive ones only."""
    return _overlap(_top(r, e) & (r > 0), e)


def iou_positive(r: Array, e: Array) -> float:
    """Intersection over union of the evidence and the tokens of positive relevance."""
    return _overlap(r > 0, e)


def iou_soft(r: Array, e: Array) -> float:
    """Intersection over union of two fuzzy sets: the evidence, and positive relevance divided by the largest."""
    positive = np.clip(r, 0, None)
    share = positive / positive.max() if positive.any() else positive
    return np.minimum(share, e).sum() / np.maximum(share, e).sum()


def ap(r: Array, e: Array) -> float:
    """Average precision; tokens of equal relevance are ranked together."""
    values, rank = np.unique(-r, return_inverse=True)
    hits = np.bincount(rank, e, len(values))
    precision = hits.cumsum() / np.bincount(rank, minlength=len(values)).cumsum()
    return (hits * precision).sum() / e.sum()


def dot_softmax(r: Array, e: Array) -> float:
    """The share of evidence in the softmax of relevance."""
    share = np.exp(r - r.max())
    return share[e].sum() / share.sum()


_METRICS = (pg, pg2, mrr, mrr_strict, rma, pta, iou, iou_positive, iou_soft, rra, ap, dot_softmax)
ONE_SAMPLE = {metric.__name__: metric for metric in _METRICS} | {"dot": rma}
