"""What a model predicts itself."""

import pytest
import torch

from lrp_core.readout import with_predictions
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
