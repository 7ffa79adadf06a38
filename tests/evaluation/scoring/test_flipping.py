"""Flipped states run together, against one forward for each of an input that was edited by hand."""

import weakref

import numpy as np
import pytest
import torch

from closelook.evaluation.scoring.faithfulness.flipping import Flipper
from closelook.evaluation.scoring.faithfulness.flips import Ranking, States, candidates, flip_counts, tie_order
from closelook.lrp_core import ModelView
from closelook.lrp_core.records.types import UserError
from tests.oracles import faithfulness as oracle
from tests.oracles.methods import stock
from tests.tiny import ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
MASK_ID = 2
WAYS = [
    ("bert", "zero"),
    ("bert", "mask"),
    ("gpt2", "zero"),
    ("gpt2", "delete"),
    ("llama", "zero"),
    ("llama", "delete"),
]
LENGTHS = (7, 4, 10, 7, 1)


@pytest.fixture(params=WAYS, ids="-".join)
def way(request):
    return request.param[1]


@pytest.fixture
def view(request):
    """Its last token has no embedding: in its place, a token is zeroed."""
    view = tiny_model(request.node.callspec.params["way"][0])
    view.token_embedding.weight.data[view.vocab - 1] = 0
    return view


def rows_of(view, lengths=LENGTHS):
    lengths = [max(length, 2) for length in lengths] if view.kind.slot else lengths
    return [
        {**row, "input_ids": [min(token, view.vocab - 2) for token in row["input_ids"]]}
        for row in ragged_rows(view, lengths)
    ]


def states_of(view, row, variants=2, way="zero", seed=0, steps=100):
    length = len(row["input_ids"])
    chosen = candidates(length, special=np.zeros(length, bool), slot=row["position"] if view.kind.slot else None)
    relevance = np.random.default_rng(seed).integers(-2, 3, (variants, length))  # with ties
    ranking = Ranking.of(relevance, chosen, tie_order(row["input_ids"], 0), keep_one=way == "delete")
    return States.of(ranking.curves(flip_counts(ranking.flipped, steps)))


def alone(view, row, gone, way):
    """Logit, log-probability, correctness and the foil's logit from the model's own head, without the tokens `gone`."""
    ids = [
        {"mask": MASK_ID, "zero": view.vocab - 1}.get(way) if i in gone else t for i, t in enumerate(row["input_ids"])
    ]
    ids = [token for token in ids if token is not None]
    position = len(ids) - 1 if way == "delete" else row["position"]
    logits = stock(view, input_ids=torch.tensor([ids])).logits[0, position]
    target, foil = row["target_id"], row["foil_id"]
    best = logits[target] > logits[foil] if foil is not None else logits.argmax() == target
    return (
        float(logits[target]),
        float(logits.log_softmax(-1)[target]),
        float(best),
        float(logits[target if foil is None else foil]),
    )


def test_the_callers_autocast_and_training_mode_change_no_output():
    view = tiny_model("gpt2", dtype="float32")
    samples = [(row, states_of(view, row)) for row in ragged_rows(view)]
    expected = Flipper(view, "zero", 64).run(samples)
    view.model.train()
    with torch.autocast("cpu", torch.bfloat16):
        for outputs, plain in zip(Flipper(view, "zero", 64).run(samples), expected, strict=True):
            np.testing.assert_array_equal(outputs.logit, plain.logit)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("budget", [1, 24, 10_000])
