"""The registry of verified models: a line for each run of `closelook verify`, shipped or kept by users.

Shipped lines are in `verified.csv`, which `python -m tests.verified` writes. Users keep files of `closelook verify
MODEL --json FILE` in a folder that the environment variable CLOSELOOK_VERIFIED names.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from lrp_core.records.types import UserError
from lrp_core.verification.record import Verification

FOLDER = "CLOSELOOK_VERIFIED"
SHIPPED = Path(__file__).with_name("verified.csv")
OURS = "closelook"


@dataclass(frozen=True)
class Verified:
    """A verification in a line: how many checks passed, failed and did not apply, and what computed them."""

    model: str
    family: str
    kind: str
    dtype: str
    device: str
    passed: int
    failed: str  # the checks that failed, separated by semicolons
    inapplicable: int
    nearest: float  # how much of its bound the largest gap took
    torch: str
    transformers: str

    @classmethod
    def of(cls, verification: Verification) -> Verified:
        """The line of a verification."""
        states = [finding.state for finding in verification.findings]
        failed = "; ".join(finding.check for finding in verification.findings if finding.state == "fail")
        shares = [
            finding.measured / finding.bound for finding in verification.findings if finding.measured and finding.bound
        ]
        return cls(
            verification.model,
            verification.family,
            verification.kind,
            verification.dtype,
            verification.device,
            states.count("pass"),
            failed,
            states.count("not applicable"),
            round(max(shares, default=0.0), 3),
            verification.versions.get("torch", ""),
            verification.versions.get("transformers", ""),
        )


def known() -> Iterator[tuple[str, Verified]]:
    """(by whom it is, line) of every verification: the shipped ones, then those in the user's folder.

    Raises UserError for a folder that is not there and for a file in it that is no verification.
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
            raise UserError(f"{file} is no file of `closelook verify --json`: move it out of {folder}") from None
        yield file.name, Verified.of(verification)


def read(file: Path) -> list[Verified]:
    """The lines of a file."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    numbers = {"passed": int, "inapplicable": int, "nearest": float}
    return [Verified(**{**row, **{name: kind(row[name]) for name, kind in numbers.items()}}) for row in rows]


def write(file: Path, lines: Iterable[Verified]) -> None:
    """Write lines as a file."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.DictWriter(stream, [field.name for field in fields(Verified)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(map(asdict, lines))
