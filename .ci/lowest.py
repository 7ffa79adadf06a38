#!/usr/bin/env python3
"""A test of the lower bounds of pyproject.toml.

    .ci/lowest.py [FOLDER [PYTEST_ARGUMENTS]]

The lowest version of every requirement is installed into an environment of its own (FOLDER, build/lowest unless told),
every module is imported there, and tests run that need no Ray. torch and what only tests need are those of
constraints.txt. What is installed is printed; the status is 0 where all bounds hold.
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
    "tests/jobs/notebook/test_front.py",
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
sys.path.insert(0, "jobs/front")
for name in ("alti", "closelook", "evaluation", "jobs", "lrp_core"):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
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
    """By name, what pins it to its lowest version. Exits for a requirement without one."""
    pins = {}
    for requirement in requirements:
        bound = BOUND.fullmatch(requirement)
        if bound is None:
            sys.exit(f"pyproject.toml: {requirement} has no lower bound of the form NAME>=VERSION")
        pins[bound["name"]] = f"{bound['name']}{bound['extras'] or ''}=={bound['version']}"
    return pins


def main() -> None:
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
    run(*install, pins.pop("torch"))  # alone, as the Makefile says
    run(*install, *pins.values())
    run(*install, "--no-deps", "--editable", ".")
    run("-c", INSTALLED, *names)
    run("-c", IMPORT)
    run("-m", "pytest", "-m", "not ray and not browser", "-W", "default", *(arguments or TESTS))


if __name__ == "__main__":
    main()
