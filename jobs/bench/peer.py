"""Our attnlrp against lxt's efficient path, each in a process of its own, taking turns on the same samples.

Both start from token ids and end with the relevance of tokens, forward pass included. The process whose turn it is not
waits for its input, so the machine is the other's.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from jobs.bench.harness import Bench, paired_ratio, summary, synchronise
from jobs.bench.samples import alone
from jobs.plan.geometries import Geometry
from lrp_core import ModelView, Request
from lrp_core.methods.gradients import explain_many
from lrp_core.types import UserError

SCRIPT = Path(__file__).with_name("lxt_peer.py")
#: Fields of a transformers config that both versions 4 and 5 know, beside those that the family names.
_FIELDS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "tie_word_embeddings")
TARGET = 1.0


class Lxt:
    """lxt in another interpreter, for as long as the `with` lasts."""

    def __init__(self, python: str, geometry: Geometry, dtype: str, device: str) -> None:
        config, family = geometry.config(), geometry.model_family
        fields = (*_FIELDS, family.max_length_field, family.feed_forward_field)
        sizes = {name: getattr(config, name) for name in (*fields, *(("num_key_value_heads",) * family.grouped))}
        transform = family.head_dense and family.head_dense.rpartition(".")[0]
        built = {"family": family.name, "auto": family.kind.auto, "sizes": sizes, "dtype": dtype, "device": device}
        called = {"options": dict(family.kind.forward_options), "transform": transform}
        self._order = built | called | {"threads": torch.get_num_threads()}
        self._python = python
        self._stack = ExitStack()

    def __enter__(self) -> Lxt:
        """Raises UserError when the interpreter cannot be started, or lxt not be imported there."""
        self._errors = self._stack.enter_context(tempfile.TemporaryFile("w+"))
        try:
            self._process = subprocess.Popen(
                [self._python, "-I", str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            self._stack.close()
            raise UserError(f"--lxt {self._python}: {error.strerror}") from None
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
        """One question, one answer. Raises UserError with the last line of its errors when the process ends instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(record) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
            with suppress(BrokenPipeError):  # what was not read is still to be flushed
                self._process.stdin.close()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = (self._errors.read().strip().splitlines() or ["it ended without a word"])[-1]
            raise UserError(f"--lxt {self._python}: {said}")
        return json.loads(line)


def against_lxt(
    bench: Bench, name: str, geometry: Geometry, view: ModelView, python: str, rows: Sequence[dict[str, Any]]
) -> None:
    """Seconds of whole explanations of `rows` by ours and by lxt, and their ratio."""
    dtype = str(view.dtype).removeprefix("torch.")
    seconds: dict[str, list[float]] = {"ours": [], "same_logits_s": [], "as_documented_s": []}
    with Lxt(python, geometry, dtype, str(view.device)) as lxt:
        lxt.ask(rows[0])  # warm up
        for i, row in enumerate(rows):
            for turn in ("ours", "lxt") if i % 2 else ("lxt", "ours"):
                timed = {"ours": _ours(view, row)} if turn == "ours" else lxt.ask(row)
                for way, value in timed.items():
                    seconds[way].append(value)
    versions = ", ".join(f"{package} {number}" for package, number in lxt.versions.items())
    ways = {"ours": "ours", "lxt, same logits": "same_logits_s", "lxt, as documented": "as_documented_s"}
    for method, way in ways.items():
        row = {"part": "lxt", "geometry": name, "dtype": dtype, "method": method, "wall_s": summary(seconds[way])}
        bench.row(**row, versions=versions)
    documented = paired_ratio(seconds["ours"], seconds["as_documented_s"])
    bench.row(part="lxt", geometry=name, dtype=dtype, method="ours / lxt, as documented", ratio=documented)
    ratio = paired_ratio(seconds["ours"], seconds["same_logits_s"])
    median = ratio.pop("median")
    bench.ratio("attnlrp forward and backward / lxt", median, TARGET, "lower", geometry=name, **ratio, peer=versions)


def _ours(view: ModelView, row: dict[str, Any]) -> float:
    """Seconds of a whole explanation; an untimed run before it warms caches up, as in lxt's turn."""
    batch, device = alone(row).to(view.device), str(view.device)
    for _ in range(2):
        synchronise(device)
        start = time.perf_counter()
        explain_many(view, batch, [Request("attnlrp")])
        synchronise(device)
    return time.perf_counter() - start
