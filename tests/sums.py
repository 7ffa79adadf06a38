"""``python -m tests.sums``: measures what relevance sums to, and writes jobs/commands/listings/sums.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import nullcontext
from statistics import median

import closelook
from closelook.explaining.explanation import Explanation
from closelook.jobs.commands.listings.sums import FILE
from closelook.lrp_core.records.registry import OURS
from closelook.lrp_core.verification.stock import without_biases

MODELS = ("demo/gpt2", "demo/bert")  # the first that a method can explain
TEXTS = {
    "The keys to the cabinet ___ old.": "are",
    "The girl that saw the teachers ___ old.": "is",
    "The teachers ___ old.": "are",
    "The key to the cabinets ___ old.": "is",
    "The girls near the teacher ___ old.": "are",
}
OURS_WITH_SUMS = [
    name for name, method in closelook.METHODS.items() if method.conserves and closelook.METHODS.owner(name) == OURS
]


def measured() -> Iterator[dict[str, object]]:
    """The row of each method that is compared with a sum."""
    opened = {name: closelook.open_model(name) for name in MODELS}
    for method in OURS_WITH_SUMS:
        missing = closelook.METHODS[method].missing
        model = next(name for name in MODELS if not missing(opened[name].view.family.capabilities))
        view = opened[model].view
        row: dict[str, object] = {"method": method, "model": model}
        for name, setting in (("as_trained", nullcontext()), ("without_biases", without_biases(view.model))):
            with setting:
                row[name] = round(median(sums(opened[model], method)), 1)
        yield row


def sums(model: object, method: str) -> Iterator[float]:
    """The sum of the relevance of each text, in percent of the explained number or its change from a baseline."""
    for text, target in TEXTS.items():
        explanation = closelook.explain(text, target=target, model=model, method=method, explanation="target")
        assert isinstance(explanation, Explanation)
        [prediction] = explanation.to_dict()["predictions"]
        [numbers] = prediction["methods"]
        total = sum(numbers["relevance"])
        yield 100 * total / (total - numbers["residual"])


def main() -> None:
    rows = list(measured())
    with FILE.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
