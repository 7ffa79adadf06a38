"""The tests in `tests/second_device` run in a process of their own.

torch counts the kinds of devices at the first backward pass of a process: the imitated one must be known before.
"""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_on_a_second_device_nothing_mixes_numbers_are_equal_and_waits_are_few():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/second_device"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
