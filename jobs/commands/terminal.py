"""What commands share: where they print, and how they read a configuration and run stages of it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from lrp_core.types import UserError

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.stages.summary import StageSummary
    from jobs.store import Store

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def write_file(path: Path, text: str, newline: str | None = None) -> None:
    """Write a file that a command was asked for. Raises UserError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8", newline=newline)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def as_json(told: Any) -> str:
    """`told` as JSON."""
    return json.dumps(fit_for_json(told), indent=1, ensure_ascii=False, allow_nan=False)


def fit_for_json(told: Any) -> Any:
    """`told` with None in the place of NaN and infinity, which JSON does not know."""
    if isinstance(told, dict):
        return {key: fit_for_json(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [fit_for_json(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def not_finite(dtype: str) -> str:
    """What is said of relevance that overflowed in this precision."""
    return f"not finite in {dtype}" + (": try float32 or bfloat16" if dtype == "float16" else "")


def load_run(
    config: str | None, root: str | None, overrides: list[str] | None, is_made: bool = False, is_read: bool = False
) -> tuple[RunConfig, Store]:
    """The run of these options. Commands ask for it before their heavy imports: a mistake is told at once.

    Those that only read a run say `is_made`. Raises UserError then for a root that holds none. Those that work without
    what no installed package brings say `is_read`, and tell what that is.
    """
    from jobs.config.kept import holds_run, load

    loaded, store = load(config, root, overrides or (), is_read)
    if is_made and not holds_run(store):
        raise UserError(f"there is no run in {store.root}: check the path, or compute one there with `closelook run`")
    return loaded, store


def run_stages(
    stages: tuple[str, ...], config: str | None, root: str | None, overrides: list[str] | None, wait_s: float
) -> None:
    """Run the stages under the root's lock and tell of each. Raises typer.Exit where one is not complete."""
    reads = stages == ("report",)
    loaded, store = load_run(config, root, overrides, is_made=reads, is_read=reads)

    from jobs.cluster.pools import check_address
    from jobs.config.kept import keeping
    from jobs.config.lacking import told
    from jobs.plan.cells import validate
    from jobs.stages.run import not_complete, run
    from jobs.stages.summary import StageSummary
    from jobs.store import Ledger
    from jobs.store.lock import run_lock
    from jobs.store.runs import recorded

    if loaded.lacking:
        console.print(told(loaded.lacking), markup=False)
    else:
        validate(loaded)
    check_address(loaded)
    store.create()
    with run_lock(store, wait_s), keeping(loaded, store) as changed, recorded(loaded, store, stages) as record:
        if changed:
            console.print(f"the configuration that {store.root} keeps changes:", markup=False)
        for difference in changed:
            console.print(f"  {difference}", markup=False)
        for line in Ledger(store).unreadable().values():
            errors.print(line, markup=False)
        summaries = []
        for summary in run(loaded, store, stages):
            _show(summary)
            record(summary)
            summaries.append(summary)
        if all(summary.complete for summary in summaries):
            lacking = StageSummary("end", failures=tuple(not_complete(loaded, store, stages)))
            _show_failures(lacking)
            record(lacking)
            summaries.append(lacking)
    if not all(summary.complete for summary in summaries):
        raise typer.Exit(1)
    if not any(summary.computed for summary in summaries):
        console.print(f"nothing to do: {store.root} has everything that can be made now")


def _show(summary: StageSummary) -> None:
    console.print(f"{summary.stage}: {summary.computed} computed, {summary.skipped} up to date", style="bold")
    for line in summary.lines:
        console.print(f"  {line}", markup=False)
    _show_failures(summary)


def _show_failures(summary: StageSummary) -> None:
    for failure in summary.failures:
        errors.print(f"  {failure}", style="red", markup=False)
