"""The static site: HTML pages that work from file:// without a network, with folders of figures and data.

Pages are safe whatever samples contain. Templates escape every string, JSON islands cannot end their script element,
and the text of samples reaches the page through textContent only. A content security policy admits the page's script,
images of the site, and no requests. Pages whose data are in leaves (evaluation/report/leaves.py) may load
these into frames.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from closelook.evaluation.report.explorers import Explorer, NeuronExplorer, SourcesExplorer
from closelook.evaluation.report.frame import FRAME, Point, frame_csv, numbers
from closelook.evaluation.report.heatmaps import tokens as heatmap
from closelook.evaluation.report.heatmaps.overlay import css_ramp
from closelook.evaluation.report.leaves import Entry, Leaves, script_hash
from closelook.evaluation.report.overview.glossary import TERMS
from closelook.evaluation.report.overview.leaderboard import glossary, leaderboard, left_out, table_of, weak_points
from closelook.evaluation.report.overview.standings import Board
from closelook.evaluation.report.render import decimals, number, reason
from closelook.evaluation.report.results import Results
from closelook.evaluation.report.table import SMALLEST_ROW, Column, Table
from closelook.evaluation.scoring.metrics import METRICS, OVERVIEW, lead
from closelook.evaluation.scoring.statistics import stars

TEMPLATES = Path(__file__).with_name("templates")
PAGES = {
    "index.html": "Overview",
    "tables.html": "Tables",
    "faithfulness.html": "Faithfulness",
    "sources.html": "Sources",
    "controls.html": "Controls",
    "curves.html": "Pruning and runtime",
    "neurons.html": "Neurons",
    "samples.html": "Samples",
}
_OF_PARTS = ("faithfulness.html", "sources.html", "controls.html", "curves.html", "neurons.html")  # made of `Part`s
SCRIPTS = ("leaves.js", "heatmap.js", "site.js", "samples.js", "neurons.js", "sources.js")


@dataclass(frozen=True)
class Provenance:
    """The configuration, versions, data and models behind the numbers; every page shows it."""

    run: str
    config: str  # as YAML
    versions: Mapping[str, str]  # by package, `closelook` among them
    data: Sequence[tuple[str, str]] = ()  # (name, hash)
    models: Sequence[tuple[str, str]] = ()  # (name, identity)

    @property
    def config_hash(self) -> str:
        """The SHA-256 hash of the configuration, in hex."""
        return hashlib.sha256(self.config.encode()).hexdigest()


@dataclass(frozen=True)
class Figure:
    """A figure of the report, as files that its pages show and offer."""

    name: str
    title: str
    caption: str
    svg: str
    width: int  # pixels
    points: Sequence[Point] = ()  # none if a table holds the numbers
    pdf: bytes = b""  # empty for figures that are offered as SVG only

    @property
    def files(self) -> dict[str, str | bytes]:
        """The figure's files, by their names in the site."""
        contents: dict[str, str | bytes] = {"svg": self.svg, "pdf": self.pdf}
        return {f"figures/{self.name}.{kind}": content for kind, content in contents.items() if content}


@dataclass(frozen=True)
class Part:
    """A section of a page, with its figures and tables."""

    title: str
    why_empty: str  # shown if there is nothing else to show
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    note: str = ""  # on numbers that are missing
    page: str = "curves.html"
    details: Sequence[Table] = ()  # tables that a click shows

    @property
    def has_references(self) -> bool:
        """True if a table holds numbers of a paper."""
        cells = (cell for table in (*self.tables, *self.details) for row in table.rows for cell in row.cells)
        return any(cell.reference is not None for cell in cells)


@dataclass(frozen=True)
class Site:
    """The content of all pages."""

    provenance: Provenance
    results: Results
    tables: Sequence[Table]  # of scores; the first two are the overview, and the overview beside random
    parts: Sequence[Part] = ()
    samples: Explorer = field(default_factory=lambda: Explorer.of(()))
    summary: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    neurons: NeuronExplorer = field(default_factory=lambda: NeuronExplorer.of(()))
    sources: SourcesExplorer = field(default_factory=lambda: SourcesExplorer.of(()))
    boards: Sequence[Board] = ()
    glance: Sequence[Figure] = ()  # of the first page
    no_neurons: str = ""  # why there are none, on a page without neurons

    def files(self) -> dict[str, str | bytes]:
        """The contents of all files of the site, by path."""
        published = bool(self.results.published)
        wide, long = self.tables[:2]  # the overview, and the overview beside random
        short = [table for table in self.tables if table is not long]
        overview = self._overview(wide, long)
        files: dict[str, str | bytes] = {}
        files["index.html"] = self._page("index.html", tables=self.tables, published=published, **overview)
        files["tables.html"] = self._page("tables.html", tables=short, published=published)
        files["samples.html"] = self._page("samples.html", self.samples.leaves, explorer=self.samples)
        explorers = {"neurons.html": self.neurons.leaves, "sources.html": self.sources.leaves}
        for page in _OF_PARTS:
            leaves = explorers.get(page, ())
            parts = [part for part in self.parts if part.page == page]
            has_references = any(part.has_references for part in parts)
            files[page] = self._page(
                page,
                leaves,
                parts=parts,
                published=has_references,
                neurons=self.neurons,
                sources=self.sources,
                no_neurons=self.no_neurons,
            )
        tables = [leaderboard(self.boards), *self.tables]
        figures = [*self.glance, *(figure for part in self.parts for figure in part.figures)]
        for part in self.parts:
            tables += [*part.tables, *part.details]
        for figure in figures:
            files |= figure.files
        files[FRAME] = frame_csv(numbers(tables, {figure.name: figure.points for figure in figures}))
        for records in (*self.samples.leaves, *self.neurons.leaves, *self.sources.leaves):
            files |= records.files
        return files

    def _page(self, name: str, leaves: Sequence[Leaves] = (), **values: Any) -> str:
        """A page of the site; `values` are the variables of its template."""
        facts = {"title": PAGES[name], "page": name, "pages": list(PAGES.items()), "provenance": self.provenance}
        return _render(name, leaves, **facts | values)

    def _overview(self, wide: Table, long: Table) -> dict[str, Any]:
        """The variables of the first page's template; `wide` and `long` are the two tables of the overview."""
        results, metrics = self.results, METRICS.values()
        methods = [results.label(method) for method in results.ordered_methods()]
        ranking = leaderboard(self.boards)
        return {
            "wide": wide,
            "long": long,
            "summary": self.summary,
            "notes": self.notes,
            "boards": [(board, list(weak_points(results, board)), table_of(board, ranking)) for board in self.boards],
            "left_out": left_out(results, self.boards),
            "glossary": glossary(results),
            "general_terms": TERMS,
            "metric": METRICS[lead()],
            "glance": self.glance,
            "tasks": results.scored,
            "models": results.models,
            "methods": methods,
            "metrics": [metric.label for metric in metrics],
            "extra": [metric.label for metric in metrics if OVERVIEW not in metric.shown],  # shown on demand
        }


