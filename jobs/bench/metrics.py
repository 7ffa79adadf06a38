"""`closelook bench metrics`: scoring many samples at once against a loop over samples, and the memory of many.

Made-up relevance with the lengths of the tasks, one variant of choices of tokens; one core. The loop is what a careful
person writes with numpy for one sample at a time. Memory is that of a process that scores a cell of two numbers of
samples, with two variants of relevance and both choices of tokens: at that rate follows that of ten million samples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.schema import RELEVANCE, VIEW
from evaluation.scoring.metrics import METRICS, score
from jobs.bench.harness import Bench, device_name, in_own_process, interleave, paired_ratio, parser, summary
from jobs.stages.evaluate import CellToScore, score_cells
from jobs.store import Artifact, Store

#: Fewest and most tokens of a sample, and samples, by task.
TASKS = {"ra": (4, 21, 1_000), "sva": (8, 55, 30_000), "qa": (60, 400, 10_000)}
TARGET = 20
WANTED_ROWS, MEMORY_TARGET_GIB = 10_000_000, 8.0
SHARD_ROWS = 10_000
LENGTHS = (8, 30)  # tokens of a sample whose memory is asked for, fewest and most


def main(arguments: Sequence[str] | None = None) -> dict:
    """Measures every task; see `--help`. Returns the JSON."""
    known = parser("metrics", __doc__ or "")
    known.add_argument(
        "--rows", type=int, default=400_000, help="samples of the larger cell, default 400000; quick 2000"
    )
    options = known.parse_args(arguments)
    bench = Bench("metrics", device_name("cpu"))
    for task, (shortest, longest, samples) in TASKS.items():
        drawn = made_up(shortest, longest, samples // 20 if options.quick else samples)
        # The loop sees every tenth sample: its cost is the same for each, and it is slow.
        part = every(10, *drawn)
        tokens, part_tokens = int(drawn[3][-1]), int(part[3][-1])
        runs = {"at once": partial(_run, score, drawn), "loop": partial(_run, loop, part)}
        seconds = interleave(runs, repeats=3 if options.quick else 7)
        rates = {
            "at once": [tokens / s for s in seconds["at once"]],
            "loop": [part_tokens / s for s in seconds["loop"]],
        }
        for name, rate in rates.items():
            bench.row(task=task, scoring=name, samples=len(drawn[3]) - 1, tokens_per_s=summary(rate))
        ratio = paired_ratio(rates["at once"], rates["loop"])
        bench.ratio(f"{task}: tokens/s at once / loop", ratio.pop("median"), TARGET, "higher", **ratio)
    many_rows(bench, 2_000 if options.quick else options.rows)
    return bench.finish(options)


def many_rows(bench: Bench, rows: int) -> None:
    """The largest memory of a process that scores a cell, of a quarter of the rows and of all."""
    peaks = {}
    for size in (rows // 4, rows):
        with tempfile.TemporaryDirectory(prefix="closelook-bench-") as root:
            _prepare(root, size)
            peaks[size], seconds = in_own_process(_score, root, size)
        bench.row(what="many rows", rows=size, peak_bytes=peaks[size], seconds=seconds)
        print(f"{size} samples of a cell: {seconds:.1f} s, {peaks[size] / 2**30:.2f} GiB at most", flush=True)
    each = (peaks[rows] - peaks[rows // 4]) / (rows - rows // 4)
    whole = (peaks[rows] + each * (WANTED_ROWS - rows)) / 2**30
    name = f"{WANTED_ROWS} samples of a cell: GiB of the worker that scores it"
    bench.ratio(name, whole, MEMORY_TARGET_GIB, "lower", measured_rows=rows, bytes_a_row=round(each, 1))


_CELL = Artifact("relevance", model="m", task="sva", dtype="float32", method="lrp")


def _score(root: str, rows: int) -> None:
    store, scores = Store(root), Artifact("scores", model="m", task="sva", dtype="float32", method="lrp")
    shards, views = tuple(store.files("relevance")), tuple(store.files("views"))
    job = CellToScore(_CELL, shards, views, scores, [[name, 1] for name in METRICS], rows)
    (scored,) = score_cells(store, [job])
    if scored.failure or scored.defects:
        raise RuntimeError(f"the made-up relevance was not scored: {scored}")


def _prepare(root: str, rows: int) -> None:
    """Views and relevance of a cell, in shards."""
    store, draw = Store(root), np.random.default_rng(0)
    for start in range(0, rows, SHARD_ROWS):
        relevance, evidence, chosen, offsets = made_up(*LENGTHS, min(SHARD_ROWS, rows - start))
        ids = [f"{start + i:020x}" for i in range(len(offsets) - 1)]
        lists = partial(pa.ListArray.from_arrays, pa.array(offsets, pa.int32()))
        view = {"sample_id": ids, "evidence_mask": lists(pa.array(evidence)), "special_mask": lists(pa.array(~chosen))}
        view |= {"length": np.diff(offsets), "input_ids": lists(pa.array(np.zeros(offsets[-1], np.int32)))}
        _write(store, f"views/{start:09d}.parquet", view, VIEW)
        variants = {
            "explanation": ["contrastive"] * len(ids) + ["target"] * len(ids),
            "embedding": ["full"] * 2 * len(ids),
        }
        values = pa.concat_arrays([lists(pa.array(relevance)), lists(pa.array(-relevance))])
        logits = {name: draw.standard_normal(len(ids)).tolist() * 2 for name in ("logit_target", "logit_foil")}
        _write(
            store,
            f"relevance/{start:09d}.parquet",
            {"sample_id": ids * 2, "relevance": values, **variants, **logits},
            RELEVANCE,
        )


def _write(store: Store, path: str, known: dict[str, Any], schema: pa.Schema) -> None:
    """The columns that are known; of the others, null or zero."""
    rows = len(known["sample_id"])
    for field in schema:
        if field.name not in known:
            known[field.name] = pa.nulls(rows, field.type) if field.nullable else np.zeros(rows)
    store.write_shard(path, pa.table(known), schema)


def _run(scoring: Callable[..., Any], samples: tuple[np.ndarray, ...]) -> None:
    scoring(*samples)


def made_up(shortest: int, longest: int, samples: int) -> tuple[np.ndarray, ...]:
    """Relevance, evidence, chosen [S] and offsets [N + 1]: the first token special, one of the others evidence."""
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(shortest, longest + 1, samples))[::-1]  # as the attribute stage writes them
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    relevance = rng.standard_normal(offsets[-1]).astype(np.float32)
    evidence, chosen = np.zeros(offsets[-1], bool), np.ones(offsets[-1], bool)
    evidence[offsets[:-1] + rng.integers(1, lengths)] = True
    chosen[offsets[:-1]] = False
    return relevance, evidence, chosen, offsets


def every(
    step: int, relevance: np.ndarray, evidence: np.ndarray, chosen: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Every `step`-th sample."""
    lengths = np.diff(offsets)[::step]
    token = np.concatenate([np.arange(start, start + n) for start, n in zip(offsets[:-1:step], lengths, strict=True)])
    return relevance[token], evidence[token], chosen[token], np.concatenate(([0], np.cumsum(lengths)))


