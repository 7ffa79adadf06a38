"""Scripts in other Python interpreters, where another package is installed, and models that both can build."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import torch

from closelook.jobs.geometries import Geometry
from closelook.lrp_core.records.types import UserError

#: Fields of a transformers config in versions 4 and 5 alike; the family names further ones.
_FIELDS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "tie_word_embeddings")


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
