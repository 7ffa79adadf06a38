"""What the Makefile's targets run, with a Python and a command that note how they are called."""

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def made(target, folder, failing):
    """The status of `make target`, and the calls of a Python that fails where its arguments have `failing`."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for program in (programs / "python", programs / "closelook"):
        program.write_text(
            f'#!/bin/sh\necho "$ATEN_CPU_CAPABILITY $*" >> calls\ncase "$*" in *"{failing}"*) exit 1;; esac\n',
        )
        program.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    done = subprocess.run(["make", target], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize(("failing", "fails"), [("not ray", True), ("-m ray", True), ("nothing", False)])
def test_a_red_test_keeps_none_of_the_others_from_running_and_make_test_fails(tmp_path, failing, fails):
    status, calls = made("test", tmp_path, failing)
    assert ["-m not ray" in call for call in calls] == [True, False]
    assert "-m ray" in calls[1]
    assert all("not nightly" in call for call in calls)
    assert bool(status) == fails


@pytest.mark.parametrize(
    ("failing", "fails"), [("-m nightly", True), ("numeric", True), ("chaos", True), ("nothing", False)]
)
def test_a_red_test_at_night_keeps_no_other_and_no_chaos_from_running(tmp_path, failing, fails):
    status, (nightly, numeric, chaos) = made("nightly", tmp_path, failing)
    assert "-m nightly" in nightly
    assert numeric.startswith("avx2 ")
    assert "-m numeric" in numeric
    assert "bench chaos" in chaos
    assert bool(status) == fails


@pytest.mark.parametrize(("failing", "fails"), [("numeric", True), ("nothing", False)])
def test_numbers_are_compared_as_on_the_oldest_instruction_set(tmp_path, failing, fails):
    status, [call] = made("numeric", tmp_path, failing)
    assert call.startswith("default ")
    assert "-m numeric" in call
    assert bool(status) == fails
