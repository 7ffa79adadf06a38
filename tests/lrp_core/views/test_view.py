import pytest
import torch

from closelook.lrp_core import Batch, UserError, load_model
from tests.oracles import methods as oracles
from tests.tiny import ragged_rows


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_at_the_predicted_position_equal_the_stock_forward(view, side):
    rows = ragged_rows(view)
    logits = view.logits(Batch.collate(rows, 0, side))
    for row, ours in zip(rows, logits, strict=True):
        stock = oracles.stock(view, input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        torch.testing.assert_close(ours, stock[[row["target_id"], row["foil_id"]]])


def test_value_and_output_weights_reproduce_the_projections(view):
    block, x = view.blocks[0], torch.randn(3, view.d_model, dtype=view.dtype)
    weight, bias = block.value_weights()
    values = torch.einsum("gkd,td->tgk", weight, x) + (0 if bias is None else bias)
    stock = block.value(x)  # [3, G * K], or [3, 3 * H * K] where queries, keys and values are fused
    torch.testing.assert_close(values.flatten(1), stock[:, -values[0].numel() :])
    weight, bias = block.output_weights()
    heads = torch.randn(3, view.n_heads, view.head_dim, dtype=view.dtype)
    mixed = torch.einsum("hkd,thk->td", weight, heads) + (0 if bias is None else bias)
    torch.testing.assert_close(mixed, block.output(heads.flatten(1)))


def test_directory_without_weights_is_a_one_line_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"no \*\.safetensors weights") as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)


def test_missing_directory_names_the_nearest_one(tmp_path):
    (tmp_path / "llama-tiny").mkdir()
    with pytest.raises(UserError, match=r"did you mean .*llama-tiny"):
        load_model(tmp_path / "lama-tiny")