def explain_page(entries: Sequence[Entry], title: str, provenance: Provenance, above: Markup | None = None) -> str:
    """The page of `closelook explain --html`: heat maps of `entries`, which are data of :func:`heatmaps.tokens.data`.

    `above` is shown above the heat maps.
    """
    explorer = Explorer.of(entries, budget_bytes=math.inf)
    return page_alone("explain.html", title, provenance, explorer.leaves, above=above, explorer=explorer)


def answers_page(entries: Sequence[Entry], title: str, provenance: Provenance) -> str:
    """A page with the explorer of answers and their sources; `entries` are data of :func:`explorers.answer_entry`."""
    explorer = SourcesExplorer.of(entries, budget_bytes=math.inf)
    return page_alone("answers_page.html", title, provenance, explorer.leaves, sources=explorer)


def page_alone(name: str, title: str, provenance: Provenance, leaves: Sequence[Leaves] = (), **values: Any) -> str:
    """A page that belongs to no site, from the template `name`; `values` are further variables of the template."""
    return _render(name, leaves, title=title, page="", pages=[], provenance=provenance, **values)


def _render(name: str, leaves: Sequence[Leaves] = (), **values: Any) -> str:
    """A page as HTML: its template filled with `values`, and with the site's script and style in it."""
    script = Markup("\n".join((TEMPLATES / script).read_text(encoding="utf-8") for script in SCRIPTS))
    palette = {"--pos": heatmap.POSITIVE, "--neg": heatmap.NEGATIVE}
    colours = "".join(f"{name}:rgb{colour};" for name, colour in palette.items()) + f"--of-pictures:{css_ramp()};"
    style = Markup(":root{" + colours + "}\n" + (TEMPLATES / "style.css").read_text(encoding="utf-8"))
    values |= {"leaves": leaves, "framed": any(each.files for each in leaves)}
    return _environment().get_template(name).render(script=script, policy=script_hash(script), style=style, **values)


@cache
def _environment() -> Environment:
    """The templates, with the filters that they use."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"stars": stars, "reason": reason, "prose": _prose, "edges": _edges, "choices": _choices}
    environment.filters |= {"number": _number, "signed": partial(_number, signed=True), "groups": _groups}
    environment.globals["smallest_row"] = SMALLEST_ROW  # stays whatever methods are shown
    environment.globals["frame"] = FRAME
    return environment


def _number(value: float, column: Column, signed: bool | None = None) -> str:
    """The value as a cell of the column. `signed` shows the sign of positive numbers; None: as the column does."""
    return number(value, decimals(value, column), column.signed if signed is None else signed)


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """(group, number of columns) of each run of neighbouring columns of a group."""
    runs = groupby(columns, key=lambda column: column.group)
    return [(group, len(list(run))) for group, run in runs]


def _prose(text: str) -> Markup:
    """`text` escaped, with the parts between backticks as code.

    >>> str(_prose("set `perturb` & run"))
    'set <code>perturb</code> &amp; run'
    """
    parts: list[Markup | str] = []
    for at, part in enumerate(text.split("`")):
        parts.append(Markup("<code>{}</code>").format(part) if at % 2 else part)
    return Markup("").join(parts)


def _choices(table: Table) -> list[tuple[str, list[str]]]:
    """The filters of a table: (name of a row label, its values), for labels with several values."""
    columns = [(table.section, [row.section for row in table.rows])]
    columns += [(head, [row.labels[at] for row in table.rows]) for at, head in enumerate(table.heads)]
    choices = [(name, list(dict.fromkeys(values))) for name, values in columns]
    return [(name, values) for name, values in choices if len(values) > 1]


def _edges(columns: Sequence[Column]) -> set[int]:
    """The indices of the columns at which a group of columns begins."""
    before = ["", *(column.group for column in columns)]
    return {at for at, column in enumerate(columns) if column.group and column.group != before[at]}
