"""`closelook init`: a commented config for one's own model and data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from evaluation.benchmark.samples import Malformed
from evaluation.benchmark.sources.files import fetch
from evaluation.benchmark.sources.own import SAMPLES, records
from jobs.commands.terminal import write_file
from jobs.config import ModelConfig, RunConfig
from jobs.methods import METHODS, method
from jobs.plan.models import ResolvedModel, resolve
from lrp_core.method import Method
from lrp_core.types import UserError

CHEAP = 3.0  # forwards of a sample: what costs more is listed, but commented out
_LENGTH = 30  # tokens that costs are told for


def write(to: Path, model: str, data: Path | None, methods: str | None, console: Console) -> None:
    """Write a config that runs as it is: the model, the file of samples (else a task of the demo), and the methods that
    apply to the model. Raises UserError for a model or file that cannot be used, and never overwrites."""
    if to.exists():
        raise UserError(f"{to} is there already: name another file")
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in to.stem).strip("._-") or "mine"
    resolved = resolve(ModelConfig(name=_name(model), id=model))
    names = [one.strip() for one in methods.split(",")] if methods else None
    text = _config(name, resolved, _task(data, resolved), [method(one) for one in names] if names else None)
    RunConfig.load(_parsed(text, to))
    write_file(to, text)
    console.print(f"written to {to}; run it with: closelook run --config {to}", markup=False)


def _config(name: str, resolved: ResolvedModel, task: str, chosen: list[Method] | None) -> str:
    model = resolved.config
    possible = [one for one in METHODS.values() if not one.missing(resolved.capabilities)]
    wanted = chosen or [one for one in possible if one.cost(_LENGTH) <= CHEAP]
    lines = [f"  - {one.name:24} # {one.label}: {one.about}".rstrip(": ") for one in wanted]
    lines += [
        f"  # - {one.name:22} # {one.label}: about {one.cost(_LENGTH):.0f} forwards of a sample"
        for one in possible
        if one not in wanted
    ]
    return f"""# A run of closelook. `closelook config --keys` tells every key; what is not here has its default.
name: {name}
root: runs/{name}  # everything is kept here: a folder, s3:// or gs://
device: auto  # a GPU where there is one
tasks:
  {task}
models:
  # {resolved.kind.title}, at most {resolved.max_length} tokens
  - name: {model.name}
    id: {json.dumps(model.id)}
    dtype: float32  # or bfloat16, float16, float64
    gpus: 1  # share of a GPU for each worker; plays no part without one
methods:  # `closelook methods NAME` says what each is and can be told
{chr(10).join(lines)}
explanations: [contrastive, target]  # of target minus foil, and of the target alone
token_budget: 4096  # tokens of a batch: lower it where memory runs out
"""


def _task(data: Path | None, resolved: ResolvedModel) -> str:
    if data is None:
        kind = {"token": "sva", "label": "sentiment", "score": "similarity"}[resolved.output]
        return f"{kind}: {{source: demo, limit: 100}}  # in its place: mine: {{source: samples, path: FILE}}"
    known = _first(data)
    output = next((key for key in ("label", "score") if known.get(key) not in (None, "")), None)
    if output is None and resolved.output != "token":
        raise UserError(f"{resolved.config.id} predicts a {resolved.output}, and the samples of {data} have none")
    if output is not None and resolved.output != output:
        raise UserError(f"{resolved.config.id} predicts a {resolved.output}, and the samples of {data} have a {output}")
    more = f", output: {output}" if output else ""
    return f"mine: {{source: {SAMPLES.name}, path: {json.dumps(str(data))}{more}}}"


def _first(data: Path) -> Mapping[str, Any]:
    """The first record of a file or folder of samples that is one. Raises UserError where there is none."""
    wrong = None
    try:
        for file in fetch(str(data), SAMPLES.suffixes, SAMPLES.nested):
            for where, record in records(file):
                if isinstance(record, dict):
                    return record
                wrong = wrong or f"{where}: {record if isinstance(record, Malformed) else 'not a JSON object'}"
    except OSError as error:
        raise UserError(f"cannot read {error.filename or data}: {error.strerror}") from None
    raise UserError(f"{data} holds no sample{f' ({wrong})' if wrong else ''}; they are JSON Lines, CSV or Parquet")


def _parsed(text: str, where: Path) -> dict[str, Any]:
    from jobs.config.file import parse

    return parse(text, str(where))


def _name(model: str) -> str:
    from jobs.commands.opened import name_of

    return name_of(model)
