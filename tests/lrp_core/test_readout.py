"""What a model predicts itself."""

from dataclasses import replace

import pytest
import torch

from lrp_core import Batch
from lrp_core.readout import explained_numbers, label_logits, predicted, with_predictions
from tests.tiny import ragged_rows, tiny_model


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_rows_without_a_target_get_the_models_own_prediction_and_others_keep_theirs(family):
    view = tiny_model(family)
    rows = ragged_rows(view, (7, 4, 10, 5))
    asked = [row | {"target_id": None, "foil_id": None} if at != 2 else row for at, row in enumerate(rows)]
    predicted = with_predictions(view, asked)
    for row, before, after in zip(rows, asked, predicted, strict=True):
        logits = view.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        own = int(logits.argmax())
        assert after == (
            before if before["target_id"] is not None else before | {"target_id": own, "predicted_id": own}
        )


def test_neighbours_do_not_decide_between_tokens_that_are_nearly_equal():
    """In bfloat16 the same sample rounds otherwise in a batch of longer ones: of equal weights, noise decides."""
    view = tiny_model("llama", dtype="bfloat16")
    widths: list[tuple[int, ...]] = []
    hook = view.model.base_model.register_forward_pre_hook(
        lambda _, __, options: widths.append(tuple(options["inputs_embeds"].shape[:2])), with_kwargs=True
    )
    rows = [row | {"target_id": None, "foil_id": None} for row in ragged_rows(view, (7, 4, 10))]
    together = with_predictions(view, rows)
    hook.remove()
    assert widths == [(1, 7), (1, 4), (1, 10)]
    assert together == [with_predictions(view, [row])[0] for row in rows]


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_the_log_probability_of_a_certain_target_is_more_than_rounding(family):
    """The sum over the whole vocabulary is, in float32, the target's own exponential: their difference is noise."""
    wide = tiny_model(family)
    wide.unembedding.weight.mul_(25)
    batch = Batch.collate(ragged_rows(wide), 0)
    ids = predicted(wide, batch)[:, 0]
    batch = replace(batch, target_ids=ids)
    _, wanted = explained_numbers(wide, wide.hidden(batch), batch, ["log_prob"])
    every = label_logits(wide, wide.prediction(wide.hidden(batch), batch))
    others = every.scatter(1, ids[:, None], -torch.inf)
    by_hand = -torch.log1p((others - every.gather(1, ids[:, None])).exp().sum(1))
    torch.testing.assert_close(wanted["log_prob"], by_hand, rtol=1e-9, atol=0)
    torch.testing.assert_close(wanted["log_prob"], every.log_softmax(1).gather(1, ids[:, None])[:, 0])
    assert (by_hand.abs() < 1e-6).any()
    narrow = tiny_model(family, dtype="float32")
    narrow.unembedding.weight.mul_(25)
    _, numbers = explained_numbers(narrow, narrow.hidden(batch), batch, ["log_prob"])
    torch.testing.assert_close(numbers["log_prob"].double(), by_hand, rtol=1e-3, atol=0)
