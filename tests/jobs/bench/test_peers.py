"""Other packages explain the same texts with the same numbers; those without an interpreter are left out by name."""

import sys

import pytest
import torch

from benchmarks import peers


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.nightly
def test_a_peer_with_an_interpreter_tells_the_same_and_others_are_left_out_by_name(capsys):
    result = peers.main(["--quick", "--texts", "3", "--captum", sys.executable])
    out = capsys.readouterr().out
    assert "gpt2 shrunk: lxt is left out, --lxt names no interpreter" in out
    ratios = result["ratios"]
    for name in ("gpt2", "bert-base"):
        difference = ratios[f"{name} shrunk: gradient_x_input, difference from captum"]
        assert difference["value"] <= difference["target"]
        speed = ratios[f"{name} shrunk: gradient_x_input, texts a second / captum"]
        assert (speed["better"], speed["target"]) == ("higher", 1.5)
        assert "captum " in speed["peer"]
    rates = {(row["geometry"], row["package"]) for row in result["rows"] if "texts_per_s" in row}
    assert rates == {(f"{name} shrunk", who) for name in ("gpt2", "bert-base") for who in ("captum", "closelook")}


def test_an_interpreter_without_the_package_says_what_it_lacks(tmp_path):
    nothing = tmp_path / "python"
    nothing.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'lxt'\" >&2\nexit 1\n")
    nothing.chmod(0o755)
    with pytest.raises(peers.UserError, match=r"--lxt .*No module named 'lxt'"):
        peers.main(["--quick", "--texts", "2", "--lxt", str(nothing)])
