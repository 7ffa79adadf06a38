"""What every run that did something leaves of itself, ROOT/runs/TIME.json: settings, versions and all errors."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from jobs.secrets import without_secrets
from jobs.versions import commit, versions
from lrp_core.types import UserError

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.stages.summary import StageSummary
    from jobs.store.shards import Store


@contextmanager
def recorded(config: RunConfig, store: Store, stages: Sequence[str]) -> Iterator[Callable[[StageSummary], None]]:
    """A run's stages end inside, each told with its summary. A run that had nothing to do leaves nothing.

    A run that an error or a signal ends is recorded with it; one whose configuration cannot be run is none. Where the
    store takes no record, as on a full disk, the run ends as it would have.
    """
    begun, done = time.time(), list[dict[str, Any]]()

    def ended(summary: StageSummary) -> None:
        seconds = time.time() - begun - sum(stage["seconds"] for stage in done)
        counts = {"stage": summary.stage, "computed": summary.computed, "up_to_date": summary.skipped}
        done.append({**counts, "seconds": round(seconds, 1), "failures": list(map(without_secrets, summary.failures))})

    def write(error: str | None) -> None:
        record = {
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
        with suppress(OSError, RuntimeError):  # of a store that is full, or that another run owns by now
            store.write_bytes(f"runs/{_utc(begun).replace(':', '')}-{uuid.uuid4().hex[:4]}.json", text.encode())

    try:
        yield ended
    except UserError:
        raise
    except BaseException as error:
        write(f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise
    if any(stage["computed"] or stage["failures"] for stage in done):
        write(None)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
