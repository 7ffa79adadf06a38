"""The packages of an installation, and their size."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def installed_by(requirements):
    """The names of the packages that requirements need, directly or in turn, without torch and what only it needs."""
    found, waiting = {}, list(map(Requirement, requirements))
    while waiting:
        requirement = waiting.pop()
        name, extras = requirement.name.lower().replace("_", "-"), {"", *requirement.extras}
        if name == "torch" or extras <= found.get(name, set()):
            continue
        found[name] = found.get(name, set()) | extras
        for needed in map(Requirement, distribution(name).requires or ()):
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return set(found)


def megabytes(names):
    """The size of installed packages, without bytecode, which some installers write and others do not."""
    files = [file.locate() for name in names for file in distribution(name).files or () if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def test_explaining_brings_no_ray_no_spacy_no_fastcoref_and_the_extras_do():
    alone = installed_by(PROJECT["dependencies"])
    assert {"transformers", "numpy", "pandas"} <= alone, "what requirements need in turn is counted"
    assert not {"ray", "spacy", "fastcoref", "torch"} & alone
    for extra, names in {"run": {"ray"}, "annotate": {"spacy", "fastcoref"}}.items():
        assert names <= installed_by(PROJECT["optional-dependencies"][extra])


def test_the_readmes_sizes_are_those_of_the_installed_packages():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"need: (\d+) MB beside torch(?s:.*)takes (\d+) MB beside torch", readme)
    least = PROJECT["dependencies"]
    most = [*least, *PROJECT["optional-dependencies"]["run"], *PROJECT["optional-dependencies"]["annotate"]]
    measured = [megabytes(installed_by(requirements)) for requirements in (least, most)]
    assert measured == pytest.approx([int(size) for size in stated.groups()], rel=0.1)
