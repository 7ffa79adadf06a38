"""Another package runs in its own interpreter; what goes wrong there is one line."""

import sys

import pytest

from benchmarks.parts.peers.interpreter import Interpreter, described
from closelook.jobs.geometries import GEOMETRIES
from closelook.lrp_core.records.types import UserError

ORDER = described(GEOMETRIES["gpt2"].shrunk())
ECHO = """
import json, sys
order = json.loads(sys.stdin.readline())
print(json.dumps({"versions": order["sizes"]}), flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
    if "last" in line:
        sys.exit("it is over")
"""


@pytest.fixture
def echo(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    return script


def test_an_interpreter_that_does_not_exist_is_one_line(echo):
    with (
        pytest.raises(UserError, match="--lxt /no/python: No such file"),
        Interpreter("--lxt", "/no/python", echo, ORDER),
    ):
        pass


def test_an_interpreter_without_the_package_says_what_it_lacks(tmp_path, echo):
    nothing = tmp_path / "python"
    nothing.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'lxt'\" >&2\nexit 1\n")
    nothing.chmod(0o755)
    with pytest.raises(UserError, match="No module named 'lxt'"), Interpreter("--lxt", str(nothing), echo, ORDER):
        pass


def test_every_question_is_answered_and_an_early_end_says_why(echo):
    with Interpreter("--lxt", sys.executable, echo, ORDER) as other:
        assert other.versions["n_inner"] == 128
        assert other.ask({"input_ids": [1, 2]}) == {"input_ids": [1, 2]}
        other.ask({"last": True})
        with pytest.raises(UserError, match="it is over"):
            other.ask({"input_ids": [1]})
    assert other._process.poll() is not None
