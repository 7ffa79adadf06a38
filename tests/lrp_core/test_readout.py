"""What a model predicts itself."""

import pytest
import torch

from lrp_core.readout import with_predictions
from tests.tiny import ragged_rows, tiny_model


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("token_budget", [1, 1000])
def test_rows_without_a_target_get_the_models_own_prediction_and_others_keep_theirs(family, token_budget):
    view = tiny_model(family)
    rows = ragged_rows(view, (7, 4, 10, 5))
    asked = [row | {"target_id": None, "foil_id": None} if at != 2 else row for at, row in enumerate(rows)]
    found = with_predictions(view, asked, token_budget)
    for row, before, after in zip(rows, asked, found, strict=True):
        logits = view.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        expected = before["target_id"] if before["target_id"] is not None else int(logits.argmax())
        assert after == before | {"target_id": expected}
