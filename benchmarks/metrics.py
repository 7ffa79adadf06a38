"""`closelook bench metrics`: scoring many samples at once against a loop over samples, and the memory of many.

Made-up relevance with the lengths of the tasks, one variant of choices of tokens; one core. The loop is what a careful
person writes with numpy for one sample at a time. Memory is that of a process that scores a cell of two numbers of
samples, with two variants of relevance and both choices of tokens: at that rate follows that of ten million samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from benchmarks.harness import RowsInMemory, Runs, interleave, parser
from benchmarks.parts.views import write_columns
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
TARGET = 20
SHARD_ROWS = 10_000
LENGTHS = (8, 30)  # tokens of a sample whose memory is asked for, fewest and most


def main(arguments: Sequence[str] | None = None) -> dict:
    """Measures every task; see `--help`. Returns the JSON."""
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
    """Views and relevance of a cell, in shards."""
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
    """Relevance, evidence, chosen [S] and offsets [N + 1]: the first token special, one of the others evidence."""
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(shortest, longest + 1, samples))[::-1]  # as the attribute stage writes them
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    relevance = rng.standard_normal(offsets[-1]).astype(np.float32)
    evidence, chosen = np.zeros(offsets[-1], bool), np.ones(offsets[-1], bool)
    evidence[offsets[:-1] + rng.integers(1, lengths)] = True
    chosen[offsets[:-1]] = False
    return relevance, evidence, chosen, offsets


def loop(relevance: Array, evidence: Array, chosen: Array, offsets: Array) -> dict[str, list[float]]:
    """The metrics of :func:`score`, computed for each sample and metric in turn."""
    values: dict[str, list[float]] = {name: [] for name in ONE_SAMPLE}
    for start, end in pairwise(offsets):
        mask = chosen[start:end]
        r, e = relevance[start:end][mask], evidence[start:end][mask]
        for name, metric in ONE_SAMPLE.items():
            values[name].append(metric(r, e))
    return values


# metrics of one sample: relevance r and evidence e of its chosen tokens


def pg(r: Array, e: Array) -> float:
    return float(e[r.argmax()])


def pg2(r: Array, e: Array) -> float:
    return float(e[np.argsort(-r, kind="stable")[:2]].any())


def mrr(r: Array, e: Array) -> float:
    dense_rank = np.unique(r, return_inverse=True)[1] + 1
    return (1 / (len(r) - dense_rank[e] + 1)).max()


def mrr_strict(r: Array, e: Array) -> float:
    return 1 / (1 + (r > r[e].max()).sum())


def rma(r: Array, e: Array) -> float:
    positive = np.clip(r, 0, None)
    return positive[e].sum() / positive.sum() if positive.any() else 0.0


def pta(r: Array, e: Array) -> float:
    return ((r > 0) == e).mean()


def _top(r: Array, e: Array) -> Array:
    """Marks of the tokens of largest relevance, as many as there is evidence."""
    marks = np.zeros(len(r), bool)
    marks[np.argsort(-r, kind="stable")[: e.sum()]] = True
    return marks


def rra(r: Array, e: Array) -> float:
    return (_top(r, e) & e).sum() / e.sum()


def _overlap(first: Array, second: Array) -> float:
    return (first & second).sum() / (first | second).sum()


def iou(r: Array, e: Array) -> float:
    return _overlap(_top(r, e) & (r > 0), e)


def iou_positive(r: Array, e: Array) -> float:
    return _overlap(r > 0, e)


def iou_soft(r: Array, e: Array) -> float:
    positive = np.clip(r, 0, None)
    share = positive / positive.max() if positive.any() else positive
    return np.minimum(share, e).sum() / np.maximum(share, e).sum()


def ap(r: Array, e: Array) -> float:
    values, rank = np.unique(-r, return_inverse=True)
    hits = np.bincount(rank, e, len(values))
    precision = hits.cumsum() / np.bincount(rank, minlength=len(values)).cumsum()
    return (hits * precision).sum() / e.sum()


def dot_softmax(r: Array, e: Array) -> float:
    share = np.exp(r - r.max())
    return share[e].sum() / share.sum()


_METRICS = (pg, pg2, mrr, mrr_strict, rma, pta, iou, iou_positive, iou_soft, rra, ap, dot_softmax)
ONE_SAMPLE = {metric.__name__: metric for metric in _METRICS} | {"dot": rma}
