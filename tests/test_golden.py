"""Keys and numbers are those of the stored lists: what a run computed before a change of code is of use after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import DEMOS, PAPERS, keys_of, numbers_of, small_run
from tests.jobs.inline import without_ray

DATA = Path(__file__).parent / "data"
#: Of a column's magnitude, and of each value: what is left of numbers near 1 that cancel is rounding. See
#: `tests/test_parity.py` for how far processors differ.
TOLERANCE, ROUNDING = 1e-4, 1e-6


def stored(name: str) -> dict:
    return json.loads((DATA / f"golden_{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [*DEMOS, *PAPERS])
def test_every_artifact_of_a_shipped_config_has_its_stored_key(name: str, tmp_path: Path) -> None:
    assert keys_of(name, tmp_path) == stored("keys")[name]


def test_every_product_and_table_of_a_small_run_has_its_stored_numbers(tmp_path: Path) -> None:
    with without_ray():
        small_run(tmp_path)
    now, before = numbers_of(tmp_path), stored("numbers")
    assert now.keys() == before.keys()
    for artifact, columns in before.items():
        assert now[artifact].keys() == columns.keys(), artifact
        for column, (count, total, magnitude) in columns.items():
            where = f"{artifact}: {column}"
            assert now[artifact][column][0] == count, where
            allowed = TOLERANCE * magnitude + ROUNDING * count
            assert now[artifact][column][1] == pytest.approx(total, rel=0, abs=allowed), where
