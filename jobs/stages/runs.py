"""The record of a run that computed something or failed, ROOT/runs/TIME.json: settings, versions and errors.

A short form of the latest record is written beside it (jobs/stages/latest.py).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from jobs.config import RunConfig
from jobs.secrets import without_secrets
from jobs.stages.latest import JSON, MARKDOWN, Latest, groups_of
from jobs.stages.record import StageSummary
from jobs.store import Artifact, Store
from jobs.store.lock import is_asked
from jobs.store.retry import one_line
from jobs.versions import commit, versions
from lrp_core.records.types import UserError


@contextmanager
def recorded(config: RunConfig, store: Store, stages: Sequence[str]) -> Iterator[Callable[[StageSummary], None]]:
    """Record the run inside: call the function that this yields with the summary of each stage that ends.

    A run with nothing to do, or with a config that cannot run, leaves no record. If an error or a signal ends the run,
    the record has it. If the store takes no record, as on a full disk, the run ends as it would have otherwise.
    """
    begun, done, made = time.time(), list[dict[str, Any]](), list[Artifact]()
    before = groups_of(store)

    def ended(summary: StageSummary) -> None:
        seconds = time.time() - begun - sum(stage["seconds"] for stage in done)
        stage: dict[str, Any] = {"stage": summary.stage, "computed": summary.computed, "up_to_date": summary.skipped}
        stage["seconds"] = round(seconds, 1)
        stage["failures"] = list(map(without_secrets, summary.failures))
        done.append(stage)
        made.extend(summary.made)

    def write(error: str | None) -> None:
        record: dict[str, Any] = {"stages_asked_for": list(stages), "stages": done}
        record["error"] = error and without_secrets(error)
        record |= {"begun": _utc(begun), "ended": _utc(time.time())}
        record |= {"versions": versions(), "commit": commit(), "config": config.model_dump(mode="json")}
        text = without_secrets(json.dumps(record, indent=1, ensure_ascii=False))
        name = f"{_utc(begun).replace(':', '')}-{uuid.uuid4().hex[:4]}"
        failures = [failure for stage in done for failure in stage["failures"]]
        ending = record["error"] or ("incomplete" if failures else "complete")
        with suppress(OSError, RuntimeError):  # the store may be full, or owned by another run
            store.write_bytes(f"runs/{name}.json", text.encode())
            ending = "stopped" if is_asked(store) else ending
            ends = {"begun": record["begun"], "ended": record["ended"], "ending": ending}
            latest = Latest(
                f"runs/{name}.json", **ends, failures=failures, made=made, before=before, now=groups_of(store)
            )
            store.write_bytes(JSON, without_secrets(latest.as_json()).encode())
            store.write_bytes(MARKDOWN, without_secrets(latest.as_markdown()).encode())

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
