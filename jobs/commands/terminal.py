"""The screen of all commands, files that commands write, and runs that commands open or compute."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from lrp_core.types import UserError

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.stages.run import StageSummary
    from jobs.store import Store

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: RenderableType, style: str | None = None, end: str = "\n") -> None:
    """Print on the screen; brackets in `text` are no markup."""
    console.print(text, style=style, end=end, markup=False)


def complain(text: str, style: str | None = None) -> None:
    """Print on standard error, as :func:`say` does."""
    errors.print(text, style=style, markup=False)


def say_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    numbers: Collection[str] = (),
    title: str | None = None,
    lines: bool = True,
) -> None:
    """Print a table. Columns whose headings are among `numbers` are right-aligned; `lines` rules below the headings."""
    box = SIMPLE_HEAD if lines else None
    table = Table(title=title, title_justify="left", box=box, pad_edge=lines, collapse_padding=lines)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    say(table)


def write_file(path: Path, text: str, newline: str | None = None, advice: str = "") -> None:
    """Write a file that the user asked for and print its path, with `advice` behind it.

    Raises UserError where the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", newline=newline)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    say(f"written to {path}{advice}")


def as_json(value: Any) -> str:
    """`value` as indented JSON, with null for numbers that are not finite."""
    return json.dumps(fit_for_json(value), indent=1, ensure_ascii=False, allow_nan=False)


def fit_for_json(value: Any) -> Any:
    """`value` with None in the place of NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: fit_for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(fit_for_json, value))
    unknown = isinstance(value, float) and not math.isfinite(value)
    return None if unknown else value


def not_finite(dtype: str) -> str:
    """A message about relevance that overflowed in this precision."""
    advice = ": try float32 or bfloat16" if dtype == "float16" else ""
    return f"not finite in {dtype}{advice}"


def load_run(
    config: str | None,
    root: str | None,
    overrides: list[str] | None,
    is_made: bool | None = None,
    is_read: bool = False,
) -> tuple[RunConfig, Store]:
    """The configuration and the store of a run. Commands call this before heavy imports, so that mistakes show at once.

    Where the command reads a run (`is_made`; by default where only `root` is given), raises UserError for a root that
    holds none. `is_read`: methods and the like that no installed package brings are left out of the configuration,
    which lists them as `lacking`.
    """
    from jobs.config.kept import holds_run, load

    loaded, store = load(config, root, overrides or (), is_read)
    if is_made is None:
        is_made = root is not None and config is None
    if is_made and not holds_run(store):
        raise UserError(f"there is no run in {store.root}: check the path, or compute one there with `closelook run`")
    return loaded, store


def run_stages(
    stages: tuple[str, ...], config: str | None, root: str | None, overrides: list[str] | None, wait_s: float
) -> None:
    """Run the stages under the root's lock and print a summary of each. Raises typer.Exit where one is not complete."""
    reads = stages == ("report",)
    loaded, store = load_run(config, root, overrides, is_made=reads, is_read=reads)

    from jobs.cluster.pools import check_address
    from jobs.commands.stopping import stoppable
    from jobs.config.kept import keeping
    from jobs.config.lacking import told
    from jobs.plan.cells import validate
    from jobs.stages.run import StageSummary, not_complete, run
    from jobs.store import Ledger
    from jobs.store.lock import is_asked, run_lock
    from jobs.store.runs import recorded

    if loaded.lacking:
        say(told(loaded.lacking))
    else:
        validate(loaded)
    check_address(loaded)
    store.create()
    with (
        run_lock(store, wait_s),
        stoppable(store),
        keeping(loaded, store) as changed,
        recorded(loaded, store, stages) as record,
    ):
        if changed:
            say(f"the configuration that {store.root} keeps changes:")
        for difference in changed:
            say(f"  {difference}")
        for line in Ledger(store).unreadable().values():
            complain(line)
        complete, computed = True, 0
        for summary in run(loaded, store, stages):
            say(f"{summary.stage}: {summary.computed} computed, {summary.skipped} up to date", "bold")
            for line in summary.lines:
                say(f"  {line}")
            _complain_of(summary)
            record(summary)
            complete &= summary.complete
            computed += summary.computed
        if complete and not is_asked(store):
            end = StageSummary("end", failures=tuple(not_complete(loaded, store, stages)))
            _complain_of(end)
            record(end)
            complete = end.complete
    if not complete:
        raise typer.Exit(1)
    if not computed:
        say(f"nothing to do: {store.root} has everything that can be made now")


def _complain_of(summary: StageSummary) -> None:
    for failure in summary.failures:
        complain(f"  {failure}", "red")
