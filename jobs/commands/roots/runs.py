"""Runs stages and reports what they did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from closelook.jobs.commands.options import RunOptions
from closelook.jobs.commands.stopping import stoppable
from closelook.terminal import complain, say

if TYPE_CHECKING:
    from closelook.jobs.config import RunConfig
    from closelook.jobs.stages.record import StageSummary
    from closelook.jobs.store import Store


END = "end"  # stage of the last summary, which lists what is not complete after all stages


def run_stages(stages: tuple[str, ...], options: RunOptions, wait_s: float) -> None:
    """Run the stages under the root's lock and print a summary of each. Raises typer.Exit(1) if one is not complete."""
    loaded, store = options.load(is_made=stages == ("report",))
    complete, computed = True, 0
    for summary in summaries(loaded, store, stages, wait_s):
        if summary.stage != END:
            say(f"{summary.stage}: {summary.computed} computed, {summary.skipped} up to date", "bold")
        for line in summary.lines:
            say(f"  {line}")
        for failure in summary.failures:
            complain(f"  {failure}", "red")
        complete &= summary.complete
        computed += summary.computed
    if not complete:
        raise typer.Exit(1)
    if not computed:
        say(f"nothing to do: {store.root} holds everything that can be computed now")


def summaries(loaded: RunConfig, store: Store, stages: Sequence[str], wait_s: float) -> Iterator[StageSummary]:
    """Run the stages under the root's lock and yield the summary of each; the last (END) lists what is not complete.

    Prints how the configuration differs from the one that the root kept. Raises as `jobs.stages.run.run` does, and
    typer.Exit if the run was stopped.
    """
    from closelook.jobs.cluster.pools import check_address
    from closelook.jobs.config.kept import keeping
    from closelook.jobs.plan.cells import validate
    from closelook.jobs.stages.record import StageSummary
    from closelook.jobs.stages.run import not_complete, run
    from closelook.jobs.store.lock import is_asked, run_lock

    validate(loaded)
    check_address(loaded)
    store.create()
    with run_lock(store, wait_s), stoppable(store), keeping(loaded, store) as changed:
        if changed:
            say(f"the configuration kept in {store.root} changes:")
        for difference in changed:
            say(f"  {difference}")
        complete = True
        for summary in run(loaded, store, stages):
            yield summary
            complete &= summary.complete
        if complete and not is_asked(store):
            yield StageSummary(END, failures=tuple(not_complete(loaded, store, stages)))
