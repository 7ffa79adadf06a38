"""Runs that commands open or compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from jobs.commands.stopping import stoppable
from jobs.commands.terminal import complain, say
from lrp_core.types import UserError

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.stages.record import StageSummary
    from jobs.store import Store


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
    from jobs.config.kept import keeping
    from jobs.config.lacking import told
    from jobs.plan.cells import validate
    from jobs.stages.record import StageSummary
    from jobs.stages.run import not_complete, run
    from jobs.stages.runs import recorded
    from jobs.store import Ledger
    from jobs.store.lock import is_asked, run_lock

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
