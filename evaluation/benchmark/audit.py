"""The benchmark's audit: what came in, what was left out and why, and figures to hold the evidence against."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.text import Text

from evaluation.benchmark.samples import Filled, Row

GENERIC_COLUMNS = ["sample_id", "meta"]
VIEW_COLUMNS = ["sample_id", "length", "evidence_mask", "special_mask", "scope_mask"]


def of_samples(tables: Iterable[pa.Table]) -> dict[str, Any]:
    """Figures of generic samples (columns GENERIC_COLUMNS), shard by shard.

    `agreement` is the share of samples, in percent, whose evidence agrees in number with the target; null without any.
    """
    agrees: Counter[str] = Counter()
    attractors: Counter[str] = Counter()
    annotators: Counter[str] = Counter()
    for table in tables:
        for text in table["meta"].to_pylist():
            meta = json.loads(text)
            if "annotator" in meta:
                annotators[meta["annotator"]] += 1
                agrees[{True: "yes", False: "no", None: "unknown"}[meta["agrees"]]] += 1
            if "attractors" in meta:
                attractors[str(meta["attractors"])] += 1
    return {
        "annotators": dict(annotators),
        "agreement": 100 * agrees["yes"] / agrees.total() if agrees else None,
        "agrees": dict(agrees),
        "attractors": dict(sorted(attractors.items())),
    }


def of_views(tables: Iterable[pa.Table]) -> dict[str, Any]:
    """Figures of views (columns VIEW_COLUMNS), shard by shard.

    `evidence_share` is the mean share of evidence among the tokens that metrics look at by default (the scope where
    there is one, else those that are not special), `evidence_share_full` among all that are not special; in percent.
    Both are null for a task without evidence.
    """
    lengths, chosen_shares, full_shares = [], [], []
    for table in tables:
        if not table.num_rows:
            continue
        lengths.append(table["length"].to_numpy())
        if table["evidence_mask"].null_count:
            continue
        ordinary = lengths[-1] - _counts(table, "special_mask")
        evidence = _counts(table, "evidence_mask")
        scope = ordinary if table["scope_mask"].null_count else _counts(table, "scope_mask")
        chosen_shares.append(evidence / scope)
        full_shares.append(evidence / ordinary)
    tokens = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
    return {
        "accepted": len(tokens),
        "length_min": int(tokens.min()) if len(tokens) else None,
        "length_mean": float(tokens.mean()) if len(tokens) else None,
        "length_max": int(tokens.max()) if len(tokens) else None,
        "evidence_share": 100 * float(np.concatenate(chosen_shares).mean()) if chosen_shares else None,
        "evidence_share_full": 100 * float(np.concatenate(full_shares).mean()) if full_shares else None,
    }


def members(tables: Iterable[pa.Table], name: str) -> dict[str, list[str]]:
    """Sample ids (of columns GENERIC_COLUMNS) by what `meta` has under `name`."""
    samples: dict[str, list[str]] = {}
    for table in tables:
        for sample_id, meta in zip(*(table[column].to_pylist() for column in GENERIC_COLUMNS), strict=True):
            if (part := json.loads(meta).get(name)) is not None:
                samples.setdefault(part, []).append(sample_id)
    return dict(sorted(samples.items()))


def of_parts(
    tables: Iterable[pa.Table], parts: Mapping[str, list[str]], rows: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Figures of views by part of a task.

    `rows_in` counts the part's rows in the source (null where the manifest does not tell), of which `samples` have
    evidence and were to be seen.
    """
    shards = list(tables) if parts else []
    return {
        part: {
            "rows_in": rows.get(part),
            "samples": len(ids),
            **of_views(shard.filter(pc.is_in(shard["sample_id"], pa.array(ids, pa.string()))) for shard in shards),
        }
        for part in sorted({*parts, *rows})
        for ids in [parts.get(part, [])]
    }


