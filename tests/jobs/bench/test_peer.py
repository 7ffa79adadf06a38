"""lxt is measured in its own interpreter; what goes wrong there is one line.

Where CLOSELOOK_LXT names an interpreter with lxt and transformers 4, the measurement itself is tested:

    python -m venv lxt && lxt/bin/pip install torch 'transformers<5' tabulate && lxt/bin/pip install --no-deps lxt
    CLOSELOOK_LXT=lxt/bin/python pytest tests/jobs/bench/test_peer.py
"""

import os
import sys

import pytest

from benchmarks import lrp
from benchmarks.parts.peers import peer
from benchmarks.parts.peers.peer import Lxt
from jobs.geometries import GEOMETRIES
from lrp_core.records.types import UserError

PYTHON = os.environ.get("CLOSELOOK_LXT")
GPT2 = GEOMETRIES["gpt2"].shrunk()
ECHO = """
import json, sys
order = json.loads(sys.stdin.readline())
print(json.dumps({"versions": order["sizes"]}), flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
    if "last" in line:
        sys.exit("it is over")
"""


def test_an_interpreter_that_does_not_exist_is_one_line():
    with pytest.raises(UserError, match="--lxt /no/python: No such file"), Lxt("/no/python", GPT2, "float32", "cpu"):
        pass


def test_an_interpreter_without_lxt_says_what_it_lacks(tmp_path):
    nothing = tmp_path / "python"
    nothing.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'lxt'\" >&2\nexit 1\n")
    nothing.chmod(0o755)
    with pytest.raises(UserError, match="No module named 'lxt'"), Lxt(str(nothing), GPT2, "float32", "cpu"):
        pass


def test_every_question_is_answered_and_an_early_end_says_why(tmp_path, monkeypatch):
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    monkeypatch.setattr(peer, "SCRIPT", script)
    with Lxt(sys.executable, GPT2, "float32", "cpu") as lxt:
        assert lxt.versions["n_inner"] == 128
        assert lxt.ask({"input_ids": [1, 2]}) == {"input_ids": [1, 2]}
        lxt.ask({"last": True})
        with pytest.raises(UserError, match="it is over"):
            lxt.ask({"input_ids": [1]})
    assert lxt._process.poll() is not None


@pytest.mark.skipif(PYTHON is None, reason="CLOSELOOK_LXT names no interpreter that has lxt")
@pytest.mark.parametrize("geometry", ["bert-base", "gpt2", "Llama-3.2-1B"])
def test_both_are_timed_on_the_same_samples(geometry):
    result = lrp.main(["--quick", "--samples", "2", "--geometry", geometry, "--lxt", PYTHON])
    rows = {row["method"]: row for row in result["rows"] if row["part"] == "lxt" and "wall_s" in row}
    assert set(rows) == {"ours", "lxt, same logits", "lxt, as documented"}
    assert all(row["wall_s"]["n"] == 2 and row["wall_s"]["median"] > 0 for row in rows.values())
    ratio = result["ratios"][f"{geometry} shrunk: attnlrp forward and backward / lxt"]
    assert (ratio["target"], ratio["better"]) == (1.0, "lower")
    assert "lxt " in ratio["peer"]
