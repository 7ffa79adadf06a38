"""Keys are those of the stored list: what a run computed before a change of code is of use after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import DEMOS, PAPERS, keys_of, stored


@pytest.mark.parametrize("name", [*DEMOS, *PAPERS])
def test_every_artifact_of_a_shipped_config_has_its_stored_key(name: str, tmp_path: Path) -> None:
    assert keys_of(name, tmp_path) == stored("keys")[name]
