"""`make test` is green where only `make venv` was: whatever else a test needs is a fixture of tests/external.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests import external

ROOT = Path(__file__).parents[1]
#: How a test would look for a program, a package or shared data by itself.
LOOKING = re.compile(r"\bwhich\(|importorskip|\bfind_spec\(.* is None|CLOSELOOK_SHARED")


def test_no_test_looks_for_more_than_make_venv_by_itself():
    own = {Path(__file__), Path(external.__file__)}
    files = [path for path in (ROOT / "tests").rglob("*.py") if path not in own]
    looking = {path for path in files if LOOKING.search(path.read_text(encoding="utf-8"))}
    assert looking == {ROOT / "tests" / "letters.py"}, "whose docstring says where its model is"


def test_every_fixture_of_what_is_external_marks_its_tests():
    text = Path(external.__file__).read_text(encoding="utf-8")
    named = re.findall(r"^@pytest.fixture\(scope=\"session\"\)\ndef (\w+)\(", text, re.M)
    assert {*named, *external.PACKAGES} == external.FIXTURES


def test_tests_that_need_a_browser_skip_by_its_name_where_there_is_none(tmp_path):
    """A browser that is not there must not be a failure: the case on a sheet of paper failed so."""
    python = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-m", "external"]
    environment = os.environ | {"PATH": str(tmp_path), "CLOSELOOK_SHARED": str(tmp_path / "nowhere")}
    done = subprocess.run(
        [*python, "tests/browser/test_case_sheet.py"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "needs Debian's packages chromium and chromium-driver" in done.stdout
    assert "3 skipped" in done.stdout


def test_ci_runs_tests_without_what_is_external_before_it_installs_any_of_it():
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    steps = ("make venv", "run_tests_of_a_bare_machine ||", "install_system_packages ||", "make test ||")
    places = [text.index(f"\n{step}") for step in steps]
    assert places == sorted(places)
