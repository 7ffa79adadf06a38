"""The static site: pages that work from file:// without a network, with the folders of their figures and data.

Every string is escaped by the templates, JSON islands cannot end their script element, sample text reaches the page
through textContent alone, and a content policy admits no script but the page's own, images of the site, and no request;
pages whose data are in leaves (evaluation/report/leaves.py) may load these into frames, and nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from evaluation.report import heatmap
from evaluation.report.explorer import Explorer
from evaluation.report.leaderboard import Beyond, boards, glossary, leaderboard, left_out, weak_points
from evaluation.report.leaves import Leaves, script_hash
from evaluation.report.neuron_explorer import NeuronExplorer
from evaluation.report.overlay import css_ramp
from evaluation.report.render import comma_separated, decimals, latex, markdown, number, spans, why
from evaluation.report.results import Results
from evaluation.report.table import TOLD, Column, Table
from evaluation.scoring.metrics import METRICS, OVERVIEW, lead
from evaluation.scoring.statistics import stars

TEMPLATES = Path(__file__).with_name("templates")
PAGES = {
    "index.html": "Overview",
    "tables.html": "Tables",
    "faithfulness.html": "Faithfulness",
    "controls.html": "Controls",
    "curves.html": "Pruning and runtime",
    "neurons.html": "Neurons",
    "samples.html": "Samples",
}
_OF_PARTS = ("faithfulness.html", "controls.html", "curves.html", "neurons.html")
SCRIPTS = ("leaves.js", "heatmap.js", "site.js", "samples.js", "neurons.js")
_DOTS = 9  # colours of models in style.css
_DOT_TOP, _DOT_STEP = 7, 9  # pixels: a row holds one dot a model, a little below each other


@dataclass(frozen=True)
class Provenance:
    """The configuration, versions, data and models behind the numbers; on every page."""

    run: str
    config: str  # as YAML
    versions: Mapping[str, str]  # `closelook` among them
    data: Sequence[tuple[str, str]] = ()  # (what, hash)
    models: Sequence[tuple[str, str]] = ()  # (name, identity)

    @property
    def config_hash(self) -> str:
        return hashlib.sha256(self.config.encode()).hexdigest()


@dataclass(frozen=True)
class Figure:
    """A plot as SVG, and once more for narrow screens; widths are in pixels. `data` is CSV, "" where a table has it."""

    name: str
    title: str
    caption: str
    svg: str
    width: int
    narrow: str
    narrow_width: int
    data: str = ""

    @property
    def files(self) -> dict[str, str]:
        """Its files by their names in the site."""
        files = {f"figures/{self.name}.svg": self.svg, f"figures/narrow/{self.name}.svg": self.narrow}
        if self.data:
            files[f"figures/{self.name}.csv"] = self.data
        return files


@dataclass(frozen=True)
class Part:
    """A part of a page of figures; `how` tells what to run when there is nothing to show."""

    title: str
    how: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    note: str = ""  # what is missing of it
    page: str = "curves.html"
    details: Sequence[Table] = ()  # behind a click


@dataclass(frozen=True)
class Site:
    """All that the pages show."""

    provenance: Provenance
    results: Results
    tables: Sequence[Table]  # the first two are the overview and the overview beside random
    parts: Sequence[Part] = ()
    samples: Explorer = field(default_factory=lambda: Explorer.of(()))
    summary: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    neurons: NeuronExplorer = field(default_factory=lambda: NeuronExplorer.of(()))
    beyond: Beyond = field(default_factory=Beyond)

    def files(self, close_look: bool = False) -> dict[str, str]:
        """Every file of the site by its name. `close_look` adds the paper's numbers to Markdown and LaTeX."""
        published: dict[str, Any] = {"published": bool(self.results.published)}
        wide, long = self.tables[:2]
        short = [table for table in self.tables if table is not long]
        files = {
            "index.html": self._page("index.html", tables=self.tables, **published, **self._overview(wide, long)),
            "tables.html": self._page("tables.html", tables=short, **published),
            "samples.html": self._page("samples.html", self.samples.leaves, explorer=self.samples),
        }
        for page in _OF_PARTS:
            leaves = self.neurons.leaves if page == "neurons.html" else ()
            parts = [part for part in self.parts if part.page == page]
            shown = [table for part in parts for table in part.tables]
            printed = any(cell.reference is not None for table in shown for row in table.rows for cell in row.cells)
            files[page] = self._page(page, leaves, parts=parts, published=printed, neurons=self.neurons)
        tables = [leaderboard(self.results, self.beyond), *self.tables]
        for part in self.parts:
            tables += [*part.tables, *part.details]
            for figure in part.figures:
                files |= figure.files
        for table in tables:
            files[f"tables/{table.name}.md"] = markdown(table, close_look)
            files[f"tables/{table.name}.tex"] = latex(table, close_look)
            files[f"tables/{table.name}.csv"] = comma_separated(table)
        for records in (*self.samples.leaves, *self.neurons.leaves):
            files |= records.files
        lines = [f"# {self.provenance.run}", "", self.summary, "", *map(str, self.notes)]
        lines += [markdown(table, close_look) for table in self.tables]
        files["report.md"] = "\n".join(lines)
        return files

    def _page(self, name: str, leaves: Sequence[Leaves] = (), **values: Any) -> str:
        facts = {"title": PAGES[name], "page": name, "pages": list(PAGES.items()), "provenance": self.provenance}
        return _render(name, leaves, **facts | values)

    def _overview(self, wide: Table, long: Table) -> dict[str, Any]:
        results = self.results
        methods = [results.label(method) for method in results.ordered_methods()]
        board = [(each, list(weak_points(results, each))) for each in boards(results, self.beyond)]
        words, metrics = glossary(results), METRICS.values()
        return {"wide": wide, "long": long, "boards": board, "metric": METRICS[lead()], "glossary": words} | {
            "label": results.label,
            "left_out": left_out(results, self.beyond),
            "terms": defaultdict(str, words),
            "summary": self.summary,
            "notes": self.notes,
            "tasks": results.scored,
            "models": list(results.models),
            "looks": [_look(at) for at, _ in enumerate(results.models)],
            "methods": methods,
            "metrics": [metric.label for metric in metrics],
            "extra": [metric.label for metric in metrics if OVERVIEW not in metric.shown],  # shown on demand
            "panels": [_panel(results, long, task, methods) for task in results.scored],
        }


