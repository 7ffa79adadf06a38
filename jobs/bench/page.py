"""The tables of docs/performance.md, written from the result files in `results/`: `python -m jobs.bench.page`.

A result file is what `closelook bench NAME --json jobs/bench/results/NAME-DEVICE.json` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.bench.harness import met

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = Path(__file__).with_name("results")
START, END = "<!-- performance: written by python -m jobs.bench.page -->", "<!-- end of performance -->"
#: The order of sections, and what each is about.
TITLES = {
    "lrp": "Gradient methods",
    "alti": "ALTI and ALTI-Logit",
    "job": "The job",
    "store": "Requests of an object store",
    "plan": "Planning",
    "prune": "Pruning sweeps",
    "perturb": "Flipped tokens",
    "heads": "Methods of NormXLogit",
    "context": "Length of the text",
    "corpus": "A long corpus",
    "metrics": "Metrics",
    "prepare": "Preparation",
}


def main() -> None:
    """Rewrites the part of docs/performance.md between the markers."""
    before = PAGE.read_text(encoding="utf-8")
    after = rewritten(before, section(results()), START, END)
    PAGE.write_text(after, encoding="utf-8")
    print(f"{PAGE.name}: {'up to date' if after == before else 'rewritten'}")


def rewritten(text: str, block: str, start: str, end: str) -> str:
    """`text` with `block` between the lines `start` and `end`. Raises ValueError where they are missing."""
    head, found_start, rest = text.partition(start)
    _, found_end, tail = rest.partition(end)
    if not (found_start and found_end):
        raise ValueError(f"the page lacks the lines {start} and {end}")
    return f"{head}{start}\n{block}{end}{tail}"


def results(folder: Path = RESULTS) -> list[tuple[str, dict[str, Any]]]:
    """(file name, result) of every result file, in the order of the sections."""
    stored = [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    order = list(TITLES)
    return sorted(stored, key=lambda item: order.index(item[1]["bench"]))


def section(stored: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A paragraph and its tables for every result."""
    parts = [f"{paragraph(name, result)}\n\n{tables(result)}\n" for name, result in stored]
    return "\n" + "".join(parts)


def paragraph(name: str, result: Mapping[str, Any]) -> str:
    """The subject of a result, its date, command, device and packages."""
    packages = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
    link = f"[all numbers](../{(RESULTS / name).relative_to(ROOT).as_posix()})"
    return (
        f"{TITLES[result['bench']]}, by `{result['command']}` on {result['device']}, {result['written'][:10]} "
        f"({packages}; {link}):"
    )


def tables(result: Mapping[str, Any]) -> str:
    """Ratios of models, a column a model, and those of no model in particular."""
    models: list[str] = []
    of_models: dict[tuple[str, str], dict[str, str]] = {}
    others = []
    for name, ratio in result["ratios"].items():
        target = f"{'≤' if ratio['better'] == 'lower' else '≥'} {ratio['target']:g}"
        model = ratio.get("model") or ratio.get("geometry")
        if model is None:
            others.append([name, target, _value(ratio)])
            continue
        of_models.setdefault((name.removeprefix(f"{model}: "), target), {})[model] = _value(ratio)
        if model not in models:
            models.append(model)
    pivoted = [[*label, *(cells.get(model, "") for model in models)] for label, cells in of_models.items()]
    written = [_table(["ratio", "target", *models], pivoted), _table(["ratio", "target", "value"], others)]
    return "\n".join(filter(None, written))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; nothing without rows."""
    if not rows:
        return ""
    first, *lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in (header, *rows)]
    rule = "|" + "---|" * len(header) + "\n"
    return "".join([first, rule, *lines])


def _value(ratio: Mapping[str, Any]) -> str:
    """Two decimals, three of a missed target so that it is seen to be missed."""
    value, missed = ratio["value"], not met(ratio)
    digits = f"{value:.3f}" if missed else f"{value:.2f}"
    if not 0.01 <= abs(value) < 100:
        digits = f"{value:.3g}"
    return f"{digits}, missed" if missed else digits


if __name__ == "__main__":
    main()
