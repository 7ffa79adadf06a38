"""The package closelook is found whatever folders lie beside its user, and none of its modules is imported twice."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import build_wheel, make_environment

REPOSITORY = Path(__file__).parents[1]
ROOMS = ("alti", "evaluation", "jobs", "lrp_core")
EXPLAINED = """
import closelook
print(closelook.explain("The keys", target="are", model="demo/gpt2")["attnlrp"].shape)
"""
TWICE = f"""
import sys
from pathlib import Path
files = [str(Path(m.__file__).resolve()) for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
ours = [file for file in files if file.startswith({str(REPOSITORY)!r}) and "/site-packages/" not in file]
print([file for file in set(ours) if ours.count(file) > 1])
print([name for name in sys.modules if name.partition(".")[0] in {ROOMS!r}])
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables with which a process is in an environment that has the wheel, and does not see the clone."""
    return make_environment(tmp_path_factory.mktemp("environment"), build_wheel(tmp_path_factory.mktemp("packages")))


def test_a_users_own_packages_do_not_hide_closelooks(environment, tmp_path):
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise ImportError('this is the user\\'s')")
    done = subprocess.run(["python", "-c", EXPLAINED], env=environment, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(["closelook", "methods"], env=environment, cwd=tmp_path, text=True, capture_output=True)
    assert "attnlrp" in listed.stdout, listed.stderr


@pytest.mark.parametrize("where", [REPOSITORY, REPOSITORY / "src"], ids=["in the clone", "beside the rooms"])
def test_no_module_is_imported_by_two_names(where):
    done = subprocess.run(
        [sys.executable, "-c", EXPLAINED + "import closelook.jobs.stages.run\n" + TWICE],
        cwd=where,
        env={"PYTHONPATH": str(REPOSITORY / "src"), "PATH": "/usr/bin"},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[]", "[]"]
