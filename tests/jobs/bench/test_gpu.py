"""The proof of a device, rehearsed on the CPU: every check says what it found, why it was left out, or what failed."""

import json
import subprocess
import sys

import pytest

from benchmarks import gpu
from tests.jobs.small import REPOSITORY


def test_checks_of_the_cpu_pass_and_those_of_a_gpu_are_left_out_by_name(tmp_path):
    names = ["kernel", "out_of_memory", "offload", "checkpointing"]
    checks = gpu.main(
        ["--device", "cpu", "--out", str(tmp_path), *(text for name in names for text in ("--check", name))]
    )
    assert [check.state for check in checks] == ["left out", "left out", "passed", "passed"]
    record = json.loads((tmp_path / "checks.json").read_text())
    assert [check["name"] for check in record["checks"]] == names
    assert "torch" in record["versions"]


def test_a_method_that_gives_other_numbers_on_the_device_is_named(monkeypatch):
    relevance, calls = gpu._relevance, []

    def other(name, view, options):
        calls.append(name)
        result = relevance(name, view, options)
        return result * 1.01 if name == "lrp" and len(calls) % 2 == 0 else result

    monkeypatch.setattr(gpu, "_relevance", other)
    monkeypatch.setattr(gpu, "_asked", lambda view: {"lrp": {}})
    monkeypatch.setattr(gpu, "SHAPES", ("gpt2",))
    with pytest.raises(AssertionError, match=r"lrp on gpt2 in float64 differs by 0\.01 from the CPU"):
        gpu.methods("cpu")


def test_a_check_that_fails_does_not_stop_the_others_and_fails_the_whole(tmp_path, monkeypatch, capsys):
    def broken(device):
        raise AssertionError("not so here")

    monkeypatch.setitem(gpu.CHECKS, "offload", broken)
    with pytest.raises(SystemExit, match="failed: offload"):
        gpu.main(["--device", "cpu", "--out", str(tmp_path), "--check", "offload", "--check", "kernel"])
    out = capsys.readouterr().out
    assert "offload: FAILED" in out
    assert "AssertionError: not so here" in out
    assert "kernel: left out" in out


@pytest.mark.nightly
def test_neither_ray_nor_spacy_is_imported_and_make_uses_the_python_it_is_given():
    heavy = "{'ray', 'pydantic', 'spacy', 'pyarrow', 'datasets', 'typer'} & set(sys.modules)"
    code = f"import sys, benchmarks.gpu; found = {heavy}; assert not found, found"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (REPOSITORY / "Makefile").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("gpu:"))
    assert lines[at].startswith("gpu:  ##"), "it depends on no virtual environment"
    assert lines[at + 1].startswith("\t$(PYTHON) -m benchmarks.gpu --device $(DEVICE)")
