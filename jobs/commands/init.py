"""`closelook init`: writes a commented config for the user's own model and data."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import Any

import yaml

from closelook.evaluation.benchmark.samples import Malformed
from closelook.evaluation.benchmark.sources.files import fetch
from closelook.evaluation.benchmark.sources.own import SAMPLES, records, renamed
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.config.file import parse
from closelook.jobs.methods import applicable, method
from closelook.jobs.plan.models import ResolvedModel, resolve
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.capabilities import Capability
from closelook.lrp_core.records.types import UserError
from closelook.terminal import write_file

DEMO_TASKS = {"token": "sva", "label": "sentiment", "score": "similarity"}  # a task of the demo by its output
CHEAP = 3.0  # forward passes per sample; more expensive methods are listed but commented out
_LENGTH = 30  # tokens of the sample by which costs are compared
_TEMPLATE = """# A run of closelook. `closelook config --keys ''` explains all keys; those left out have their default.
name: {name}
root: runs/{name}  # everything is stored here: a folder, s3:// or gs://
device: auto  # a GPU if there is one
tasks:
  {task}
models:
  # {model.kind.title}, at most {model.max_length} tokens
  - name: {model.config.name}
    id: {id}
    dtype: float32  # or bfloat16, float16, float64
    gpus: 1  # GPUs of each worker; ignored without GPUs
methods:  # `closelook methods NAME` describes a method and its options
{methods}
perturb: {{}}  # deletion and insertion curves, which compare methods by faithfulness
explanations: [contrastive, target]  # of the target's logit minus the foil's, and of the target's alone
token_budget: 4096  # tokens of a batch: lower it if memory runs out
"""


def name_of(model_id: str) -> str:
    """The last part of an id or path, without characters that the name of a configured model may not have."""
    last = model_id.rstrip("/").rpartition("/")[2]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", last) or "model"


def write(to: Path, model: str, data: Path | None, methods: str | None, columns: Mapping[str, str]) -> None:
    """Write a config that runs as it is, with the model, the samples of `data`, and methods that apply to the model.

    `data` None: a task of the demo. `methods` are names, separated by commas; None: the cheap and stable ones.
    `columns` gives the file's name for each known column. Raises UserError for a model or file that cannot be used, and
    if `to` exists; ModelUnavailable for a model that cannot be reached.
    """
    if to.exists():
        raise UserError(f"{to} exists already: name another file")
    name = re.sub(r"[^\w.-]", "-", to.stem).strip("._-") or "mine"
    resolved = resolve(ModelConfig(name=name_of(model), id=model))
    task = _task(data, resolved, columns)
    listed = "\n".join(_methods(methods, resolved))
    text = _TEMPLATE.format(name=name, task=task, model=resolved, id=json.dumps(resolved.config.id), methods=listed)
    RunConfig.load(parse(text, str(to)))
    write_file(to, text, advice=f"; run it with: closelook run --config {to}")


def _methods(names: str | None, resolved: ResolvedModel) -> list[str]:
    """A line for each chosen method, then a line that is commented out for each other method that applies."""
    possible = applicable(resolved.capabilities)
    if names:
        chosen = [method(name.strip()) for name in names.split(",")]
    else:
        chosen = usual_methods(resolved.capabilities)
    lines = [f"  - {record.name:24} # {record.label}: {record.about}".rstrip(": ") for record in chosen]
    for record in possible:
        if record not in chosen:
            cost = f"about {record.cost(_LENGTH):.0f} forwards of a sample"
            lines.append(f"  # - {record.name:22} # {record.label}: {cost}")
    return lines


def usual_methods(capabilities: Collection[Capability]) -> list[Method]:
    """The methods that apply to models with these capabilities, cost at most CHEAP, and are not marked as unstable."""
    possible = applicable(capabilities)
    return [record for record in possible if record.cost(_LENGTH) <= CHEAP and not record.unstable]


def _task(data: Path | None, resolved: ResolvedModel, columns: Mapping[str, str]) -> str:
    """The config's task: the samples of the file `data`, else a task of the demo."""
    if data is None:
        name = DEMO_TASKS[resolved.output]
        return f"{name}: {{source: demo, limit: 100}}  # in its place: mine: {{source: samples, path: FILE}}"
    first = renamed(first_record(data), columns)
    if isinstance(first, Malformed):
        raise UserError(f"{data}: {first}")
    has = {key for key, value in first.items() if value not in (None, "", [])}
    predicted = "label" if "label" in has else "score" if "score" in has else "token" if "target" in has else None
    if resolved.output != (predicted or resolved.output) or (predicted is None and resolved.output == "token"):
        those = "none" if predicted in (None, "token") else f"a {predicted}"
        raise UserError(f"{resolved.config.id} predicts a {resolved.output}, but the samples of {data} have {those}")
    if "text" not in has:
        names = ", ".join(map(str, first))
        raise UserError(f"{data} has no column 'text', but {names}: name the column of texts with --column text=NAME")
    task = task_of_samples(str(data), resolved.output, columns, "evidence" in has)
    text = yaml.safe_dump(task, default_flow_style=True, sort_keys=False, allow_unicode=True, width=inf)
    return f"mine: {text.strip()}"


def task_of_samples(path: str, output: str, columns: Mapping[str, str], has_evidence: bool) -> dict[str, Any]:
    """The settings of a task of the samples at `path`, for models that predict `output`.

    A config expects evidence where a word is predicted and none elsewhere, so only the opposite cases are written.
    """
    task: dict[str, Any] = {"source": SAMPLES.name, "path": path}
    if columns:
        task["columns"] = dict(columns)
    if output != "token":
        task["output"] = output
    if has_evidence != (output == "token"):
        task["evidence"] = has_evidence
    return task


def first_record(data: Path) -> Mapping[str, Any]:
    """The first readable record of a file or folder of samples. Raises UserError if there is none."""
    wrong = ""
    try:
        for file in fetch(str(data), SAMPLES.suffixes, SAMPLES.nested):
            for where, record in records(file):
                if isinstance(record, dict):
                    return record
                reason = record if isinstance(record, Malformed) else "not a JSON object"
                wrong = wrong or f" ({where}: {reason})"
    except OSError as error:
        raise UserError(f"cannot read {error.filename or data}: {error.strerror}") from None
    raise UserError(f"{data} holds no sample{wrong}: give JSON Lines, CSV or Parquet with at least one row")
