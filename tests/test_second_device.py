"""The tests in `tests/second_device` run in a process of their own.

torch counts the kinds of devices at the first backward pass of a process: the imitated one must be known before.
"""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize("chosen", ["not nightly", pytest.param("nightly", marks=pytest.mark.nightly)])
def test_on_a_second_device_nothing_mixes_numbers_are_equal_and_waits_are_few(chosen):
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", chosen]
    command = [sys.executable, "-m", "pytest", *options, "tests/second_device"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
