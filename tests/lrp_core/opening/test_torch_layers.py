"""Classifiers around torch's own encoder follow rules on operations and say what the stock model says."""

import copy
from itertools import product

import pytest
import torch
from torch import nn

from closelook.alti import METHODS as VECTORS
from closelook.lrp_core import METHODS, Batch, attribute, load_model
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.opening.model import view_of
from tests.tiny import ragged_rows
from tests.torch_family import TORCH_CLASSIFIER
from tests.torch_modeling import TorchConfig, TorchForSequenceClassification

ROUNDED = {"rtol": 1e-6, "atol": 1e-7}  # stabilisers and solvers included
KINDS = list(product((True, False), ("relu", "gelu")))


@pytest.fixture(autouse=True)
def described(monkeypatch):
    monkeypatch.setitem(FAMILIES._records, TORCH_CLASSIFIER.name, TORCH_CLASSIFIER)


def stock(norm_first=True, hidden_act="gelu", **changes):
    torch.manual_seed(0)
    config = TorchConfig(norm_first=norm_first, hidden_act=hidden_act, num_labels=3, **changes)
    return TorchForSequenceClassification(config).eval().double()


def opened(*kind):
    model = stock(*kind)
    return model, view_of(copy.deepcopy(model))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_equal_those_of_the_stock_model_with_padding(kind, side):
    model, view = opened(*kind)
    rows = ragged_rows(view)
    batch = Batch.collate(rows, 0, side)
    logits = view.logits(batch)
    with torch.no_grad():
        for row, ours in zip(rows, logits, strict=True):
            expected = model(torch.tensor([row["input_ids"]])).logits[0, [row["target_id"], row["foil_id"]]]
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_gives_a_padded_batch_what_it_gives_single_samples(kind):
    _, view = opened(*kind)
    rows = ragged_rows(view)
    names = []
    for method in (*METHODS.values(), *VECTORS.values()):
        if method.missing(view.family.capabilities):
            continue
        names.append(method.name)
        together = method(view, Batch.collate(rows, 0))
        for at, row in enumerate(rows):
            alone = method(view, Batch.collate([row], 0)).tokens[0]
            kept = together.tokens[at, : len(row["input_ids"])]
            torch.testing.assert_close(kept, alone, **ROUNDED, msg=method.name)
    assert {"lrp", "attnlrp", "integrated_gradients", "occlusion"} <= set(names)


def test_a_model_is_saved_and_loaded(tmp_path):
    model, _ = opened()
    model.float().save_pretrained(tmp_path)
    ids = torch.tensor([[4, 5, 6, 7]])
    torch.testing.assert_close(load_model(tmp_path).model(ids).logits, model(ids).logits)


def test_rules_find_the_token_that_a_trained_classifier_looks_for():
    """The label is 1 where token 7 stands among eight others: by chance an explanation points at it once in nine."""
    torch.manual_seed(0)
    model = TorchForSequenceClassification(TorchConfig(num_labels=2)).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)

    def drawn(count):
        ids = torch.randint(8, 50, (count, 10))
        labels = torch.arange(count) % 2
        places = torch.randint(1, 10, (count,))
        ids[torch.arange(count), places] = torch.where(labels == 1, 7, ids[torch.arange(count), places])
        ids[:, 0] = 1
        return ids, labels, places

    for _ in range(150):
        ids, labels, _ = drawn(64)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(ids).logits, labels).backward()
        optimiser.step()
    ids, labels, places = drawn(200)
    view = view_of(model.eval())
    assert (view.model(ids).logits.argmax(-1) == labels).float().mean() > 0.95
    kept = [(row, position) for row, label, position in zip(ids.tolist(), labels, places, strict=True) if label]
    rows = [{"input_ids": row, "position": 0, "target_id": 1, "foil_id": 0} for row, _ in kept]
    for name in ("lrp", "attnlrp"):
        relevance = attribute(name, view, Batch.collate(rows, 0)).tokens[:, 1:]
        hits = [int(top) + 1 == int(position) for top, (_, position) in zip(relevance.argmax(-1), kept, strict=True)]
        assert sum(hits) / len(hits) > 0.9, name
