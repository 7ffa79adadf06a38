"""The methods there are, from their records: on the screen, and in docs/methods.md.

`python -m jobs.commands.methods` writes the latter.
"""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobs.methods import METHODS, method
from lrp_core.method import Method
from lrp_core.option import plain
from lrp_core.registry import OURS

TOKENS = 30  # of the sample whose cost is shown
PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
_UNSAID = (
    "tokens",
    "boundaries",
    "projections",
)  # in the table: what every method gives, and the check of those with a sum
START, END = "<!-- methods: written by python -m jobs.commands.methods -->", "<!-- end of methods -->"


def show(console: Console, name: str | None = None) -> None:
    """Print a table of every method, or all that the record `name` says.

    Raises UnsupportedMethod for a name that there is not.
    """
    if name is not None:
        _show_one(console, method(name))
        return
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("method", "family", "also gives", "needs", "conserves", "cost"):
        table.add_column(heading, justify="right" if heading == "cost" else "left")
    for record in METHODS.values():
        table.add_row(
            record.name,
            record.family,
            ", ".join(one for one in record.gives if one not in _UNSAID),
            ", ".join(need.name for need in record.needs),
            "yes" if record.conserves else "no",
            f"{record.cost(TOKENS):g}{' + b' if record.rules else ''}",
        )
    console.print(table)
    console.print(f"cost: in forwards, of a sample of {TOKENS} tokens; b: a backward for each explanation")
    console.print("`closelook methods NAME` shows one with its options")


def _show_one(console: Console, record: Method) -> None:
    title = f"{record.name}: {record.label}, version {record.version}, brought by {METHODS.owner(record.name)}"
    console.print(title, style="bold", markup=False)
    backwards = " and a backward for each explanation" if record.rules else ""
    facts = {
        "about": record.about,
        "family": record.family,
        "needs": " and ".join(need.says for need in record.needs) or "nothing of a model",
        "instead": record.instead and f"{record.instead}, where a model lacks that",
        "gives": ", ".join(record.gives),
        "explanations": ", ".join(record.explanations),
        "embeddings": ", ".join(record.embeddings),
        "conserves": "yes, relevance sums to the explained number" if record.conserves else "no",
        "seeded": "yes, the run's seed changes its numbers" if record.seeded else "",
        "cost": f"{record.cost(TOKENS):g} forwards of a sample of {TOKENS} tokens{backwards}",
        "scores low": record.weak.removeprefix("That is no fault: "),
        "source": record.source,
    }
    for fact, text in facts.items():
        if text:
            console.print(f"  {fact}: {text}", markup=False)
    for option in record.options:
        console.print(f"  option {option.name}: {option.range}, by default {plain(option.default)}", markup=False)
        console.print(f"    {option.help}", markup=False)
        for value, need in option.needs.items():
            console.print(f"    {plain(value)} needs {need.says}", markup=False)
    console.print(f"  in a config: methods: [{_written(record)}]", markup=False)


def page_table() -> str:
    """The table of docs/methods.md: every record of ours."""
    rows = [("method", "what it is", "options", "needs", "cost", "promises", "source"), ("---",) * 7]
    for record in METHODS.values():
        if METHODS.owner(record.name) == OURS:
            rows.append(
                (
                    f"`{record.name}`",
                    record.about,
                    ", ".join(f"`{option.name}` ({plain(option.default)})" for option in record.options),
                    " and ".join(need.says for need in record.needs),
                    f"{record.cost(TOKENS):g}{' + b' if record.rules else ''}",
                    "the explained number as its sum" if record.conserves else "",
                    record.source,
                )
            )
    return "\n" + "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows) + "\n"


def main() -> None:
    """Rewrites the table in docs/methods.md."""
    from jobs.bench.page import rewritten

    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), page_table(), START, END), encoding="utf-8")


def _written(record: Method) -> str:
    options = ", ".join(f"{option.name}: {plain(option.default)}" for option in record.options)
    return f"{record.name}: {{{options}}}" if options else record.name


if __name__ == "__main__":
    main()
