"""Verification on this machine that a model and its explanations are what they should be: in Python, and printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from closelook.explaining.opening import AUTO, check_unchanged, chosen_device, name_in_memory, open_model
from closelook.jobs.commands.init import name_of
from closelook.jobs.config import ModelConfig
from closelook.jobs.methods import METHODS
from closelook.jobs.methods import method as method_named
from closelook.jobs.plan.models import open_view, resolve
from closelook.lrp_core.opening.loading import check_place
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.verification import record
from closelook.lrp_core.verification.record import Finding
from closelook.lrp_core.verification.rounding import DRAWS, MARGIN
from closelook.lrp_core.verification.run import verify_view
from closelook.lrp_core.views.guard import left_as_it_was
from closelook.lrp_core.views.view import ModelView
from closelook.progress import shown
from closelook.terminal import as_json, say, say_table, write_file
from closelook.versions import versions

if TYPE_CHECKING:
    import pandas as pd

_COLOURS = {"pass": "green", "fail": "red", "nothing to compare": "dim", "not applicable": "dim"}


@dataclass(frozen=True, repr=False)
class Verification(record.Verification):
    """The findings about a model on one machine; a notebook shows them as a table."""

    def to_frame(self) -> pd.DataFrame:
        """One row for each check: its claim, its result, the measured difference and the bound of the difference."""
        import pandas as pd

        columns = [field.name for field in fields(record.Finding)]
        return pd.DataFrame([vars(finding) for finding in self.findings], columns=columns)

    def __repr__(self) -> str:
        states = [finding.state for finding in self.findings]
        failed = f"{states.count('fail')} failed, " if not self.passed else ""
        return f"<Verification of {self.model}, {self.dtype} on {self.device}: {failed}{states.count('pass')} passed>"

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, na_rep="", float_format=lambda value: f"{value:.1e}")


def verify(
    model: Any,
    *,
    method: str | list[str] | None = None,
    dtype: str | None = None,
    device: str = AUTO,
    family: str | None = None,
    adapter: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Verification:
    """Verify on this machine that the explained model is the stock model, and that relevance follows its rules.

    >>> import closelook
    >>> closelook.verify("demo/gpt2", method="gradient_x_input").passed
    True

    Each check compares two computations of the same numbers: logits with the stock model's, sums with the explained
    number, padded batches with single samples, gradients with numerical derivatives, and attnlrp with its slow
    original. The bound of their distance is the effect of rounding in this precision, which is measured. `model` is as
    in `closelook.explain`, and needs no tokenizer; `method` are the methods to check, by default all that apply. A
    model in memory is left unchanged.

    Raises UserError for an unknown model or method, and for a precision, device or adapter for a model in memory, which
    keeps its own; ModelUnavailable for files that cannot be reached.
    """
    names = METHODS if method is None else [method] if isinstance(method, str) else method
    methods = {name: method_named(name) for name in names}
    with shown(progress) as tell:
        if not isinstance(model, str | PathLike | ModelView | nn.Module):
            model = open_model(model).view  # of a pipeline, or open already
        if isinstance(model, ModelView | nn.Module):
            check_unchanged(dtype, device, adapter)
            with _wrapped(model, family) as view:
                verification = verify_view(view, methods, tell)
            name, identity = name_in_memory(view), ""
        else:
            resolved = resolve(ModelConfig.model_validate(_settings(model, family, adapter)))
            place = (dtype or "float32", chosen_device(device))
            check_place(*place)
            verification = verify_view(open_view(resolved, *place), methods, tell)
            name, identity = str(model), resolved.identity
    return Verification(**vars(replace(verification, model=name, identity=identity, versions=versions())))


def _settings(model: str | PathLike[str], family: str | None, adapter: Any) -> dict[str, Any]:
    """The config entry of a model by name."""
    beside = {} if adapter is None else {"adapter": str(adapter)}
    return {"name": name_of(str(model)), "id": str(model), "family": family, **beside}


@contextmanager
def _wrapped(model: ModelView | nn.Module, family: str | None) -> Iterator[ModelView]:
    """The view of a model in memory, inside the block; afterwards the model is as it was."""
    if isinstance(model, ModelView):
        if family is not None:
            raise UserError("a ModelView has a family already: leave `family` out")
        yield model
        return
    with left_as_it_was(model):
        yield view_of(model, family)  # type: ignore[arg-type]


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
    states = [finding.state for finding in verification.findings]
    counted = f"{states.count('pass')} checks passed, {states.count('not applicable')} do not apply"
    if "nothing to compare" in states:
        counted += f", {states.count('nothing to compare')} have nothing to compare"
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
