"""Fixtures over the root of a small whole run, which tests of the store share."""

import shutil
from pathlib import Path

import pytest

from tests.jobs.store.roots import Root, computed_in


@pytest.fixture(scope="session")
def computed(tmp_path_factory) -> Path:
    """The root of a whole run."""
    return computed_in(tmp_path_factory.mktemp("computed"))


@pytest.fixture
def root(computed, tmp_path, closelook, inline) -> Root:
    """A copy of that root, which the test may change."""
    return Root(Path(shutil.copytree(computed, tmp_path / "root")), closelook)
