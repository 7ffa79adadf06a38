"""With any two options of a config, the explained logits are the stock model's, or the model is refused by name."""

from copy import deepcopy

import pytest
import torch
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as WITH_LABELS

from closelook.lrp_core import METHODS, Batch, ModelView, UnsupportedModel, random_model
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.verification.stock import stock_logits, without_biases
from tests.lrp_core.families.config_options import (
    HEAD,
    INERT,
    OPTIONS,
    REFUSED,
    REFUSED_WITH_LABELS,
    pairwise,
)
from tests.tiny import picture_rows, ragged_rows, tiny_config, tiny_model

CLOSE = {"rtol": 1e-5, "atol": 2e-5}  # transformers rounds to float32 in places


def fields_of(family: str, settings: dict) -> dict:
    """`settings` as fields of the config, which transformers may write into."""
    settings = deepcopy(settings)
    head = settings.pop(HEAD, "tokens")
    return settings if head == "tokens" else {**settings, "architectures": [WITH_LABELS[family]], "num_labels": head}


def made(family: str, settings: dict) -> ModelView:
    fields = fields_of(family, settings)
    return tiny_model(family, attn=fields.pop("_attn_implementation", "sdpa"), **fields)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("family", list(OPTIONS))
def test_explained_logits_equal_the_stock_models_for_any_two_options(family):
    for settings in pairwise(OPTIONS[family]):
        view = made(family, settings)
        rows = picture_rows(view, 2) if view.kind.images else ragged_rows(view, lengths=(6, 10))
        batch = Batch.collate(rows, 0)
        ours = view.logits(batch)
        relevance = METHODS["lrp"](view, batch)
        for i, row in enumerate(rows):
            targets = [row[name] for name in ("target_id", "foil_id") if row.get(name) is not None]
            stock = stock_logits(view, row)[targets]
            torch.testing.assert_close(ours[i], stock, **CLOSE, msg=str(settings))
            torch.testing.assert_close(relevance.logit_target[i], stock[0], **CLOSE, msg=str(settings))
            explained = stock[0] - stock[1] if len(stock) > 1 else stock[0]
            torch.testing.assert_close(relevance.explained[i], explained, **CLOSE, msg=str(settings))
        with without_biases(view.model):
            residual = METHODS["lrp"](view, batch).residual
        torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=1e-9, msg=str(settings))


def refusals():
    for family, options in REFUSED.items():
        yield from ((family, field, value, "tokens") for field, values in options.items() for value in values)
    for family, options in REFUSED_WITH_LABELS.items():
        yield from ((family, field, value, 3) for field, values in options.items() for value in values)


@pytest.mark.parametrize(("family", "field", "value", "head"), list(refusals()))
def test_an_option_that_is_not_covered_is_refused_by_name_when_loaded(family, field, value, head):
    fields = fields_of(family, {field: value} if head == "tokens" else {field: value, HEAD: head})
    with pytest.raises(UnsupportedModel, match=rf"^{family} models .*\b{field}\b") as error:
        random_model(tiny_config(family, **fields))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", list(OPTIONS))
def test_every_field_of_a_config_is_tried_refused_or_known_to_change_nothing(family):
    fields = set(tiny_config(family).to_dict()).difference(PretrainedConfig().to_dict(), INERT)
    idle = {name for name in fields if "drop" in name}
    assert fields - idle <= OPTIONS[family].keys() | REFUSED[family].keys() | REFUSED_WITH_LABELS.get(family, {}).keys()


def test_every_family_has_options():
    assert set(FAMILIES) == set(OPTIONS) == set(REFUSED)


def test_any_two_values_of_two_options_occur_together():
    options = {"a": (1, 2, 3), "b": ("x", "y"), "c": (None, [], {})}
    rows = list(pairwise(options))
    for first in options:
        for second in options:
            for value in options[first]:
                partners = [row[second] for row in rows if row[first] == value]
                assert first == second or all(other in partners for other in options[second])
    assert len(rows) < 3 * 2 * 3
