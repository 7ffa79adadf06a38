"""Our attnlrp compared with lxt's efficient path, in two processes that take turns on the same samples.

Both start with token ids and end with the relevance of tokens, so the forward pass is included. While one computes, the
other waits for input and does not disturb it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from benchmarks.parts.harness import Bench, interleave
from benchmarks.parts.samples import alone
from jobs.bench.record import paired_ratio, summary
from jobs.geometries import Geometry
from lrp_core import ModelView, Request
from lrp_core.methods.gradients import explain_many
from lrp_core.records.types import UserError

SCRIPT = Path(__file__).with_name("lxt_peer.py")
#: Fields of a transformers config in versions 4 and 5 alike; the family names further ones.
_FIELDS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "tie_word_embeddings")
TARGET = 1.0
#: Titles of the methods in the results, by the names under which their seconds are kept.
_METHODS = {"ours": "ours", "same_logits_s": "lxt, same logits", "as_documented_s": "lxt, as documented"}


class Interpreter:
    """A script that runs in another Python interpreter during the `with`, and answers lines of JSON.

    Its first answer, to `order`, holds the `versions` of its packages. `option` is the command line option that names
    the interpreter; error messages begin with it.
    """

    def __init__(self, option: str, python: str, script: Path, order: Mapping[str, Any]) -> None:
        self._name, self._command, self._order = f"{option} {python}", [python, "-I", str(script)], order
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Raises UserError if the interpreter does not start or cannot import a package."""
        self._errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))
        try:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        except OSError as error:
            self._stack.close()
            raise UserError(f"{self._name}: {error.strerror}") from None
        self._stack.enter_context(self._process)
        self._stack.callback(self._process.kill)
        try:
            self.versions = self.ask(self._order)["versions"]
        except UserError:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a question and returns the answer.

        Raises UserError with the last line of stderr if the process ends without an answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(record) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
            with suppress(BrokenPipeError):  # closing tries to send the rest of the question
                self._process.stdin.close()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines() or ["the process ended and printed no error"]
            raise UserError(f"{self._name}: {lines[-1]}")
        return json.loads(line)


def described(geometry: Geometry) -> dict[str, Any]:
    """A description of the geometry's model from which transformers 4 and 5 build the same model."""
    config, family = geometry.config(), geometry.model_family
    fields = [*_FIELDS, family.max_length_field, family.feed_forward_field]
    fields += ["num_key_value_heads"] * family.grouped
    sizes = {name: getattr(config, name) for name in fields}
    return {"family": family.name, "auto": family.kind.auto, "sizes": sizes, "threads": torch.get_num_threads()}


class Lxt(Interpreter):
    """lxt, in another interpreter."""

    def __init__(self, python: str, geometry: Geometry, dtype: str, device: str) -> None:
        family = geometry.model_family
        order = described(geometry) | {"dtype": dtype, "device": device, "options": dict(family.kind.forward_options)}
        order["transform"] = family.head_dense and family.head_dense.rpartition(".")[0]
        super().__init__("--lxt", python, SCRIPT, order)


def against_lxt(bench: Bench, geometry: Geometry, view: ModelView, python: str, rows: Sequence[dict[str, Any]]) -> None:
    """Measures the seconds of whole explanations of `rows` by our code and by lxt, and their ratio."""
    dtype = str(view.dtype).removeprefix("torch.")
    seconds: dict[str, list[float]] = {name: [] for name in _METHODS}
    with Lxt(python, geometry, dtype, str(view.device)) as lxt:
        lxt.ask(rows[0])  # warm up
        for index, row in enumerate(rows):
            for turn in ("ours", "lxt") if index % 2 else ("lxt", "ours"):
                timed = {"ours": _ours(view, row)} if turn == "ours" else lxt.ask(row)
                for name, value in timed.items():
                    seconds[name].append(value)
    versions = ", ".join(f"{package} {number}" for package, number in lxt.versions.items())
    facts = {"part": "lxt", "dtype": dtype}
    for name, method in _METHODS.items():
        bench.row(**facts, method=method, wall_s=summary(seconds[name]), versions=versions)
    documented = paired_ratio(seconds["ours"], seconds["as_documented_s"])
    bench.row(**facts, method="ours / lxt, as documented", ratio=documented)
    pair = seconds["ours"], seconds["same_logits_s"]
    bench.paired("attnlrp forward and backward / lxt", pair, TARGET, peer=versions)


def _ours(view: ModelView, row: dict[str, Any]) -> float:
    """Seconds of a whole explanation by our code, after an untimed run as warm-up, which lxt has too."""
    batch = alone(row).to(view.device)
    runs = {"ours": partial(explain_many, view, batch, [Request("attnlrp")])}
    return interleave(runs, repeats=1)["ours"][0]
