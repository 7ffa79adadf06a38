"""The tables of docs/performance.md, written from the result files in `results/`: `python -m benchmarks.page`.

A result file is what `closelook bench NAME --json jobs/bench/results/NAME-DEVICE.json` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.bench.record import met
from jobs.bench.storage import SHIPPED
from jobs.commands.listings.documents import DOCS, markdown, rewritten

PAGE = DOCS / "performance.md"
FOLDERS = (Path(__file__).with_name("results"), SHIPPED)
START, END = "<!-- performance: written by python -m benchmarks.page -->", "<!-- end of performance -->"
#: The order of sections, and what each is about.
TITLES = {
    "lrp": "Gradient methods",
    "alti": "ALTI and ALTI-Logit",
    "job": "The job",
    "chaos": "Runs under faults",
    "store": "Requests of an object store",
    "plan": "Planning",
    "prune": "Pruning sweeps",
    "perturb": "Flipped tokens",
    "heads": "Methods of NormXLogit",
    "context": "Length of the text",
    "answers": "Long answers",
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


def results() -> list[tuple[Path, dict[str, Any]]]:
    """(file, result) of every result file, in the order of the sections."""
    files = sorted((path for folder in FOLDERS for path in folder.glob("*.json")), key=lambda path: path.name)
    stored = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in files]
    order = list(TITLES)
    return sorted(stored, key=lambda item: order.index(item[1]["bench"]))


def section(stored: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """A paragraph and its tables for every result."""
    parts = [f"{paragraph(file, result)}\n\n{tables(result)}\n" for file, result in stored]
    return "\n" + "".join(parts)


def paragraph(file: Path, result: Mapping[str, Any]) -> str:
    """The subject of a result, its date, command, device and packages."""
    packages = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
    link = f"[all numbers](../{file.relative_to(DOCS.parent).as_posix()})"
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
    written = [(models, pivoted), (["value"], others)]
    return "\n".join(markdown(["ratio", "target", *columns], rows) for columns, rows in written if rows)


def _value(ratio: Mapping[str, Any]) -> str:
    """Two decimals, three of a missed target so that it is seen to be missed."""
    value, missed = ratio["value"], not met(ratio)
    digits = f"{value:.3f}" if missed else f"{value:.2f}"
    if not 0.01 <= abs(value) < 100:
        digits = f"{value:.3g}"
    return f"{digits}, missed" if missed else digits


if __name__ == "__main__":
    main()
