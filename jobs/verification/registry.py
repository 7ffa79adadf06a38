"""The registry of verified models: one line for each `closelook verify` that was run, shipped or a user's own.

Shipped lines are in `verified.csv`, which `python -m tests.verified` writes. Users put the files of `closelook verify
MODEL --json FILE` into a folder that the environment variable CLOSELOOK_VERIFIED names.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from closelook.evaluation.report.spreadsheet import csv_text
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.verification.record import Verification

FOLDER = "CLOSELOOK_VERIFIED"
SHIPPED = Path(__file__).with_name("verified.csv")
OURS = "closelook"


@dataclass(frozen=True)
class Verified:
    """One line of the registry: how many checks passed, failed or did not apply, on which device and versions."""

    model: str
    family: str
    kind: str
    dtype: str
    device: str
    passed: int
    failed: str  # names of the checks that failed, separated by semicolons
    inapplicable: int
    nearest: float  # the largest ratio of a measured gap to its bound: above 1 a check failed
    torch: str
    transformers: str

    @classmethod
    def of(cls, verification: Verification) -> Verified:
        """The line that summarises a verification."""
        states = [finding.state for finding in verification.findings]
        failed = "; ".join(finding.check for finding in verification.findings if finding.state == "fail")
        told = [finding for finding in verification.findings if finding.state in ("pass", "fail")]
        shares = [finding.measured / finding.bound for finding in told if finding.measured and finding.bound]
        return cls(
            **{name: getattr(verification, name) for name in ("model", "family", "kind", "dtype", "device")},
            passed=states.count("pass"),
            failed=failed,
            inapplicable=states.count("not applicable") + states.count("nothing to compare"),
            nearest=round(max(shares, default=0.0), 3),
            **{name: verification.versions.get(name, "") for name in ("torch", "transformers")},
        )


def known() -> Iterator[tuple[str, Verified]]:
    """(origin, line) of every verification: shipped ones (OURS), then those of the user's folder (name of the file).

    Raises UserError if the folder does not exist or a file in it is no verification.
    """
    for line in read(SHIPPED):
        yield OURS, line
    named = os.environ.get(FOLDER)
    if not named:
        return
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise UserError(f"{FOLDER} is {named}, which is no folder: make it, or unset the variable")
    for file in sorted(folder.glob("*.json")):
        try:
            verification = Verification.from_dict(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UserError(f"`closelook verify --json` did not write {file}: move it out of {folder}") from None
        yield file.name, Verified.of(verification)


def read(file: Path) -> list[Verified]:
    """The lines of a CSV file of the registry."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    numbers = {"passed": int, "inapplicable": int, "nearest": float}
    return [Verified(**{**row, **{name: kind(row[name]) for name, kind in numbers.items()}}) for row in rows]


def write(file: Path, lines: Iterable[Verified]) -> None:
    """Write the lines as a CSV file of the registry."""
    names = [field.name for field in fields(Verified)]
    rows = [[getattr(line, name) for name in names] for line in lines]
    file.write_text(csv_text([names, *rows], "\n"), encoding="utf-8", newline="")