def _counts(table: pa.Table, mask: str) -> np.ndarray:
    """True entries of every row of a list<bool> column [N]."""
    column = table[mask].combine_chunks()
    values = np.concatenate([[0], np.cumsum(column.flatten().to_numpy(zero_copy_only=False))])
    lengths = column.value_lengths().to_numpy()
    ends = np.cumsum(lengths)
    return values[ends] - values[ends - lengths]


_HEADINGS = (
    "task",
    "tokenizer",
    "rows in",
    "accepted",
    "rejected",
    "length min/mean/max",
    "evidence %",
    "paper %",
    "number agrees %",
    "attractors: samples",
)
_PART_HEADINGS = (
    "task",
    "part",
    "rows in",
    "samples",
    "samples %",
    "tokenizer",
    "accepted",
    "length mean",
    "evidence %",
)


def table(audit: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """The audit, {task: {tokenizer: figures}}, as the lines of a Markdown table."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for task, tokenizers in audit.items():
        for tokenizer, own in tokenizers.items():
            lengths = (own["length_min"], _number(own["length_mean"]), own["length_max"])
            length = " / ".join(map(str, lengths)) if own["accepted"] else ""
            counts = (own["rows_in"], own["accepted"], sum(own["rejects"].values()))
            attractors = ", ".join(f"{count}: {n}" for count, n in own["attractors"].items())
            shares = (_number(own["evidence_share"]), own["paper_share"] or "", _number(own["agreement"]))
            rows.append((task, tokenizer, *map(str, counts), length, *shares, attractors))
    return _aligned(rows) + _parts_table(audit)


def _parts_table(audit: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """The table of the tasks' parts, after an empty line; nothing where no task has parts."""
    rows: list[tuple[str, ...]] = [_PART_HEADINGS]
    for task, tokenizers in audit.items():
        for tokenizer, whole in tokenizers.items():
            for part, own in whole.get("parts", {}).items():
                given, samples = own["rows_in"], own["samples"]
                counts = (str(given or ""), str(samples), _number(100 * samples / given if given else None))
                figures = (str(own["accepted"]), _number(own["length_mean"]), _number(own["evidence_share"]))
                rows.append((task, part, *counts, tokenizer, *figures))
    return ["", *_aligned(rows)] if len(rows) > 1 else []


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """`rows`, the first of them headings, as Markdown."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [rows[0], tuple("-" * width for width in widths), *rows[1:]]
    return [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in lines]


def reasons(audit: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Why rows were left out, a line for each task and tokenizer."""
    return [
        f"{task}, {tokenizer}: {rejected(own['rejects'])}"
        for task, tokenizers in audit.items()
        for tokenizer, own in tokenizers.items()
    ]


def rejected(rejects: Mapping[str, int]) -> str:
    """Counts by reason in words, the most frequent first."""
    listed = ", ".join(f"{n} {reason}" for reason, n in sorted(rejects.items(), key=lambda item: -item[1]))
    return f"{sum(rejects.values())} rejected" + (f" ({listed})" if listed else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def judged(row: Row, colours: bool) -> Text:
    """A generic sample as a person judges it: evidence on green, the target in its slot, the foil and notes behind.

    Without `colours` evidence stands in [brackets], the target between *stars*.
    """
    text, marks = row["text"], [(*span, "black on green", "[]") for span in row["evidence"]]
    if row["slot"] is not None:
        filled = Filled.of(text, row["slot"], row["target"])
        text = filled.text
        marks = [(*filled.shifted((start, end)), *how) for start, end, *how in marks]
        marks.append((*filled.word, "bold yellow", "**"))
    shown, at = Text(), 0
    for first, end, style, (before, behind) in sorted(marks):
        start = max(first, at)  # what two spans share is shown once
        if start >= end:
            continue
        word = Text(text[start:end], style) if colours else Text(before + text[start:end] + behind)
        shown.append(text[at:start]).append(word)
        at = end
    shown.append(text[at:])
    if row["slot"] is not None and row["foil"] is not None:
        shown.append(f"  not: {row['foil']}", style="dim")
    if json.loads(row["meta"]).get("agrees") is False:
        shown.append("  numbers differ", style="red")
    return shown
