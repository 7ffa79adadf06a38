"""ALBERT: layers that share weights are told apart, and nothing else changes."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForMaskedLM

from closelook.alti import METHODS as VECTORS
from closelook.lrp_core import METHODS, Batch, UnsupportedModel, attribute, load_model
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.opening.model import view_of
from tests.adapters import adapted
from tests.tiny import ragged_rows, tiny_classifier, tiny_config, tiny_model


@pytest.mark.parametrize(("layers", "groups"), [(2, 1), (4, 2), (3, 3)])
def test_layers_that_share_weights_say_what_the_stock_model_says(layers, groups):
    changes = {"num_hidden_layers": layers, "num_hidden_groups": groups}
    stock = AutoModelForMaskedLM.from_config(tiny_config("albert", **changes)).eval().double()
    ids = torch.tensor([ragged_rows(tiny_model("albert"))[0]["input_ids"]])
    with torch.no_grad():
        before, size = stock(ids).logits, sum(p.numel() for p in stock.parameters())
        view = view_of(stock)
        assert torch.equal(view.model(ids).logits, before)
        assert torch.equal(view_of(view.model).model(ids).logits, before)  # wrapped once more
    assert len(view.blocks) == layers
    assert len({block.attention for block in view.blocks}) == layers
    weights = {block.output.weight.data_ptr() for block in view.blocks}
    assert len(weights) == groups, "weights are not copied"
    assert sum(p.numel() for p in view.model.parameters()) == size
    assert stock.config.num_hidden_groups == groups


def test_heads_of_layers_that_share_weights_differ():
    view = tiny_model("albert", num_hidden_layers=3)
    heads = attribute("attnlrp", view, Batch.collate(ragged_rows(view), 0), heads=True).heads  # [B, L, H, P]
    assert heads.shape[1] == 3
    for layer, other in ((0, 1), (1, 2)):
        assert (heads[:, layer] - heads[:, other]).abs().max() > 1e-3


def test_a_model_is_saved_and_loaded_with_the_weights_of_its_groups(tmp_path):
    view = tiny_model("albert", dtype="float32", num_hidden_layers=3)
    stock = AutoModelForMaskedLM.from_config(view.config).eval()
    stock.load_state_dict(view.model.state_dict())
    stock.save_pretrained(tmp_path)
    ids = torch.tensor([[4, 5, 6, 7]])
    assert torch.equal(load_model(tmp_path).model(ids).logits, view.model(ids).logits)


def test_an_adapter_beside_the_weights_is_beside_those_of_every_layer(tmp_path):
    stock = AutoModelForMaskedLM.from_config(tiny_config("albert", num_hidden_layers=3)).eval()
    stock.save_pretrained(tmp_path / "base")
    targets = ["query", "value", "ffn_output"]
    adapted(tmp_path / "adapter", SimpleNamespace(model=stock, family=FAMILIES["albert"]), target_modules=targets)
    merged, beside = (
        load_model(tmp_path / "base", adapter=tmp_path / "adapter", merge=merge, dtype="float64")
        for merge in (True, False)
    )
    plain = load_model(tmp_path / "base", dtype="float64")
    batch = Batch.collate(ragged_rows(merged), 0)
    for method in (METHODS["attnlrp"], VECTORS["decompx"]):
        expected, relevance, without = (method(view, batch).tokens for view in (merged, beside, plain))
        torch.testing.assert_close(relevance, expected, rtol=1e-6, atol=1e-9)
        assert not torch.allclose(relevance, without, rtol=1e-2)


def test_a_model_on_several_devices_is_refused():
    model = AutoModelForMaskedLM.from_config(tiny_config("albert"))
    model.hf_device_map = {"albert.embeddings": 0, "albert.encoder": "cpu"}
    with pytest.raises(UnsupportedModel, match="albert models, whose layers share weights, need one device"):
        view_of(model)


def test_a_mean_over_tokens_is_refused_of_classifiers_and_no_matter_of_masked_models():
    with pytest.raises(
        UnsupportedModel, match=r"modernbert models with labels .* classifier_pooling=cls only, not mean"
    ):
        tiny_classifier("modernbert", classifier_pooling="mean")
    assert tiny_model("modernbert", classifier_pooling="mean").n_layers == 2
