"""`explain_many` by rules on operations: the contract of all methods, with the numbers of described families."""

import pytest
import torch

from closelook.lrp_core import Batch
from closelook.lrp_core.methods import gradients
from closelook.lrp_core.operations import method
from closelook.lrp_core.readers.readout import rows_for
from closelook.lrp_core.records.types import Request, span_row
from tests.tiny import picture_rows, ragged_rows, tiny_classifier, tiny_model

MODELS = {
    "gpt2": lambda: tiny_model("gpt2"),
    "llama": lambda: tiny_model("llama"),
    "bert": lambda: tiny_model("bert"),
    "roberta": lambda: tiny_model("roberta"),
    "t5": lambda: tiny_model("t5"),
    "bart": lambda: tiny_model("bart"),
    "opt": lambda: tiny_model("opt"),
    "vit": lambda: tiny_model("vit"),
    "bert classifier": lambda: tiny_classifier("bert"),
    "gpt2 classifier": lambda: tiny_classifier("gpt2"),
}
METHODS = ("lrp", "attnlrp", "gradient_x_input", "gradient_l1", "gradient_l2")


def assert_same(view, batch, requests, **options):
    expected = gradients.explain_many(view, batch, requests, **options)
    found = method.explain_many(view, batch, requests, **options)
    for request in requests:
        one, other = found[request].tensors, expected[request].tensors
        assert one.keys() == other.keys()
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=1e-11, atol=1e-11, msg=f"{request} {name}")
        assert found[request].conserves == expected[request].conserves


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_every_request_is_answered_as_by_described_rules(name, side):
    view = MODELS[name]()
    rows = picture_rows(view) if name == "vit" else ragged_rows(view)
    batch = Batch.collate(rows_for(view, rows), view.pad_id, side)
    explanations = ["target", "log_prob"] + (["contrastive"] if batch.foil_ids is not None else [])
    requests = [Request(name, explanation) for name in METHODS[:3] for explanation in explanations]
    requests += [Request(name, "target", "partial") for name in METHODS]
    requests += [Request("attnlrp", "target", "full", (("reduce", "l2"),))]
    assert_same(view, batch, requests)


def test_spans_and_repeated_texts_are_answered_as_by_described_rules():
    view = tiny_model("gpt2")
    row = {"input_ids": [5, 6, 7, 8, 9]}
    spans = Batch.collate([span_row(row, 1, [7, 8, 9], [1.0, -2.0, 0.5]), span_row(row, 0, [6])], view.pad_id, "left")
    assert_same(view, spans, [Request("attnlrp", "target"), Request("lrp", "log_prob")])
    rows = [{**row, "position": at, "target_id": 3 + at} for at in range(5)]
    assert_same(view, Batch.collate(rows, view.pad_id), [Request("attnlrp", "target")], texts=1)