def test_states_run_together_equal_one_forward_each(view, way, budget):
    rows = rows_of(view)
    rows[1]["foil_id"] = rows[3]["foil_id"] = None
    rows[3]["target_id"] = int(
        view.model(input_ids=torch.tensor([rows[3]["input_ids"]])).logits[0, rows[3]["position"]].argmax()
    )
    samples = [(row, states_of(view, row, way=way)) for row in rows]
    result = Flipper(view, way, budget, MASK_ID).run(samples)
    for (row, states), outputs in zip(samples, result, strict=True):
        expected = np.array([alone(view, row, set(np.flatnonzero(gone)), way) for gone in states.removed]).T
        np.testing.assert_allclose([outputs.logit, outputs.log_probability], expected[:2], rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(outputs.correct, expected[2])
        np.testing.assert_allclose(outputs.foil, expected[3], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(outputs.probability, np.exp(expected[1]), rtol=1e-9)
    assert result[3].correct.max() == 1, "some state leaves the prediction as it is"


def rows_through(view, monkeypatch):
    """Sizes (rows, tokens) of every forward of the backbone from here on."""
    sizes, all_logits = [], ModelView.all_logits

    def counted(self, batch):
        sizes.append(tuple(batch.input_ids.shape))
        return all_logits(self, batch)

    monkeypatch.setattr(ModelView, "all_logits", counted)
    return sizes


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("family", "way"), WAYS)
def test_forwards_are_the_distinct_states_of_six_methods_and_both_orders(family, way, monkeypatch):
    view = tiny_model(family, **{"n_positions" if family == "gpt2" else "max_position_embeddings": 64})
    [row] = ragged_rows(view, lengths=(64,))
    rng = np.random.default_rng(0)
    relevance = rng.normal(size=(6, 64))
    relevance[1] = relevance[0]  # the same order
    relevance[2] = relevance[0].round()  # nearly, with ties
    relevance[3] = np.where(relevance[0] > 1, relevance[0], 0)  # the same first tokens
    relevance[4] = -relevance[0]  # MoRF is the other's LeRF
    ties = tie_order(row["input_ids"], 0)
    chosen = candidates(64, special=np.zeros(64, bool), slot=row["position"] if view.kind.slot else None)
    ranking = Ranking.of(relevance, chosen, ties, keep_one=way == "delete")
    states = States.of(ranking.curves(flip_counts(ranking.flipped, 64)))

    distinct, asked = set(), 0
    for values in relevance.tolist():
        for order in (oracle.morf(values, ties, chosen), oracle.lerf(values, ties, chosen)):
            sets = oracle.flipping(lambda gone: gone, order)
            asked += len(sets)
            if way == "delete":
                sets[-1] = sets[-2]  # one token stays
            distinct.update(sets)

    sizes = rows_through(view, monkeypatch)
    flipper = Flipper(view, way, 1024, MASK_ID)
    flipper.run([(row, states)])
    assert flipper.computed == len(distinct) == sum(rows for rows, _ in sizes)
    assert flipper.asked == asked
    assert len(distinct) < 2 / 3 * asked


def test_batches_hold_rows_of_many_samples_of_one_length_within_the_budget(view, way, monkeypatch):
    rows = rows_of(view, (9, 5, 9, 12, 5, 9))
    samples = [(row, states_of(view, row, way=way, seed=i)) for i, row in enumerate(rows)]
    sizes = rows_through(view, monkeypatch)
    flipper = Flipper(view, way, 120, MASK_ID)
    flipper.run(samples)
    assert all(count * tokens <= 120 for count, tokens in sizes)
    assert [tokens for _, tokens in sizes] == sorted((tokens for _, tokens in sizes), reverse=True)
    lengths = [
        len(row["input_ids"]) - (int(gone.sum()) if way == "delete" else 0)
        for row, states in samples
        for gone in states.removed
    ]
    assert sum(count * tokens for count, tokens in sizes) < 1.15 * sum(lengths), "little of it is padding"
    assert len(sizes) <= np.ceil(sum(lengths) / 120) + 3


def test_out_of_memory_halves_the_budget_after_the_failed_batch_is_freed(monkeypatch):
    view = tiny_model("gpt2")
    samples = [(row, states_of(view, row)) for row in rows_of(view)]
    expected = Flipper(view, "zero", 10_000).run(samples)
    all_logits, held, sizes = ModelView.all_logits, [], []

    def scarce(self, batch):
        assert all(tensor() is None for tensor in held), "what the last batch held is still there"
        logits = all_logits(self, batch)
        held.append(weakref.ref(logits))
        sizes.append(len(batch))
        if batch.input_ids.numel() > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logits

    monkeypatch.setattr(ModelView, "all_logits", scarce)
    flipper = Flipper(view, "zero", 10_000)
    result = flipper.run(samples)
    assert flipper.halved >= 2
    assert 25 <= flipper.token_budget <= 50
    assert max(sizes[flipper.halved :]) <= 50
    for outputs, others in zip(result, expected, strict=True):
        np.testing.assert_allclose(outputs.logit, others.logit, rtol=1e-9, atol=1e-9)


def test_a_single_row_that_does_not_fit_is_an_error(monkeypatch):
    def hungry(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    view = tiny_model("gpt2")
    row = rows_of(view)[0]
    monkeypatch.setattr(ModelView, "all_logits", hungry)
    with pytest.raises(torch.OutOfMemoryError):
        Flipper(view, "zero", 64).run([(row, states_of(view, row))])


def test_other_errors_are_not_taken_for_want_of_memory(monkeypatch):
    def broken(*_):
        raise RuntimeError("no")

    view = tiny_model("gpt2")
    row = rows_of(view)[0]
    monkeypatch.setattr(ModelView, "all_logits", broken)
    flipper = Flipper(view, "zero", 64)
    with pytest.raises(RuntimeError, match="no"):
        flipper.run([(row, states_of(view, row))])
    assert flipper.halved == 0


def test_outputs_that_are_not_finite_are_no_number_and_no_wrong_answer(monkeypatch):
    view, all_logits = tiny_model("gpt2"), ModelView.all_logits
    [row] = rows_of(view, (6,))

    def overflowing(self, batch):
        logits = all_logits(self, batch).clone()
        logits[0] = torch.inf
        return logits

    monkeypatch.setattr(ModelView, "all_logits", overflowing)
    [outputs] = Flipper(view, "zero", 10_000).run([(row, states_of(view, row))])
    for values in (outputs.logit, outputs.probability, outputs.correct):
        assert np.isnan(values).sum() == 1


def test_nothing_to_run_gives_nothing():
    view = tiny_model("gpt2")
    assert Flipper(view, "zero", 64).run([]) == []
    none = States.of(np.zeros((0, 2, 3, 7), bool))
    [outputs] = Flipper(view, "zero", 64).run([(rows_of(view)[0], none)])
    assert outputs.at(none.points).logit.shape == (0, 2, 3)


def test_an_unknown_way_is_refused_before_anything_runs():
    with pytest.raises(UserError, match="needs the id of the mask token"):
        Flipper(tiny_model("bert"), "mask", 64)
    with pytest.raises(UserError, match="no perturbation 'delete'"):
        Flipper(tiny_model("bert"), "delete", 64)
