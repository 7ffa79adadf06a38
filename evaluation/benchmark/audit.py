"""The benchmark's audit, and its export as a folder that `datasets` loads: a Parquet file for each shard, and a card.

The audit counts rows read and rejected, with reasons, and the share of evidence in the tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.text import Text

from closelook.evaluation.benchmark.samples import Filled, Row, meta_of
from closelook.evaluation.tasks import SOURCES, Task
from closelook.lrp_core.records.types import UserError

Audit = Mapping[str, Mapping[str, Mapping[str, Any]]]  # figures by task and tokenizer
GENERIC_COLUMNS = ["sample_id", "meta"]
VIEW_COLUMNS = ["sample_id", "length", "evidence_mask", "special_mask", "scope_mask"]
_AGREES = {True: "yes", False: "no", None: "unknown"}


def of_samples(tables: Iterable[pa.Table]) -> dict[str, Any]:
    """Figures of generic samples, from their shards, `tables` of GENERIC_COLUMNS.

    `attractors` counts samples by the number of attractors, `agrees` annotated
    samples by whether evidence and target agree in number ("yes", "no", "unknown"); `agreement` is the percentage of
    "yes", None without annotated samples.
    """
    notes = [json.loads(text) for table in tables for text in table["meta"].to_pylist()]
    annotated = [meta for meta in notes if "annotator" in meta]
    agrees = Counter(_AGREES[meta["agrees"]] for meta in annotated)
    attractors = Counter(str(meta["attractors"]) for meta in notes if "attractors" in meta)
    return {
        "agreement": 100 * agrees["yes"] / agrees.total() if agrees else None,
        "agrees": dict(agrees),
        "attractors": dict(sorted(attractors.items())),
    }


def of_views(tables: Iterable[pa.Table]) -> dict[str, Any]:
    """Figures of views, from their shards, `tables` of VIEW_COLUMNS: their number, lengths and shares of evidence.

    `evidence_share` is the mean percentage of evidence among the tokens that metrics use by default: the scope, or
    without one all tokens that are not special. `evidence_share_full` is the percentage among all tokens that are not
    special. Samples without evidence do not count; both are None if no sample has any.
    """
    lengths: list[int] = []
    chosen: list[float] = []  # percentages of evidence by sample
    full: list[float] = []
    for table in tables:
        lengths += table["length"].to_pylist()
        marked = table.filter(table["evidence_mask"].is_valid())
        evidence = _counts(marked["evidence_mask"])
        ordinary = marked["length"].to_numpy() - _counts(marked["special_mask"])
        scope = np.where(marked["scope_mask"].is_valid(), _counts(marked["scope_mask"]), ordinary)
        chosen += (100 * evidence / scope).tolist()
        full += (100 * evidence / ordinary).tolist()
    return {
        "accepted": len(lengths),
        "length_min": min(lengths, default=None),
        "length_mean": _mean(lengths),
        "length_max": max(lengths, default=None),
        "evidence_share": _mean(chosen),
        "evidence_share_full": _mean(full),
    }


def _counts(masks: pa.ChunkedArray) -> np.ndarray:
    """The number of True entries in each of the lists of bools, [N]; 0 for null."""
    lists = masks.combine_chunks()
    return np.bincount(pc.list_parent_indices(lists), weights=lists.flatten(), minlength=len(lists))


def _mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return float(np.mean(values)) if values else None


def members(tables: Iterable[pa.Table], name: str) -> dict[str, list[str]]:
    """Sample ids by the value that their `meta` has under `name`; samples without it are left out.

    `tables` have GENERIC_COLUMNS.
    """
    samples: dict[str, list[str]] = {}
    for row in chain.from_iterable(table.to_pylist() for table in tables):
        if (part := meta_of(row).get(name)) is not None:
            samples.setdefault(part, []).append(row["sample_id"])
    return dict(sorted(samples.items()))


def of_parts(
    tables: Iterable[pa.Table], parts: Mapping[str, list[str]], rows: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """The figures of `of_views` by part of a task.

    `parts` are the sample ids of each part, `rows` the number of its rows in the source, which is `rows_in` (None if
    unknown); `samples` counts the part's ids.
    """
    shards = list(tables) if parts else []
    figures = {}
    for part in sorted({*parts, *rows}):
        ids = parts.get(part, [])
        chosen = pa.array(ids, pa.string())
        views = of_views(shard.filter(pc.is_in(shard["sample_id"], chosen)) for shard in shards)
        figures[part] = {"rows_in": rows.get(part), "samples": len(ids), **views}
    return figures


def table(audit: Audit) -> list[str]:
    """The audit, {task: {tokenizer: figures}}, as the lines of a Markdown table; a table of parts follows it."""
    rows, part_rows = [], []
    for task, tokenizer, figures in _each(audit):
        lengths = (figures["length_min"], figures["length_mean"], figures["length_max"])
        rows.append(
            {
                "task": task,
                "tokenizer": tokenizer,
                "rows in": figures["rows_in"],
                "accepted": figures["accepted"],
                "rejected": sum(figures["rejects"].values()),
                "length min/mean/max": " / ".join(map(_cell, lengths)) if figures["accepted"] else "",
                "evidence %": figures["evidence_share"],
                "paper %": figures["paper_share"],
                "number agrees %": figures["agreement"],
                "attractors: samples": ", ".join(f"{count}: {n}" for count, n in figures["attractors"].items()),
            }
        )
        for part, of_part in figures.get("parts", {}).items():
            part_rows.append(
                {
                    "task": task,
                    "part": part,
                    "rows in": of_part["rows_in"],
                    "samples": of_part["samples"],
                    "samples %": 100 * of_part["samples"] / of_part["rows_in"] if of_part["rows_in"] else None,
                    "tokenizer": tokenizer,
                    "accepted": of_part["accepted"],
                    "length mean": of_part["length_mean"],
                    "evidence %": of_part["evidence_share"],
                }
            )
    return _aligned(rows) + ([""] if part_rows else []) + _aligned(part_rows)


def _each(audit: Audit) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Every (task, tokenizer, figures) of an audit."""
    for task, tokenizers in audit.items():
        for tokenizer, figures in tokenizers.items():
            yield task, tokenizer, figures


