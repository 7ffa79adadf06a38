"""The packages of an installation, as `make sizes` prints them, and those that `make lowest` installs."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def sizes():
    return runpy.run_path(str(ROOT / ".ci" / "sizes.py"))


def test_explaining_brings_no_ray_no_spacy_no_fastcoref_and_the_extras_do(sizes):
    alone = sizes["required_packages"](PROJECT["dependencies"], "torch")
    assert {"transformers", "numpy", "pandas"} <= alone, "what requirements need in turn is counted"
    assert not {"ray", "spacy", "fastcoref", "torch"} & alone
    for extra, names in {"run": {"ray"}, "annotate": {"spacy", "fastcoref"}}.items():
        assert names <= sizes["required_packages"](PROJECT["optional-dependencies"][extra], "torch")


def test_the_readmes_sizes_are_those_that_are_printed(sizes, capsys):
    sizes["main"]()
    printed = dict(re.findall(r"^(closelook\S*) +\d+ +(\d+)$", capsys.readouterr().out, re.M))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"need: (\d+) MB beside torch(?s:.*)takes (\d+) MB beside torch", readme)
    measured = printed["closelook"], printed["closelook[run,annotate]"]
    assert [int(size) for size in measured] == pytest.approx([int(size) for size in stated.groups()], rel=0.1)


def test_the_lowest_versions_are_those_of_every_requirement():
    pins = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"](PROJECT["dependencies"])
    for requirement in map(Requirement, PROJECT["dependencies"]):
        pin = Requirement(pins[requirement.name])
        (bound,) = requirement.specifier
        assert str(pin.specifier) == f"=={bound.version}"
        assert pin.extras == requirement.extras
    with pytest.raises(SystemExit, match="torch has no lower bound"):
        runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"](["torch"])
