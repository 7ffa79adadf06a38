"""The report of a worker about a unit: one row, its error in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from jobs.cluster.attempts import end_with_device, node_id
from jobs.cluster.notice import unit_in_hand
from jobs.plan.hub import ModelUnavailable
from jobs.secrets import without_secrets
from jobs.store.retry import StillUnavailable
from jobs.store.spent import KINDS, unit_timed

#: `error` is empty, or why nothing was committed; `fatal` errors concern every unit.
REPORT = pa.schema(
    [
        ("unit", pa.string()),
        ("rows", pa.int64()),
        ("tokens", pa.int64()),
        ("rejects", pa.int64()),
        ("splits", pa.int64()),
        ("wall_s", pa.float64()),
        *((f"{kind}_s", pa.float64()) for kind in KINDS),
        ("worker", pa.string()),  # Ray's node and the process
        ("error", pa.string()),
        ("fatal", pa.bool_()),
        ("result", pa.string()),  # JSON, what else the stage makes of the unit; null for nothing
        ("accounts", pa.string()),  # JSON, by path of a shard: how many samples it explains, and its rejects
    ]
)


def reported(unit: str, rows: int, tokens: int, commit: Callable[[], dict[str, Any]]) -> pa.Table:
    """Commit the unit of so many rows and tokens; its report, with whatever `commit` says besides.

    Errors are reported, never raised: an exception would end the whole data set. A lost device ends the process.
    """
    with unit_in_hand(), unit_timed() as seconds:
        report = _done(unit, rows, tokens, commit)
    spent = {"wall_s": sum(seconds.values())} | {f"{kind}_s": seconds[kind] for kind in KINDS}
    return pa.Table.from_pylist([{**report, **spent, "worker": f"{node_id()}/{os.getpid()}"}], schema=REPORT)


def _done(unit: str, rows: int, tokens: int, commit: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    report = _nothing(unit) | {"rows": rows, "tokens": tokens}
    try:
        report |= commit()
    except StillUnavailable as error:  # of this node, perhaps: the others go on
        report |= {"error": f"{unit}: {one_line(error)}"}
    except (ModelUnavailable, OSError) as error:
        report |= {"error": one_line(error), "fatal": True}
    except Exception as error:
        end_with_device(error)
        report |= {"error": f"{unit}: {type(error).__name__}: {one_line(error)}"}
    return report


def left_out(unit: str) -> pa.Table:
    """The report of a unit that is not begun because the run is to stop."""
    spent = {"wall_s": 0.0} | {f"{kind}_s": 0.0 for kind in KINDS}
    report = _nothing(unit) | spent | {"worker": f"{node_id()}/{os.getpid()}"}
    return pa.Table.from_pylist([report], schema=REPORT)


def _nothing(unit: str) -> dict[str, Any]:
    return {
        "unit": unit,
        "rows": 0,
        "tokens": 0,
        "rejects": 0,
        "splits": 0,
        "error": "",
        "fatal": False,
        "result": None,
        "accounts": None,
    }


def one_line(error: BaseException) -> str:
    return without_secrets(" ".join(str(error).split()))
