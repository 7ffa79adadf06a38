"""`closelook init`: a commented config for the user's own model and data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed
from evaluation.benchmark.sources.files import fetch
from evaluation.benchmark.sources.own import SAMPLES, records
from jobs.commands.opened import name_of
from jobs.commands.terminal import write_file
from jobs.config import ModelConfig, RunConfig
from jobs.config.file import parse
from jobs.methods import METHODS, method
from jobs.plan.models import ResolvedModel, resolve
from lrp_core.types import UserError

CHEAP = 3.0  # forwards of a sample: methods that cost more are listed, but commented out
_LENGTH = 30  # tokens that costs are told for
_TEMPLATE = """# A run of closelook. `closelook config --keys` tells every key; what is not here has its default.
name: {name}
root: runs/{name}  # everything is kept here: a folder, s3:// or gs://
device: auto  # a GPU where there is one
tasks:
  {task}
models:
  # {title}, at most {most} tokens
  - name: {model.name}
    id: {id}
    dtype: float32  # or bfloat16, float16, float64
    gpus: 1  # share of a GPU for each worker; plays no part without one
methods:  # `closelook methods NAME` says what each is and can be told
{methods}
explanations: [contrastive, target]  # of target minus foil, and of the target alone
token_budget: 4096  # tokens of a batch: lower it where memory runs out
"""


def write(to: Path, model: str, data: Path | None, methods: str | None) -> None:
    """Write a config that runs as it is: the model, the file of samples (else a task of the demo), and the methods that
    apply to the model. Raises UserError for a model or file that cannot be used, and for a file that exists."""
    if to.exists():
        raise UserError(f"{to} is there already: name another file")
    name = re.sub(r"[^\w.-]", "-", to.stem).strip("._-") or "mine"
    resolved = resolve(ModelConfig(name=name_of(model), id=model))
    text = _TEMPLATE.format(
        name=name,
        task=_task(data, resolved),
        title=resolved.kind.title,
        most=resolved.max_length,
        model=resolved.config,
        id=json.dumps(resolved.config.id),
        methods="\n".join(_methods(methods, resolved)),
    )
    RunConfig.load(parse(text, str(to)))
    write_file(to, text, advice=f"; run it with: closelook run --config {to}")


def _methods(names: str | None, resolved: ResolvedModel) -> list[str]:
    """A line for each method of the config, then one, commented out, for each other that the model allows."""
    possible = [record for record in METHODS.values() if not record.missing(resolved.capabilities)]
    if names:
        chosen = [method(name.strip()) for name in names.split(",")]
    else:
        chosen = [record for record in possible if record.cost(_LENGTH) <= CHEAP]
    lines = [f"  - {record.name:24} # {record.label}: {record.about}".rstrip(": ") for record in chosen]
    for record in possible:
        if record not in chosen:
            cost = f"about {record.cost(_LENGTH):.0f} forwards of a sample"
            lines.append(f"  # - {record.name:22} # {record.label}: {cost}")
    return lines


def _task(data: Path | None, resolved: ResolvedModel) -> str:
    """The task of the config: the samples of the file `data`, else a task of the demo."""
    if data is None:
        kind = {"token": "sva", "label": "sentiment", "score": "similarity"}[resolved.output]
        return f"{kind}: {{source: demo, limit: 100}}  # in its place: mine: {{source: samples, path: FILE}}"
    first = _first(data)
    output = next((key for key in ("label", "score") if first.get(key) not in (None, "")), None)
    if resolved.output != (output or "token"):
        has = "none" if output is None else f"a {output}"
        raise UserError(f"{resolved.config.id} predicts a {resolved.output}, and the samples of {data} have {has}")
    more = f", output: {output}" if output else ""
    return f"mine: {{source: {SAMPLES.name}, path: {json.dumps(str(data))}{more}}}"


def _first(data: Path) -> Mapping[str, Any]:
    """The first record of a file or folder of samples that is one. Raises UserError where there is none."""
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
    raise UserError(f"{data} holds no sample{wrong}; they are JSON Lines, CSV or Parquet")