def _aligned(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The lines of a Markdown table with aligned columns; the keys of each row are the headings. None without rows."""
    if not rows:
        return []
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells]


def _cell(value: object) -> str:
    """A number as text, with one decimal if it is no whole number; "" for None."""
    if value is None:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def reasons(audit: Audit) -> list[str]:
    """The reasons of rejects, a line for each task and tokenizer."""
    return [f"{task}, {tokenizer}: {rejected(figures['rejects'])}" for task, tokenizer, figures in _each(audit)]


def rejected(rejects: Mapping[str, int]) -> str:
    """The counts of rejects by reason as text, the most frequent reason first.

    >>> rejected({"too long": 1, "empty text": 2})
    '3 rejected (2 empty text, 1 too long)'
    """
    counts = Counter(rejects)
    listed = ", ".join(f"{n} {reason}" for reason, n in counts.most_common())
    return f"{counts.total()} rejected" + (f" ({listed})" if listed else "")


def marked(row: Row, colours: bool) -> Text:
    """A generic sample as text for a person to check: evidence on green, the target in its slot, then the foil.

    Without `colours` evidence stands in [brackets], the target between *stars*. A note follows where evidence and
    target differ in grammatical number.
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
    if meta_of(row).get("agrees") is False:
        shown.append("  numbers differ", style="red")
    return shown


def export(
    shards: Mapping[str, Iterable[pa.Table]],
    records: Mapping[str, Mapping[str, Any]],
    audit: Audit,
    to: Path,
    tasks: Mapping[str, Task],
) -> list[Path]:
    """Write `to`/<task>/*.parquet and the card `to`/README.md, and return the files written.

    `shards`, `records` (what the manifests say) and `audit` are by task.

    Raises UserError when the folder is not empty or cannot be written.
    """
    if to.is_dir() and any(to.iterdir()):
        raise UserError(f"{to} is not empty; give a new folder")
    written = []
    try:
        for task, tables in shards.items():
            (to / task).mkdir(parents=True, exist_ok=True)
            for number, table in enumerate(tables):
                written.append(to / task / f"{number:05d}.parquet")
                pq.write_table(table, written[-1])
        written.append(to / "README.md")
        written[-1].write_text(card(records, audit, tasks), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {to}: {error.strerror}") from error
    return written


def card(records: Mapping[str, Mapping[str, Any]], audit: Audit, tasks: Mapping[str, Task]) -> str:
    """The dataset card, with the front matter that tells `datasets` where each task is."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("closelook.evaluation", "benchmark"),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,
    )
    listed = [tasks[name] for name in records]
    lines = "\n".join(table(audit))
    return environment.get_template("card.md").render(records=records, tasks=listed, sources=SOURCES, table=lines)
