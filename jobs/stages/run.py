"""A run: its stages in order, what it leaves incomplete, and the records of it in ROOT/runs.

ROOT/runs/TIME.json has settings, versions and errors. A run with nothing to do leaves no record.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from closelook.jobs.cluster.executor import kept_hosts
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import PRODUCTS
from closelook.jobs.secrets import without_secrets
from closelook.jobs.stages.compute import compute
from closelook.jobs.stages.record import STAGES, StageSummary
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.lock import is_asked
from closelook.jobs.store.retry import one_line
from closelook.lrp_core.lazy import imported_object
from closelook.lrp_core.records.types import UserError
from closelook.versions import commit, versions


def function_of(stage: str) -> Callable[[RunConfig, Store], StageSummary]:
    """The function of a stage, imported only now since stages need heavy libraries."""
    first = next(product for product in PRODUCTS.values() if product.stage == stage)
    return partial(compute, stage=stage) if first.make is None else imported_object(first.make)


def run(config: RunConfig, store: Store, stages: Iterable[str] = STAGES) -> Iterator[StageSummary]:
    """Run the stages in order, and yield the summary of each. Of several, those whose setting is missing are skipped.

    A stage with failures does not stop the next ones, which work on what is complete. `closelook stop` ends the run
    after the stage.
    """
    names = list(stages)
    with kept_hosts():
        for name in names:
            stage = STAGES[name]
            if len(names) > 1 and stage.setting is not None and getattr(config, stage.setting) is None:
                continue
            yield function_of(name)(config, store)
            if is_asked(store):
                return


def not_complete(config: RunConfig, store: Store, stages: Iterable[str]) -> list[str]:
    """A line for each product of these stages with planned artifacts that are not complete; plans anew."""
    run, names, lines = Run(config, make_plan(config, store), Ledger(store)), set(stages), []
    for product in PRODUCTS.values():
        nodes = list(product.nodes(run)) if product.stage in names else []
        lacking = [node.artifact for node in nodes if node.state(run.ledger) != "done"]
        if lacking:
            counted = f"{len(lacking)} of {len(nodes)} {product.title} are not complete"
            lines.append(f"{counted}, among them {lacking[0]}: run `closelook run --root {store.root}` again")
    return lines


@contextmanager
def recorded(config: RunConfig, store: Store, stages: Sequence[str]) -> Iterator[Callable[[StageSummary], None]]:
    """Record the run inside: call the function that this yields with the summary of each stage that ends.

    A run with nothing to do, or with a config that cannot run, leaves no record. If an error or a signal ends the run,
    the record has it. If the store takes no record, as on a full disk, the run ends as it would have otherwise.
    """
    begun, done = time.time(), list[dict[str, Any]]()

    def ended(summary: StageSummary) -> None:
        seconds = time.time() - begun - sum(stage["seconds"] for stage in done)
        stage: dict[str, Any] = {
            "stage": summary.stage,
            "computed": summary.computed,
            "up_to_date": summary.skipped,
            "seconds": round(seconds, 1),
            "failures": list(map(without_secrets, summary.failures)),
        }
        done.append(stage)

    def write(error: str | None) -> None:
        record: dict[str, Any] = {
            "stages_asked_for": list(stages),
            "stages": done,
            "error": error and without_secrets(error),
            "begun": _utc(begun),
            "ended": _utc(time.time()),
            "versions": versions(),
            "commit": commit(),
            "config": config.model_dump(mode="json"),
        }
        text = without_secrets(json.dumps(record, indent=1, ensure_ascii=False))
        name = f"{_utc(begun).replace(':', '')}-{uuid.uuid4().hex[:4]}"
        with suppress(OSError, RuntimeError):  # the store may be full, or owned by another run
            store.write_bytes(f"runs/{name}.json", text.encode())

    try:
        yield ended
    except UserError:
        raise
    except BaseException as error:
        write(f"{type(error).__name__}: {one_line(error)}")
        raise
    if any(stage["computed"] or stage["failures"] for stage in done):
        write(None)


def _utc(seconds: float) -> str:
    """A time in seconds since 1970 as text, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
