"""`closelook methods`: lists all methods from their records, on the screen and in docs/methods.md.

`python -m jobs.commands.listings.methods` writes the table of docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs.commands.listings.documents import DOCS, markdown, rewrite
from jobs.commands.terminal import say, say_table
from jobs.config.settings import FINER_KEYS
from jobs.methods import METHODS, method
from lrp_core.methods.record import Method
from lrp_core.records.capabilities import Capability
from lrp_core.records.option import plain
from lrp_core.records.registry import OURS

TOKENS = 30  # of the sample whose cost is shown
PAGE = DOCS / "methods.md"
START, END = "<!-- methods: written by python -m jobs.commands.listings.methods -->", "<!-- end of methods -->"


def show(name: str | None = None) -> None:
    """Print a table of all methods, or all facts about the method `name`.

    Raises UnsupportedMethod for an unknown name.
    """
    if name is not None:
        _show_one(method(name))
        return
    rows = []
    for record in METHODS.values():
        gives = ", ".join(kind for kind in record.gives if kind in FINER_KEYS)
        needs = ", ".join(need.name for need in record.needs)
        conserves = "yes" if record.conserves else "no"
        rows.append((record.name, record.family, gives, needs, conserves, _cost(record)))
    say_table(("method", "family", "also gives", "needs", "conserves", "cost"), rows, numbers=("cost",))
    say(f"cost: forward passes for a sample of {TOKENS} tokens; b: plus one backward pass for each explanation")
    say("`closelook methods NAME` describes a method and its options")


def _cost(record: Method) -> str:
    """The number of forward passes for a sample of TOKENS tokens, with "+ b" for a backward pass per explanation."""
    return f"{record.cost(TOKENS):g}" + (" + b" if record.rules else "")


def _needs(needs: Sequence[Capability]) -> str:
    """The requirements of a method on a model, in words."""
    return "; ".join(need.says for need in needs)


def _show_one(record: Method) -> None:
    """Print all facts about a method, its options, and its entry for a config."""
    say(f"{record.name}: {record.label}, version {record.version}, brought by {METHODS.owner(record.name)}", "bold")
    backwards = " and a backward for each explanation" if record.rules else ""
    facts = {
        "about": record.about,
        "family": record.family,
        "needs": _needs(record.needs) or "nothing of a model",
        "instead": record.instead and f"{record.instead}, where a model lacks that",
        "gives": ", ".join(record.gives),
        "explanations": ", ".join(record.explanations),
        "embeddings": ", ".join(record.embeddings),
        "conserves": "yes, relevance sums to the explained number" if record.conserves else "no",
        "seeded": "yes, the run's seed changes its numbers" if record.seeded else "",
        "cost": f"{record.cost(TOKENS):g} forwards of a sample of {TOKENS} tokens{backwards}",
        "scores low": record.weak.removeprefix("Expected: "),
        "source": record.source,
    }
    for fact, text in facts.items():
        if text:
            say(f"  {fact}: {text}")
    defaults = []
    for option in record.options:
        default = plain(option.default)
        defaults.append(f"{option.name}: {default}")
        say(f"  option {option.name}: {option.range}, by default {default}")
        say(f"    {option.help}")
        for value, need in option.needs.items():
            say(f"    {plain(value)} needs {need.says}")
    entry = f"{record.name}: {{{', '.join(defaults)}}}" if defaults else record.name
    say(f"  in a config: methods: [{entry}]")


def page_table() -> str:
    """The table of docs/methods.md: closelook's own methods, without those of packages."""
    rows = []
    for record in METHODS.values():
        if METHODS.owner(record.name) != OURS:
            continue
        options = ", ".join(f"`{option.name}` ({plain(option.default)})" for option in record.options)
        promises = "the explained number as its sum" if record.conserves else ""
        needs, cost = _needs(record.needs), _cost(record)
        rows.append((f"`{record.name}`", record.about, options, needs, cost, promises, record.source))
    headings = ("method", "what it is", "options", "needs", "cost", "promises", "source")
    return "\n" + markdown(headings, rows) + "\n"


if __name__ == "__main__":
    rewrite(PAGE, page_table(), START, END)
