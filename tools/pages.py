"""Writes the tables of docs/ that are made from records: `python -m tools.pages`.

`--architectures` first checks every architecture again, and writes the list that is shipped: a quarter of an hour.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from inspect import cleandoc
from pathlib import Path
from types import ModuleType
from typing import Any

from closelook.jobs.bench.record import met
from closelook.jobs.commands.listings import architectures
from closelook.jobs.commands.listings.architectures import HEADS, outcomes
from closelook.jobs.commands.listings.config import keys
from closelook.jobs.commands.listings.records import cost_of, needs_of
from closelook.jobs.commands.listings.sums import percent
from closelook.jobs.methods import METHODS
from closelook.lrp_core.operations import RULES
from closelook.lrp_core.operations.table import NAMES, TABLE, Handler, spellings
from closelook.lrp_core.records.option import plain
from closelook.lrp_core.records.registry import OURS

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
LISTED = ("tasks", "models")
#: The benchmarks in the order of docs/performance.md, with the titles.
TITLES = {
    "lrp": "Gradient methods",
    "alti": "ALTI and ALTI-Logit",
    "job": "The job",
    "answers": "Long texts and answers",
    "peers": "Other packages, in texts a second of one processor",
}


def methods() -> str:
    """The table of docs/methods.md: closelook's own methods, without those of packages."""
    rows = []
    for record in METHODS.values():
        if METHODS.owner(record.name) != OURS:
            continue
        options = ", ".join(f"`{option.name}` ({plain(option.default)})" for option in record.options)
        needs, cost = needs_of(record), cost_of(record)
        rows.append((f"`{record.name}`", record.about, options, needs, cost, percent(record), record.source))
    headings = ("method", "what it is", "options", "needs", "cost", "sum", "source")
    return "\n" + markdown(headings, rows) + "\n"


def config() -> str:
    """The table of docs/config.md; of sections that are not in LISTED it has the name alone."""
    rows = []
    for key in keys():
        section, inside, _ = key.path.partition(".")
        if inside and not section.startswith(LISTED):
            continue
        default = f"`{key.default}`" if key.default else ""
        rows.append((f"`{key.path}`", default, key.about))
    return markdown(("key", "default", "what it is"), rows)


def models() -> str:
    """The tables of docs/models.md: counts by head, and why each architecture that does not pass fails."""
    known = outcomes()
    counts = []
    for head in HEADS:
        passing = [not outcome.reason for outcome in known if outcome.head == head]
        counts.append((head, str(sum(passing)), str(len(passing))))
    rows = [(f"`{each.name}`", each.head, each.reason) for each in known if each.reason]
    summary = markdown(("head", "pass", "of"), counts)
    return f"\n{summary}\n{markdown(('model', 'head', 'outcome'), rows)}\n"


def operations() -> str:
    """The tables of docs/operations.md: for each module of rules, what its text says, and its functions of torch."""
    return "\n" + "\n".join(map(_rules, RULES)) + "\n"


def _rules(module: ModuleType) -> str:
    title, _, text = cleandoc(module.__doc__ or "").partition("\n")
    rows = [_row(handler, names) for handler, names in NAMES.items() if handler.__module__ == module.__name__]
    table = markdown(("functions", "what they compute", "relevance may enter"), rows)
    return f"### {title.removesuffix('.')}\n{text}\n\n{table}"


def _row(handler: Handler, names: list[str]) -> tuple[str, str, str]:
    known = [name for name in dict.fromkeys(names) if any(func in TABLE for func in spellings(name))]
    text = " ".join(cleandoc(handler.__doc__ or "").split())
    carries = next(TABLE[func].carries for func in spellings(known[0]))
    return ", ".join(f"`{name}`" for name in known), text, ", ".join(carries) if carries else "everywhere"


def performance() -> str:
    """The part of docs/performance.md that the result files make: a paragraph and a table for each."""
    stored = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"))]
    stored.sort(key=lambda item: list(TITLES).index(item[1]["bench"]))
    return "\n" + "".join(f"{paragraph(file, result)}\n\n{table(result)}\n" for file, result in stored)


def paragraph(file: Path, result: Mapping[str, Any]) -> str:
    """The title of a result with its command, device, date, and torch; the file names all packages."""
    link = f"[all numbers](../{file.relative_to(ROOT).as_posix()})"
    return (
        f"{TITLES[result['bench']]}, by `{result['command']}` on {result['device']}, {result['written'][:10]} "
        f"(torch {result['versions']['torch']}; {link}):"
    )


def table(result: Mapping[str, Any]) -> str:
    """The table of a result's ratios."""
    rows = []
    for name, ratio in result["ratios"].items():
        sign = "≤" if ratio["better"] == "lower" else "≥"
        rows.append([name, f"{sign} {ratio['target']:g}", _value(ratio)])
    return markdown(["ratio", "target", "value"], rows)


def _value(ratio: Mapping[str, Any]) -> str:
    """A ratio's value, with three decimals if it misses its target, so that rounding does not hide it."""
    value = ratio["value"]
    if met(ratio):
        return f"{value:.2f}" if 0.01 <= abs(value) < 100 else f"{value:.3g}"
    return f"{value:.3f}, missed"


#: By the name of the page.
TABLES = {table.__name__: table for table in (config, methods, models, operations, performance)}


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    for row in rows:
        lines.append(" | ".join(cell.replace("|", r"\|") for cell in row))
    return "".join(f"| {line} |\n" for line in lines)


def with_table(text: str, name: str, command: str, table: str) -> str:
    """`text` of a page with `table` between the lines that name it. Raises ValueError if it lacks these lines."""
    start, end = f"<!-- {name}: written by {command} -->\n", f"<!-- end of {name} -->"
    head, found_start, rest = text.partition(start)
    _, found_end, tail = rest.partition(end)
    if not (found_start and found_end):
        raise ValueError(f"the page lacks the lines {start} and {end}")
    return f"{head}{start}{table}{end}{tail}"


def rewritten(name: str) -> tuple[Path, str]:
    """(a page, its text with the table as it is now)."""
    page = DOCS / f"{name}.md"
    return page, with_table(page.read_text(encoding="utf-8"), name, "python -m tools.pages", TABLES[name]())


def main(arguments: Sequence[str]) -> None:
    """Rewrite all pages; with --architectures, first the list of what their checks find."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description=__doc__, allow_abbrev=False)
    parser.add_argument("--architectures", action="store_true", help="check every architecture again")
    if parser.parse_args(arguments).architectures:
        found = [asdict(outcome) for outcome in architectures.check()]
        with architectures.FILE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
    for name in TABLES:
        page, text = rewritten(name)
        if page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(f"{page.name} is rewritten")


if __name__ == "__main__":
    main(sys.argv[1:])
