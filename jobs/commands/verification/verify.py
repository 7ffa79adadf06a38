"""`closelook verify`: prints the checks of a model on this machine as a table, and writes them as JSON."""

from __future__ import annotations

from pathlib import Path

from jobs.commands.terminal import as_json, say, say_table, write_file
from jobs.commands.verification.verifying import Verification
from lrp_core.verification.record import Finding
from lrp_core.verification.rounding import DRAWS, MARGIN

_COLOURS = {"pass": "green", "fail": "red", "not applicable": "dim"}


def show(verification: Verification, json_file: Path | None) -> bool:
    """Print the findings and write them to `json_file`, if given. Returns True if no check failed."""
    versions = ", ".join(f"{name} {verification.versions[name]}" for name in ("closelook", "torch", "transformers"))
    model = f"{verification.model}: {verification.family}, {verification.kind}"
    say(f"{model}, {verification.dtype} on {verification.device}; {versions}", "bold")
    rows = [(finding.check, finding.state, *_numbers(finding), finding.subject) for finding in verification.findings]
    say_table(("check", "result", "apart", "bound", "of"), rows, ("apart", "bound"))
    for finding in verification.findings:
        if finding.detail:
            say(f"{finding.check}: {finding.state}: {finding.detail}", _COLOURS[finding.state])
    say(
        "apart: the largest difference of two computations of the same numbers, relative to the largest number; bound: "
        f"{MARGIN:g} times the largest change of {DRAWS} runs whose linear layers are moved by one unit of rounding of "
        f"{verification.dtype}"
    )
    if verification.costs:
        name, cost = max(verification.costs.items(), key=lambda item: item[1].peak_bytes)
        say(f"most memory for one sample, without the model itself: {name}, {cost.peak_bytes / 2**20:.1f} MiB")
    states = [finding.state for finding in verification.findings]
    counted = f"{states.count('pass')} checks passed, {states.count('not applicable')} do not apply"
    say(counted if verification.passed else f"{states.count('fail')} checks failed, {counted}", "bold")
    if json_file is not None:
        write_file(json_file, as_json(verification.to_dict()))
    return verification.passed


def _numbers(finding: Finding) -> tuple[str, str]:
    """The measured difference and its bound as text; "" for a check that measures none."""
    if finding.measured is None or finding.bound is None:
        return "", ""
    apart, bound = (f"{number:.1e}" if number else "0" for number in (finding.measured, finding.bound))
    return apart, bound
