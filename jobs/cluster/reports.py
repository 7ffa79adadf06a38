"""The end of a unit: a worker returns a report, in which an error is a text."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from closelook.jobs.cluster.attempts import end_with_device, node_id
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.units import Account
from closelook.jobs.secrets import without_secrets
from closelook.jobs.store import Artifact
from closelook.jobs.store.retry import StillUnavailable, one_line


@dataclass(frozen=True)
class Report:
    """The end of a unit, as its worker tells the driver."""

    unit: str
    rows: int = 0
    tokens: int = 0
    rejects: int = 0  # samples that no method explained
    explained: Mapping[str, int | None] = field(default_factory=dict)  # the number of explained samples, by method
    splits: int = 0  # batches that were cut because memory ran out
    error: str = ""  # the reason why nothing was committed
    fatal: bool = False  # True if the error concerns every unit
    accounts: Mapping[str, Account] = field(default_factory=dict)  # of the shards that were written, by path
    failed: Mapping[Artifact, str] = field(default_factory=dict)  # nodes without a shard, each with the reason
    wall_s: float = 0.0  # of computing it, which of a first unit includes to load the model
    worker: str = field(default_factory=lambda: f"{node_id()}/{os.getpid()}")  # Ray's id of the node, and the process

    def to_table(self) -> pa.Table:
        """The report as it travels through Ray."""
        return pa.table({"report": [pickle.dumps(self)]})


def reports_in(table: pa.Table) -> list[Report]:
    """The reports in a table of `Report.to_table`."""
    return list(map(pickle.loads, table["report"].to_pylist()))


def reported(report: Report, commit: Callable[[], dict[str, Any]]) -> Report:
    """Compute and commit a unit by calling `commit`, which returns further fields of its report; returns the report.

    An error becomes a field of the report and is not raised, since an exception would end the whole pipeline. A lost
    device ends the process.
    """
    unit = report.unit
    try:
        report = replace(report, **commit())
    except StillUnavailable as error:  # perhaps only this node cannot reach the store: the others go on
        report = replace(report, error=f"{unit}: {one_line(error)}")
    except (ModelUnavailable, OSError) as error:
        report = replace(report, error=one_line(error), fatal=True)
    except Exception as error:
        end_with_device(error)
        report = replace(report, error=f"{unit}: {type(error).__name__}: {one_line(error)}")
    return replace(report, error=without_secrets(report.error))
