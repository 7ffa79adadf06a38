"""Labels that several outputs of a model share are told apart, or refused: never silently the first."""

from dataclasses import replace

import pytest

from closelook.evaluation.benchmark.labels import distinct
from closelook.jobs.config import ModelConfig
from closelook.jobs.plan.models import resolve
from closelook.lrp_core.records.types import UserError

NAMES = ("crane", "tench", "Crane", "drake")


def test_a_label_of_several_outputs_is_refused_by_name():
    model = replace(resolve(ModelConfig(name="vit", id="demo/vit")), labels=distinct(NAMES))
    assert [model.label_id(name) for name in ("crane (0)", "crane (2)", "tench", "heron")] == [0, 2, 1, None]
    with pytest.raises(
        UserError, match=r"vit has the label 'crane' more than once: write 'crane \(0\)' or 'Crane \(2\)'"
    ):
        model.label_ids(["tench", "crane"])


def test_classes_of_a_config_are_told_apart_too():
    named = resolve(ModelConfig(name="vit", id="demo/vit", classes=("round", "round")))
    assert named.labels == ("round (0)", "round (1)")
