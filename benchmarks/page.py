"""Writes the tables of docs/performance.md from the result files in `results/`: `python -m benchmarks.page`.

`closelook bench NAME --json benchmarks/results/NAME-DEVICE.json` writes a result file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closelook.jobs.bench.record import met
from closelook.jobs.commands.listings.documents import DOCS, markdown, rewritten

PAGE = DOCS / "performance.md"
RESULTS = Path(__file__).with_name("results")
START, END = "<!-- performance: written by python -m benchmarks.page -->", "<!-- end of performance -->"
#: The benchmarks in the order of the page's sections, with the titles.
TITLES = {
    "lrp": "Gradient methods",
    "alti": "ALTI and ALTI-Logit",
    "job": "The job",
    "answers": "Long texts and answers",
    "peers": "Other packages, in texts a second of one processor",
}


def main() -> None:
    """Rewrite the part of docs/performance.md between the markers."""
    before = PAGE.read_text(encoding="utf-8")
    after = rewritten(before, section(results()), START, END)
    PAGE.write_text(after, encoding="utf-8")
    print(f"{PAGE.name}: {'up to date' if after == before else 'rewritten'}")


def results() -> list[tuple[Path, dict[str, Any]]]:
    """(file, content) of all result files, in the order of the sections."""
    files = sorted(RESULTS.glob("*.json"))
    stored = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in files]
    order = list(TITLES)
    return sorted(stored, key=lambda item: order.index(item[1]["bench"]))


def section(stored: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """The part of the page between the markers: a paragraph and tables for each result."""
    parts = [f"{paragraph(file, result)}\n\n{table(result)}\n" for file, result in stored]
    return "\n" + "".join(parts)


def paragraph(file: Path, result: Mapping[str, Any]) -> str:
    """The title of a result with its command, device, date, and torch; the file names all packages."""
    link = f"[all numbers](../{file.relative_to(DOCS.parent).as_posix()})"
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


if __name__ == "__main__":
    main()
