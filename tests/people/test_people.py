"""Whole tasks of users, from the first command to the last, as scripts that check the output of each command.

A script runs outside of the clone, in an environment that has the wheel and the packages that it needs. Runs do without
a Ray: tests/jobs/inline.py stands for the command.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.installed import build_wheel, make_environment
from tests.jobs.small import REPOSITORY

pytestmark = [pytest.mark.people, pytest.mark.nightly]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """(folder of the environment, variables with which a process is in it)."""
    folder = tmp_path_factory.mktemp("environment")
    return folder, make_environment(folder, build_wheel(tmp_path_factory.mktemp("packages")))


@pytest.mark.parametrize("name", ["student", "engineer", "reviewer"])
def test_a_person_sees_what_they_came_for(name, environment, tmp_path):
    folder, variables = environment
    shutil.copy(Path(__file__).with_name(f"{name}.py"), tmp_path)
    inline = f"{folder / 'bin' / 'python'} {REPOSITORY / 'tests' / 'jobs' / 'inline.py'}"
    command = [folder / "bin" / "python", f"{name}.py"]
    done = subprocess.run(
        command, env=variables | {"CLOSELOOK": inline}, cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert "closelook comes from the wheel" in done.stdout
