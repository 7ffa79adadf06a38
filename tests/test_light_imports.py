"""Heavy packages are imported where something is computed with them: what each entry to the product loads, by name."""

import json
import subprocess
import sys

import pytest

from tests.jobs.small import REPOSITORY

#: Packages, and modules of packages that are light otherwise, which take a tenth of a second and more to import.
HEAVY = (
    "accelerate",
    "datasets",
    "matplotlib",
    "pandas",
    "peft",
    "pyarrow",
    "ray",
    "scipy.stats",
    "torch",
    "transformers",
    "transformers.modeling_utils",
)
_PRINT = "import json, sys; print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
EXPLAINED = 'closelook.explain("The keys", target="are", model="demo/gpt2")["attnlrp"]'
STATUS = 'sys.argv = ["closelook", "status", "--config", "smoke", "--root", {root!r}]'
LOADED = {
    "import closelook": [],
    "import closelook; dir(closelook); closelook.UserError": [],
    "import closelook.jobs.__main__": [],
    "import closelook.jobs.commands.roots.status": ["pyarrow"],
    "import closelook.jobs.commands.roots.compare": ["pyarrow"],
    # transformers reads the configs of models, and brings torch; nothing is computed with either
    "import sys, closelook.jobs.__main__\n{STATUS}\ntry: closelook.jobs.__main__.main()\nexcept SystemExit: pass": [
        "pyarrow",
        "torch",
        "transformers",
    ],
    f"import closelook; {EXPLAINED}": [
        "accelerate",
        "pyarrow",
        "torch",
        "transformers",
        "transformers.modeling_utils",
    ],
}


@pytest.mark.parametrize("code", LOADED)
def test_nothing_heavy_is_loaded_but_what_is_computed_with(code, tmp_path):
    run = code.replace("{STATUS}", STATUS.format(root=str(tmp_path / "none")))
    script = f"{run}\n{_PRINT.format(heavy=HEAVY)}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == LOADED[code]


def test_names_that_are_imported_when_first_used_are_all_there():
    import closelook
    from closelook import alti, lrp_core

    for package in (closelook, lrp_core, alti):
        for name in package.__all__:
            assert getattr(package, name) is not None
            assert name in dir(package)
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
            package.nothing  # noqa: B018
