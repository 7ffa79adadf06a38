"""Writes the tables of docs/performance.md from the result files in `results/`: `python -m benchmarks.page`.

It writes the table of other packages in README.md, too.

`closelook bench NAME --json benchmarks/results/NAME-DEVICE.json` writes a result file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closelook.jobs.bench.record import met
from closelook.jobs.bench.storage import SHIPPED
from closelook.jobs.commands.listings.documents import DOCS, markdown, rewritten

PAGE = DOCS / "performance.md"
FOLDERS = (Path(__file__).with_name("results"), SHIPPED)
START, END = "<!-- performance: written by python -m benchmarks.page -->", "<!-- end of performance -->"
README = DOCS.parent / "README.md"
PEERS = "<!-- peers: written by python -m benchmarks.page -->", "<!-- end of peers -->"
#: The benchmarks in the order of the page's sections, with the titles.
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
    "peers": "Other packages, in texts a second of one processor",
}


def main() -> None:
    """Rewrite the parts of docs/performance.md and README.md between the markers."""
    stored = results()
    for page, between, (start, end) in ((PAGE, section(stored), (START, END)), (README, peers(stored), PEERS)):
        before = page.read_text(encoding="utf-8")
        after = rewritten(before, between, start, end)
        page.write_text(after, encoding="utf-8")
        print(f"{page.name}: {'up to date' if after == before else 'rewritten'}")


def results() -> list[tuple[Path, dict[str, Any]]]:
    """(file, content) of all result files, in the order of the sections."""
    files = sorted((path for folder in FOLDERS for path in folder.glob("*.json")), key=lambda path: path.name)
    stored = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in files]
    order = list(TITLES)
    return sorted(stored, key=lambda item: order.index(item[1]["bench"]))


def section(stored: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """The part of the page between the markers: a paragraph and tables for each result."""
    parts = [f"{paragraph(file, result)}\n\n{tables(result)}\n" for file, result in stored]
    return "\n" + "".join(parts)


def paragraph(file: Path, result: Mapping[str, Any]) -> str:
    """The title of a result with its command, device, date and packages."""
    packages = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
    link = f"[all numbers](../{file.relative_to(DOCS.parent).as_posix()})"
    return (
        f"{TITLES[result['bench']]}, by `{result['command']}` on {result['device']}, {result['written'][:10]} "
        f"({packages}; {link}):"
    )


def tables(result: Mapping[str, Any]) -> str:
    """Tables of a result's ratios: one with a column for each model, one of the ratios that belong to no model."""
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


def peers(stored: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """Texts a second of other packages beside ours, a row for each package and model; empty without results."""
    lines = []
    for _, result in stored:
        if result["bench"] != "peers":
            continue
        rates = {(row["geometry"], row["peer"], row["package"]): row for row in result["rows"] if "texts_per_s" in row}
        for (model, peer, package), row in rates.items():
            if package != peer:
                continue
            ours = rates[model, peer, "closelook"]["texts_per_s"]
            ratio = result["ratios"][f"{model}: {row['method']}, texts a second / {peer}"]
            cells = [ratio["peer"].partition(",")[0], model, row["method"], f"{row['texts_per_s']:.1f}", f"{ours:.1f}"]
            lines.append([*cells, f"{ratio['value']:.2f}"])
    if not lines:
        return ""
    header = ["package", "model", "method", "texts a second", "closelook's", "ratio"]
    return "\n" + markdown(header, lines)


def _value(ratio: Mapping[str, Any]) -> str:
    """A ratio's value with two decimals; with three if it misses its target, so that rounding does not hide it."""
    value, missed = ratio["value"], not met(ratio)
    digits = f"{value:.3f}" if missed else f"{value:.2f}"
    if not 0.01 <= abs(value) < 100:
        digits = f"{value:.3g}"
    return f"{digits}, missed" if missed else digits


if __name__ == "__main__":
    main()
