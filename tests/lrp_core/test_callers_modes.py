"""No number of a method depends on the caller's gradients, inference mode or autocast, nor on tokens it cannot see."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch

from closelook.jobs.methods import METHODS, applicable
from closelook.lrp_core import Batch, UserError, load_model
from closelook.lrp_core.opening.model import view_of
from tests.tiny import BOTH, IMAGES, TINY, picture_rows, ragged_rows, tiny_model


@contextmanager
def float64_by_default():
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


FEW = {"kernel_shap": {"samples": 20}, "integrated_gradients": {"steps": 4}, "smoothgrad": {"samples": 3}}
MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
    "float64": float64_by_default,
}
#: What of a method depends on the whole text where it is asked for.
ALSO = [
    ("attention_rollout", {"discard_threshold": 0.8}),
    ("attention_rollout", {"lowest": 0.5}),
    ("grad_attention_rollout", {"discard_threshold": 0.8}),
    ("atman", {"similarity": 0.1}),
]


def numbers(view, batch):
    """Everything that every method says, by method."""
    results = {}
    for method in applicable(view.family.capabilities):
        relevance = method(view, batch, **FEW.get(method.name, {}))
        results[method.name] = [value for value in vars(relevance).values() if isinstance(value, torch.Tensor)]
    return results


def batch_of(view):
    return Batch.collate(picture_rows(view) if view.kind.images else ragged_rows(view), 0)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("family", [*TINY, "mixtral", *BOTH, *IMAGES])
@pytest.mark.parametrize("mode", MODES)
def test_the_mode_of_the_caller_changes_no_number(family, mode):
    view = tiny_model(family, dtype="float32")
    expected = numbers(view, batch_of(view))
    view = tiny_model(family, dtype="float32")  # which keeps nothing of the calls above
    with MODES[mode]():
        inside = numbers(view, batch_of(view))
    after = numbers(view, batch_of(view))
    for name, outside in expected.items():
        for tensor, other, later in zip(outside, inside[name], after[name], strict=True):
            assert torch.equal(tensor, other), name
            assert torch.equal(tensor, later), name
            assert not other.is_inference()


def test_a_model_may_be_loaded_in_inference_mode(tmp_path):
    tiny_model("gpt2", dtype="float32").model.save_pretrained(tmp_path)
    batch = batch_of(view := load_model(tmp_path))
    with torch.inference_mode():
        inside = METHODS["attnlrp"](load_model(tmp_path), batch)
    assert torch.equal(inside.tokens, METHODS["attnlrp"](view, batch).tokens)


def test_a_model_that_was_made_in_inference_mode_is_refused():
    stock = tiny_model("gpt2").model
    with torch.inference_mode():
        model = type(stock)(stock.config)
        with pytest.raises(UserError, match=r"made inside torch\.inference_mode, so that no gradients can be taken"):
            view_of(model)


# tokens behind the prediction


def longer(view, row, more):
    """The row with `more` tokens behind the prediction."""
    ids = "decoder_input_ids" if view.kind.decoder else "input_ids"
    return {**row, ids: [*row[ids], *more]}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("family", ["gpt2", "t5", "gpt_neo", "llama", "bart"])
def test_tokens_behind_the_prediction_change_nothing(family):
    view = tiny_model(family)
    rows = ragged_rows(view)
    largest = view.token_embedding.weight.abs().sum(-1).argmax()
    view.token_embedding.weight.data[largest] *= 9  # a range of embeddings would show it
    batch = Batch.collate(rows, 0)
    behind = Batch.collate([longer(view, row, [int(largest), 5, 6]) for row in rows], 0)
    drawn = ("random",)  # from the whole text
    asked = [(name, FEW.get(name, {})) for name in METHODS if name not in drawn]
    for name, options in [*asked, *ALSO]:
        method = METHODS[name]
        if not method.applies(view.family.capabilities):
            continue
        expected, relevance = method(view, batch, **options), method(view, behind, **options)
        torch.testing.assert_close(relevance.explained, expected.explained, msg=name)
        for part in ("tokens", "decoder_tokens"):
            alone, ours = getattr(expected, part), getattr(relevance, part)
            if alone is None:
                continue
            for i, row in enumerate(rows):
                length = len(row["decoder_input_ids" if part == "decoder_tokens" else "input_ids"])
                torch.testing.assert_close(ours[i, :length], alone[i, :length], rtol=1e-9, atol=1e-11, msg=name)
                assert not ours[i, length:].any(), name


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_visible_tokens_are_those_up_to_the_prediction(side):
    view = tiny_model("gpt2")
    rows = [{**row, "position": 1} for row in ragged_rows(view, (4, 2))]
    batch = Batch.collate(rows, 0, side)
    expected = [[1, 1, 0, 0], [1, 1, 0, 0] if side == "right" else [0, 0, 1, 1]]
    assert view.visible(batch).int().tolist() == expected
    view = tiny_model("bert")
    assert torch.equal(view.visible(batch), batch.attention_mask.bool())
