#!/usr/bin/env python3
"""Tests the lower bounds of the requirements in pyproject.toml.

    .ci/lowest.py [FOLDER [PYTEST_ARGUMENTS]]

The lowest allowed version of every requirement is installed into a new environment in FOLDER (default: build/lowest).
Every module is imported there, and tests that need no Ray run. torch and packages that only tests need have the
versions of constraints.txt. Prints the installed versions; the exit code is 0 if everything works with them.
"""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("run", "annotate", "lora")
FIXED = ("torch", "pytest", "pytest-timeout", "hypothesis", "duckdb")
TESTS = (
    "tests/lrp_core/views/test_view.py",
    "tests/lrp_core/opening/test_loading.py",
    "tests/lrp_core/opening/test_adapters.py",
    "tests/lrp_core/methods/test_attention_maps.py",
    "tests/evaluation",
    "tests/jobs/commands/test_cli.py",
    "tests/jobs/config/test_config.py",
    "tests/explaining/test_front.py",
    "tests/jobs/store/test_ledger.py",
    "tests/jobs/plan/test_models.py",
    "tests/jobs/stages/test_own_samples.py",
    "tests/jobs/stages/test_prepare.py",
    "tests/jobs/stages/test_report.py",
    "tests/jobs/store/test_store.py",
    "tests/docs/test_pages.py",
)
BOUND = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[\w,]+\])?>=(?P<version>[\w.]+)")
IMPORT = """
import importlib, pkgutil, sys
sys.path.insert(0, "src")
import closelook
for module in pkgutil.walk_packages(closelook.__path__, "closelook."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name != "triton":  # torch brings it where there is a GPU
            raise
"""
INSTALLED = """
import sys
from importlib.metadata import version
for name in sys.argv[1:]:
    print(f"{name:<16}{version(name)}")
"""


def lowest(requirements: list[str]) -> dict[str, str]:
    """For each package, the requirement that pins it to its lowest version. Exits if there is no lower bound."""
    pins = {}
    for requirement in requirements:
        bound = BOUND.fullmatch(requirement)
        if bound is None:
            sys.exit(f"pyproject.toml: {requirement} has no lower bound: write it as NAME>=VERSION")
        pins[bound["name"]] = f"{bound['name']}{bound['extras'] or ''}=={bound['version']}"
    return pins


def main() -> None:
    """Installs the lowest versions, and runs the imports and tests with them; exits with the first failure's code."""
    folder, *arguments = sys.argv[1:] or [str(ROOT / "build" / "lowest")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (requirement for extra in EXTRAS for requirement in project["optional-dependencies"][extra])
    pins = lowest([*project["dependencies"], *extras])
    names = list(pins)
    fixed = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    pins |= {name: f"{name}=={fixed[name]}" for name in FIXED}
    venv.create(folder, with_pip=True, clear=True)
    python = str(Path(folder) / "bin" / "python")

    def run(*command: str) -> None:
        if status := subprocess.run([python, *command], cwd=ROOT).returncode:
            sys.exit(status)

    install = ("-m", "pip", "install", "--quiet", "--prefer-binary")
    run(*install, pins.pop("torch"))  # by itself, for the reason that the Makefile gives
    run(*install, *pins.values())
    run(*install, "--no-deps", "--editable", ".")
    run("-c", INSTALLED, *names)
    run("-c", IMPORT)
    run("-m", "pytest", "-m", "not ray and not browser", "-W", "default", *(arguments or TESTS))


if __name__ == "__main__":
    main()