def loop(
    relevance: np.ndarray, evidence: np.ndarray, chosen: np.ndarray, offsets: np.ndarray
) -> dict[str, list[float]]:
    """The metrics of :func:`score`, one sample and one metric after the other."""
    values: dict[str, list[float]] = {name: [] for name in ONE_SAMPLE}
    for start, end in pairwise(offsets):
        mask = chosen[start:end]
        r, e = relevance[start:end][mask], evidence[start:end][mask]
        for name, function in ONE_SAMPLE.items():
            values[name].append(function(r, e))
    return values


def _mrr(r: np.ndarray, e: np.ndarray) -> float:
    dense_rank = np.unique(r, return_inverse=True)[1] + 1
    return (1 / (len(r) - dense_rank[e] + 1)).max()


def _rma(r: np.ndarray, e: np.ndarray) -> float:
    positive = np.clip(r, 0, None)
    return positive[e].sum() / positive.sum() if positive.any() else 0.0


def _overlap(first: np.ndarray, second: np.ndarray) -> float:
    return (first & second).sum() / (first | second).sum()


def _top(r: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Marks of the tokens of largest relevance, as many as there is evidence."""
    marks = np.zeros(len(r), bool)
    marks[np.argsort(-r, kind="stable")[: e.sum()]] = True
    return marks


def _iou_soft(r: np.ndarray, e: np.ndarray) -> float:
    positive = np.clip(r, 0, None)
    share = positive / positive.max() if positive.any() else positive
    return np.minimum(share, e).sum() / np.maximum(share, e).sum()


def _ap(r: np.ndarray, e: np.ndarray) -> float:
    values, rank = np.unique(-r, return_inverse=True)
    hits = np.bincount(rank, e, len(values))
    precision = hits.cumsum() / np.bincount(rank, minlength=len(values)).cumsum()
    return (hits * precision).sum() / e.sum()


def _dot_softmax(r: np.ndarray, e: np.ndarray) -> float:
    share = np.exp(r - r.max())
    return share[e].sum() / share.sum()


ONE_SAMPLE: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pg": lambda r, e: float(e[r.argmax()]),
    "pg2": lambda r, e: float(e[np.argsort(-r, kind="stable")[:2]].any()),
    "mrr": _mrr,
    "mrr_strict": lambda r, e: 1 / (1 + (r > r[e].max()).sum()),
    "rma": _rma,
    "pta": lambda r, e: ((r > 0) == e).mean(),
    "iou": lambda r, e: _overlap(_top(r, e) & (r > 0), e),
    "iou_positive": lambda r, e: _overlap(r > 0, e),
    "iou_soft": _iou_soft,
    "rra": lambda r, e: (_top(r, e) & e).sum() / e.sum(),
    "ap": _ap,
    "dot": _rma,
    "dot_softmax": _dot_softmax,
}


if __name__ == "__main__":
    main()
