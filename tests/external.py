"""What tests need beyond `make venv`, each a fixture that skips by the name of the package that brings it.

Tests that use such a fixture get the mark `external`: `.ci/run` runs them once where nothing of this is there.
"""

import os
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

#: Published data and trained models that cannot be in the repository; by default beside it.
SHARED = Path(os.environ.get("CLOSELOOK_SHARED", Path(__file__).parents[2] / "shared"))
PACKAGES = ("inseq", "lxt", "triton")
OF_DEV = ("captum", "moto")  # which `make venv` brings


def programs(package: str, *names: str) -> list[str]:
    """The paths of the programs. Skips the test without one of them; `package` says what to install."""
    paths = [shutil.which(name) for name in names]
    if None in paths:
        pytest.skip(f"needs {package}")
    return paths


@pytest.fixture(scope="session")
def chromium_programs() -> list[str]:
    """The paths of Chromium and of its driver."""
    return programs("Debian's packages chromium and chromium-driver", "chromium", "chromedriver")


@pytest.fixture(scope="session")
def make() -> str:
    """The path of make."""
    [path] = programs("Debian's package make", "make")
    return path


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Programs that start processes in namespaces of their own; whether they may is another question."""
    programs("Debian's package util-linux", "unshare", "nsenter", "setpriv", "mount")


@pytest.fixture(scope="session")
def network_namespaces(namespaces) -> None:
    """Programs that give processes a network of their own, in which one writes to a store."""
    programs("Debian's packages iproute2 and wget", "ip", "wget")


def _fixture_of(module: str):
    """A fixture that imports a Python package, which may not be installed."""

    @pytest.fixture(scope="session", name=module)
    def package():
        if find_spec(module) is None:
            pytest.skip(f"needs the Python package {module}")
        return import_module(module)

    return package


inseq, lxt, triton = map(_fixture_of, PACKAGES)
captum, moto = map(_fixture_of, OF_DEV)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder SHARED."""
    folders = ("data", "models", "kuberay")
    if not all((SHARED / name).is_dir() for name in folders):
        pytest.skip(f"needs the folders {', '.join(folders)} in {SHARED}: set CLOSELOOK_SHARED")
    return SHARED


PROGRAMS = ("chromium_programs", "make", "namespaces", "network_namespaces")
FIXTURES = frozenset((*PACKAGES, *PROGRAMS, "shared"))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items):
    """Marks the tests that use one of these fixtures."""
    for item in items:
        if FIXTURES.intersection(item.fixturenames):
            item.add_marker("external")
