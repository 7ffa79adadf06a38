"""The explained number has one table of records."""

import subprocess
import sys

import pytest
import torch

from closelook.lrp_core import UnsupportedMethod, UserError
from closelook.lrp_core.records.explained import (
    CONTRASTIVE,
    EXPLAINED,
    NONE,
    TARGET,
    explained_by,
    needs_foil,
    versions,
    whichever,
)

pytestmark = pytest.mark.numeric
PAIR = torch.tensor([[3.0, 1.0], [5.0, 7.0]])


def test_the_explained_number_is_read_from_target_and_foil():
    assert CONTRASTIVE.of(PAIR).tolist() == [2.0, -2.0]
    assert TARGET.of(PAIR).tolist() == [3.0, 5.0]
    directions = torch.stack([PAIR, 2 * PAIR], -1)  # [B, 2, D]
    assert CONTRASTIVE.of(directions)[..., 1].tolist() == [4.0, -4.0]


def test_a_missing_foil_says_what_to_ask_for():
    with pytest.raises(
        UserError, match="a contrastive explanation needs foil_ids; without foils ask for explanation='target'"
    ):
        CONTRASTIVE.of(PAIR[:, :1])
    assert TARGET.of(PAIR[:, :1]).tolist() == [3.0, 5.0]
    assert [whichever(has_foil) for has_foil in (True, False)] == [CONTRASTIVE, TARGET]


def test_only_explanations_that_exist_are_known():
    with pytest.raises(UnsupportedMethod, match="no explanation 'contrast'; choose 'contrastive' or 'target'"):
        explained_by("contrast")
    assert {name: needs_foil(name) for name in (*EXPLAINED, NONE)} == {
        "contrastive": True,
        "target": False,
        "log_prob": False,
        "none": False,
    }


def test_what_is_explained_is_known_without_torch():
    code = "import sys, closelook.lrp_core.records.explained; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_explanations_whose_numbers_changed_enter_keys():
    assert versions(["target", "contrastive", "none"]) == {}
    assert versions(["target", "log_prob"]) == {"explained": {"log_prob": 2}}
