"""`closelook bench metrics`: the speed of scoring relevance against evidence, and its memory for many samples.

Relevance is random, with the lengths of the tasks; one core. The memory of a process that scores a cell is measured for
two numbers of samples, and extrapolated to ten million.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.parts.harness import GIB, interleave, parser
from benchmarks.parts.runs import write_columns
from closelook.evaluation.schema import RELEVANCE, VIEW
from closelook.evaluation.scoring.metrics import METRICS, score
from closelook.jobs.bench.record import summary
from closelook.jobs.plan.node import Part
from closelook.jobs.products.record import NodeFailed, Opened
from closelook.jobs.products.scores import Metrics, ScoresNode, compute
from closelook.jobs.store import Artifact, Store

Array = np.ndarray
#: Fewest and most tokens of a sample, and samples, by task.
TASKS = {"ra": (4, 21, 1_000), "sva": (8, 55, 30_000), "qa": (60, 400, 10_000)}
SHARD_ROWS = 10_000
MANY_ROWS, LENGTHS = 10_000_000, (8, 30)  # of the cell whose memory is told; fewest and most tokens of a sample


def main(arguments: Sequence[str] | None = None) -> dict:
    """Measure every task; see `--help`. Returns the result as JSON."""
    options = parser("metrics", __doc__)
    options.number("--rows", 400_000, "samples of the larger cell", quick=2_000)
    options.number("--repeats", 7, "of each timing", quick=3)
    bench = options.begin(arguments)
    for task, (shortest, longest, samples) in TASKS.items():
        drawn = made_up(shortest, longest, samples // 20 if bench.quick else samples)
        score_all: Callable[..., object] = score
        run = partial(score_all, *drawn)
        rates = [drawn[3][-1] / seconds for seconds in interleave({task: run}, bench.chosen.repeats)[task]]
        bench.row(task=task, samples=len(drawn[3]) - 1, tokens_per_s=summary(rates))
    rows = bench.by_rows(_prepare, _score, (bench.chosen.rows // 4, bench.chosen.rows))
    name = f"{MANY_ROWS} samples of a cell: GiB of the worker that scores it"
    bench.extrapolate(name, rows, MANY_ROWS, GIB, target=8.0)
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