def explain_page(entries: Sequence[Mapping[str, Any]], title: str, provenance: Provenance) -> str:
    """Explained predictions (of :func:`heatmap.data`) as a page of their own, for `closelook explain --html`."""
    facts = {"page": "", "pages": [], "provenance": provenance}
    explorer = Explorer.of(entries, budget_bytes=math.inf)
    return _render("explain.html", title=title, explorer=explorer, leaves=explorer.leaves, **facts)


def comparison_page(
    names: tuple[str, str], facts: Sequence[str], table: Table, explorer: Explorer, provenance: Provenance
) -> str:
    """Two runs on a page of their own, for `closelook compare --html`: facts in lines, scores, samples that both have.

    Models of the explorer are named by their run, and its `pairs` tell the same model of the other run.
    """
    known: dict[str, Any] = {"page": "", "pages": [], "provenance": provenance, "explorer": explorer}
    title = " against ".join(names)
    return _render("comparison.html", explorer.leaves, title=title, facts=facts, t=table, **known)


def _panel(results: Results, long: Table, task: str, methods: Sequence[str]) -> dict[str, Any]:
    """Dots of the first metric, a row a method that has any; the baseline is the mean over models."""
    own = [row for row in long.rows if row.section == task and row.cells[0].value is not None]
    shown = [model for model in results.models if any(row.labels[0] == model for row in own)]
    rows, base = [], []
    for method in methods:
        dots = []
        for row in own:
            model, cell = row.labels[0], row.cells[0]
            if row.labels[1] != method or cell.value is None:
                continue
            if results.baseline is not None and method == results.label(results.baseline):
                base.append(cell.value)
            title = f"{model}, {method}: {number(cell.value, 1)} %"
            look = {"model": _look(results.models.index(model)), "top": _DOT_TOP + _DOT_STEP * shown.index(model)}
            dots.append(look | {"value": round(cell.value, 2), "low": cell.low, "high": cell.high, "title": title})
        if dots:
            rows.append({"label": method, "dots": dots})
    height = 2 * _DOT_TOP + _DOT_STEP * (len(shown) - 1) + 11
    baseline = round(sum(base) / len(base), 2) if base else None
    return {"task": task, "rows": rows, "baseline": baseline, "height": height}


def _look(model: int) -> str:
    """The classes in style.css of a model's dot: colours in turn, rings where all of them are taken."""
    return f"m{model % _DOTS}{' ring' * (model >= _DOTS)}"


def _render(name: str, leaves: Sequence[Leaves] = (), **values: Any) -> str:
    script = Markup("\n".join((TEMPLATES / script).read_text(encoding="utf-8") for script in SCRIPTS))
    palette = {"--pos": heatmap.POSITIVE, "--neg": heatmap.NEGATIVE}
    colours = "".join(f"{name}:rgb{colour};" for name, colour in palette.items()) + f"--of-pictures:{css_ramp()};"
    style = Markup(":root{" + colours + "}\n" + (TEMPLATES / "style.css").read_text(encoding="utf-8"))
    values |= {"leaves": leaves, "framed": any(each.files for each in leaves)}
    return _environment().get_template(name).render(script=script, policy=script_hash(script), style=style, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"stars": stars, "why": why, "prose": _prose, "edges": _edges, "choices": _choices}
    environment.filters |= {
        "number": lambda value, column: number(value, decimals(value, column), column.signed),
        "signed": lambda value, column: number(value, decimals(value, column), signed=True),
        "spans": lambda columns, name: spans(columns, lambda column: getattr(column, name)),
    }
    environment.globals["told"] = TOLD  # a row that stays whatever methods are shown
    return environment


def _prose(text: str) -> Markup:
    """`text` escaped, with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _choices(table: Table) -> list[tuple[str, list[str]]]:
    """(what names rows, its values) for everything that tells rows of the table apart."""
    names = [(table.section, [row.section for row in table.rows])]
    names += [(head, [row.labels[at] for row in table.rows]) for at, head in enumerate(table.heads)]
    choices = [(name, list(dict.fromkeys(values))) for name, values in names]
    return [(name, values) for name, values in choices if len(values) > 1]


def _edges(columns: Sequence[Column]) -> set[int]:
    """The columns at which a group of columns begins."""
    return {
        at for at, column in enumerate(columns) if column.group and (not at or columns[at - 1].group != column.group)
    }
