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
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from closelook.evaluation.report.explorers import Explorer, sample_explorer
from closelook.evaluation.report.frame import FRAME, Point, frame_csv, numbers
from closelook.evaluation.report.heatmaps import tokens as heatmap
from closelook.evaluation.report.leaves import Entry, Leaves, script_hash
from closelook.evaluation.report.overview.glossary import TERMS
from closelook.evaluation.report.overview.leaderboard import glossary, leaderboard, left_out, table_of
from closelook.evaluation.report.overview.standings import MEANING, Board, Standing
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
#: Made of parts, of an explorer, or of both.
_OF_PARTS = ("faithfulness.html", "sources.html", "controls.html", "curves.html", "neurons.html", "samples.html")
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
    """A section of a page, with its figures and tables; one without any, and without a note, is not shown."""

    title: str
    page: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    details: Sequence[Table] = ()  # tables that a click shows
    note: str = ""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to show."""
        return not (self.figures or self.tables or self.details or self.note)

    @property
    def has_references(self) -> bool:
        """True if a table holds numbers of a paper."""
        cells = (cell for table in (*self.tables, *self.details) for row in table.rows for cell in row.cells)
        return any(cell.reference is not None for cell in cells)


@dataclass(frozen=True)
class FirstScreen:
    """What the first page shows without scrolling: which methods to use, and how sure that is."""

    sentence: str
    picture: Sequence[Figure]
    sample: Markup  # the heat map of a sample
    levels: Sequence[tuple[str, Sequence[Standing | None]]]  # (label of a method, its standing on every board)


@dataclass(frozen=True)
class Site:
    """The content of all pages."""

    provenance: Provenance
    results: Results
    tables: Sequence[Table]  # of scores; the first two are the overview, and the overview beside random
    parts: Sequence[Part]
    explorers: Mapping[str, Explorer]  # by page
    summary: str = ""
    notes: Sequence[str] = ()
    boards: Sequence[Board] = ()
    first_screen: FirstScreen | None = None  # None without a comparison of methods
    glance: Sequence[Figure] = ()  # of the first page

    def files(self) -> dict[str, str | bytes]:
        """The contents of all files of the site, by path. Pages without content are left out."""
        wide, long = self.tables[:2]  # the overview, and the overview beside random
        contents: dict[str, dict[str, Any]] = {"index.html": self._overview(wide, long)}
        contents["tables.html"] = {"tables": [table for table in self.tables if table is not long]}
        for page in _OF_PARTS:
            parts = [part for part in self.parts if part.page == page and not part.is_empty]
            if parts or page in self.explorers:
                contents[page] = {"parts": parts, "published": any(part.has_references for part in parts)}
        files: dict[str, str | bytes] = {}
        for page, values in contents.items():
            files[page] = self._page(page, list(contents), values)
        shown_first = self.first_screen.picture if self.first_screen else ()
        figures = [*shown_first, *self.glance, *(figure for part in self.parts for figure in part.figures)]
        tables = [leaderboard(self.boards), *self.tables]
        tables += [table for part in self.parts for table in (*part.tables, *part.details)]
        for figure in figures:
            files |= figure.files
        files[FRAME] = frame_csv(numbers(tables, {figure.name: figure.points for figure in figures}))
        for explorer in self.explorers.values():
            for records in explorer.leaves:
                files |= records.files
        return files

    def _page(self, name: str, pages: Sequence[str], values: Mapping[str, Any]) -> str:
        """A page of the site, which links to `pages`; `values` are variables of its template."""
        explorer = self.explorers.get(name)
        links = [(page, title) for page, title in PAGES.items() if page in pages]
        facts = {"title": PAGES[name], "page": name, "pages": links, "provenance": self.provenance}
        facts |= {"published": bool(self.results.published), "explorer": explorer}
        return _render(name, explorer.leaves if explorer else (), **{**facts, **values})

    def _overview(self, wide: Table, long: Table) -> dict[str, Any]:
        """The variables of the first page's template; `wide` and `long` are the two tables of the overview."""
        results, metrics = self.results, METRICS.values()
        methods = [results.label(method) for method in results.ordered_methods()]
        ranking = leaderboard(self.boards)
        return {
            "tables": self.tables,
            "wide": wide,
            "long": long,
            "summary": self.summary,
            "notes": self.notes,
            "first_screen": self.first_screen,
            "meaning": MEANING,
            "boards": [(board, table_of(board, ranking)) for board in self.boards],
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
    explorer = sample_explorer(entries, budget_bytes=math.inf)
    return page_alone("explain.html", title, provenance, explorer.leaves, above=above, explorer=explorer)


def page_alone(name: str, title: str, provenance: Provenance, leaves: Sequence[Leaves] = (), **values: Any) -> str:
    """A page that belongs to no site, from the template `name`; `values` are further variables of the template."""
    return _render(name, leaves, title=title, page="", pages=[], provenance=provenance, **values)


def _render(name: str, leaves: Sequence[Leaves] = (), **values: Any) -> str:
    """A page as HTML: its template filled with `values`, and with the site's script and style in it."""
    script = Markup("\n".join((TEMPLATES / script).read_text(encoding="utf-8") for script in SCRIPTS))
    palette = {"--pos": heatmap.POSITIVE, "--neg": heatmap.NEGATIVE}
    colours = "".join(f"{name}:rgb{colour};" for name, colour in palette.items())
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
