#!/usr/bin/env python3
"""Prints the size of an installation without torch and its requirements: `.venv/bin/python .ci/sizes.py`.

For each choice of extras, a line gives the number of packages and the bytes of their installed files. Everything must
be installed, as by `make venv`. The last line is what every installation contained before there were extras.
"""

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CHOICES = ("", "lora", "annotate", "run", "run,annotate")


def required_packages(requirements: Iterable[str], without: str) -> set[str]:
    """The names of the packages that `requirements` need, directly or in turn.

    The package `without`, and packages that only it needs, are left out.
    """
    extras_of: dict[str, set[str]] = {}  # extras by package
    waiting = list(map(Requirement, requirements))
    while waiting:
        requirement = waiting.pop()
        name, extras = requirement.name.lower().replace("_", "-"), {"", *requirement.extras}
        if name == without or extras <= extras_of.get(name, set()):
            continue
        new = extras - extras_of.get(name, set())
        extras_of[name] = extras_of.get(name, set()) | extras
        for needed in map(Requirement, distribution(name).requires or ()):
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in new):
                waiting.append(needed)
    return set(extras_of)


def size_bytes(package: str) -> int:
    """The bytes of a package's installed files, without bytecode, which some installers write and others do not."""
    files = (file.locate() for file in distribution(package).files or () if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in files if path.is_file())


def main() -> None:
    """Prints the table. Exits if a package is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(f"{'without torch':<26}packages      MB")
    for extras in CHOICES:
        name = f"closelook[{extras}]" if extras else "closelook"
        more = (
            requirement
            for extra in filter(None, extras.split(","))
            for requirement in project["optional-dependencies"][extra]
        )
        try:
            packages = required_packages([*project["dependencies"], *more], without="torch")
        except PackageNotFoundError as error:
            raise SystemExit(f"{error.name} is not installed: run `make venv`") from None
        print(f"{name:<26}{len(packages):8}{sum(map(size_bytes, packages)) / 1e6:8.0f}")


if __name__ == "__main__":
    main()
