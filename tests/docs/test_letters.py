"""The blocks of README and docs/ run letter by letter where only the wheel is, in a folder that was empty."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.docs.reader import blocks
from tests.docs.test_blocks import PAGES
from tests.installed import build_wheel, make_environment

READER = Path(__file__).with_name("reader.py")
BY_DAY = [name for name, page in PAGES.items() if blocks(page, "wheel")]
AT_NIGHT = [name for name, page in PAGES.items() if blocks(page, "nightly")]


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """The environment variables of a process that sees the wheel, and not the clone."""
    wheel = build_wheel(tmp_path_factory.mktemp("packages"))
    return make_environment(tmp_path_factory.mktemp("environment"), wheel)


def check(name, folder, printed, variables, *marks):
    """Run the blocks of a page with these marks in `folder`, and hold what they print against what the page shows."""
    command = ["python", READER, PAGES[name], printed, *marks]
    done = subprocess.run(command, cwd=folder, env=variables, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    for block, text in zip(blocks(PAGES[name], *marks), json.loads(printed.read_text()), strict=True):
        if block["shown"] is not None:
            assert list(map(str.rstrip, text.splitlines())) == block["shown"].splitlines()


@pytest.mark.parametrize("name", BY_DAY)
def test_a_page_does_what_it_says(name, variables, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    check(name, folder, tmp_path / "printed.json", variables, "wheel")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a reader who begins with README and its runs, and goes on with the other pages."""
    return tmp_path_factory.mktemp("reader")


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)  # README runs the demo
@pytest.mark.parametrize("name", AT_NIGHT)
def test_a_page_does_what_it_says_with_its_runs(name, variables, folder, tmp_path):
    check(name, folder, tmp_path / "printed.json", variables, "wheel", "nightly")
