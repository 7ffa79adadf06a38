"""Tokens removed in three ways, against inputs that never had them."""

import pytest
import torch

from closelook.lrp_core import Batch
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.interventions.tokens import tokens_removed
from closelook.lrp_core.records.types import UserError
from tests.tiny import MORE, TINY, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
MASK_ID = 2
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def logits_of(view, batch):
    return view.logits(batch)


def alone(view, row):
    return logits_of(view, Batch.collate([row], pad_id=0))[0]


def choice(view, rows, seed=0):
    """A mask of removed tokens for each row: about half of them, never the first or a masked model's slot."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.rand(len(row["input_ids"]), generator=generator) < 0.5 for row in rows]
    for mask, row in zip(chosen, rows, strict=True):
        mask[0] = False
        if view.kind.slot:
            mask[row["position"]] = False
    return chosen


def padded(chosen, batch, side):
    """[B, T]; padding is marked too, which must not matter."""
    removed = torch.ones(batch.input_ids.shape, dtype=torch.bool)
    for i, mask in enumerate(chosen):
        removed[i, slice(-len(mask), None) if side == "left" else slice(len(mask))] = mask
    return removed


def without(row, gone):
    """The row as it would be without the tokens `gone`; predicted at the last that is left."""
    left = [token for token, out in zip(row["input_ids"], gone.tolist(), strict=True) if not out]
    return {**row, "input_ids": left, "position": len(left) - 1}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", [*TINY, *MORE])
def test_zeroed_tokens_are_tokens_without_an_embedding_in_their_places(family, side):
    view = tiny_model(family)
    nothing = view.vocab - 1  # a token whose embedding is zero, and which no sample has
    view.token_embedding.weight.data[nothing] = 0
    rows = [{**row, "input_ids": [min(t, nothing - 1) for t in row["input_ids"]]} for row in ragged_rows(view)]
    chosen, batch = choice(view, rows), Batch.collate(rows, pad_id=0, side=side)
    with tokens_removed(view, batch, padded(chosen, batch, side), "zero") as changed:
        result = logits_of(view, changed)
    for row, gone, logits in zip(rows, chosen, result, strict=True):
        ids = [nothing if out else t for t, out in zip(row["input_ids"], gone.tolist(), strict=True)]
        torch.testing.assert_close(logits, alone(view, {**row, "input_ids": ids}), **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_masked_tokens_are_the_mask_token(family, side):
    view = tiny_model(family)
    rows = ragged_rows(view)
    chosen, batch = choice(view, rows), Batch.collate(rows, pad_id=0, side=side)
    with tokens_removed(view, batch, padded(chosen, batch, side), "mask", MASK_ID) as changed:
        result = logits_of(view, changed)
    for row, gone, logits in zip(rows, chosen, result, strict=True):
        ids = [MASK_ID if out else t for t, out in zip(row["input_ids"], gone.tolist(), strict=True)]
        torch.testing.assert_close(logits, alone(view, {**row, "input_ids": ids}), **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_resampled_tokens_are_those_that_stand_in_their_place(family, side):
    view = tiny_model(family)
    rows = ragged_rows(view)
    chosen, batch = choice(view, rows), Batch.collate(rows, pad_id=0, side=side)
    instead = torch.randint(3, view.vocab, batch.input_ids.shape, generator=torch.Generator().manual_seed(1))
    with tokens_removed(view, batch, padded(chosen, batch, side), "resample", instead) as changed:
        result = logits_of(view, changed)
        assert torch.equal(changed.attention_mask, batch.attention_mask)
    for at, (row, gone) in enumerate(zip(rows, chosen, strict=True)):
        drawn = instead[at, -len(gone) :] if side == "left" else instead[at, : len(gone)]
        ids = [
            other if out else t for t, other, out in zip(row["input_ids"], drawn.tolist(), gone.tolist(), strict=True)
        ]
        torch.testing.assert_close(result[at], alone(view, {**row, "input_ids": ids}), **CLOSE)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", [name for name in [*TINY, *MORE] if FAMILIES[name].kind.causal])
def test_a_deletion_closes_up_and_predicts_at_the_last_token_that_remains(family, side):
    view = tiny_model(family)
    rows = ragged_rows(view)
    chosen, batch = choice(view, rows), Batch.collate(rows, pad_id=0, side=side)
    chosen[0][-1] = True
    chosen[2][:-1] = True  # one token is left
    chosen[2][-1] = False
    with tokens_removed(view, batch, padded(chosen, batch, side), "delete") as changed:
        result = logits_of(view, changed)
        assert changed.input_ids.shape[1] == max(int((~gone).sum()) for gone in chosen)
    for row, gone, logits in zip(rows, chosen, result, strict=True):
        torch.testing.assert_close(logits, alone(view, without(row, gone)), **CLOSE)


def test_the_model_is_as_before_after_a_removal_even_a_failed_one(view, batch):
    before = logits_of(view, batch)
    removed = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
    removed[:, 0] = True
    with tokens_removed(view, batch, removed, "zero") as changed:
        assert not torch.equal(logits_of(view, changed), before)
    with pytest.raises(ZeroDivisionError), tokens_removed(view, batch, removed, "zero"):
        raise ZeroDivisionError
    assert torch.equal(logits_of(view, batch), before)


def test_removals_nest(batch):
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    zeroed, masked = (torch.zeros(batch.input_ids.shape, dtype=torch.bool) for _ in range(2))
    zeroed[:, 0] = masked[:, 1] = True
    with (
        tokens_removed(view, batch, masked, "mask", MASK_ID) as first,
        tokens_removed(view, first, zeroed, "zero") as both,
    ):
        logits = logits_of(view, both)
    with tokens_removed(view, batch, zeroed, "zero") as first, tokens_removed(view, first, masked, "mask", 2) as both:
        assert torch.equal(logits_of(view, both), logits)


@pytest.mark.parametrize("way", ["zero", "mask", "resample"])
def test_the_slot_of_a_masked_model_is_never_removed(way):
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    removed = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
    removed[1, batch.position[1]] = True
    with pytest.raises(UserError, match="slot"), tokens_removed(view, batch, removed, way, MASK_ID):
        pass


def test_nothing_is_resampled_without_tokens_to_put_in_place():
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    removed = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
    with pytest.raises(UserError, match="needs replacements for the removed tokens"):
        tokens_removed(view, batch, removed, "resample").__enter__()


def test_a_model_without_a_mask_token_cannot_mask():
    view = tiny_model("bert")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    removed = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
    with pytest.raises(UserError, match="needs the id of the mask token"), tokens_removed(view, batch, removed, "mask"):
        pass


@pytest.mark.parametrize(("family", "way"), [("gpt2", "mask"), ("bert", "delete"), ("llama", "blur")])
def test_a_way_that_a_model_does_not_know_is_refused_by_name(family, way):
    view = tiny_model(family)
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    removed = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
    with pytest.raises(UserError, match=f"{view.family.title} have no perturbation '{way}'; choose 'zero' or"):
        tokens_removed(view, batch, removed, way, MASK_ID).__enter__()


def test_a_deletion_of_everything_is_refused():
    view = tiny_model("gpt2")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    removed = torch.ones(batch.input_ids.shape, dtype=torch.bool)
    with pytest.raises(UserError, match="must leave a token"), tokens_removed(view, batch, removed, "delete"):
        pass
