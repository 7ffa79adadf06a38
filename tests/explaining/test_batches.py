"""Many questions to one model: how they share batches, and what happens where memory does not hold one."""

import pytest
import torch

import closelook
from closelook.explaining import explained as computing
from closelook.explaining.explained import relevance_of

TEXTS = [" ".join(["the"] * length + ["dog", "walks"]) for length in (3, 14, 1, 9, 0, 5, 2, 4)]


@pytest.fixture(scope="module")
def model():
    return closelook.open_model("demo/bert-sentiment")


@pytest.fixture
def watched(monkeypatch):
    """[B, T] of the batches that are explained; of more than `watched.most` rows memory holds none."""

    class Watched(list):
        most = 99

    seen = Watched()

    def explain(opened, methods, views, *arguments, **finer):
        seen.append((len(views), max(len(view.input_ids) for view in views)))
        if len(views) > seen.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return relevance_of(opened, methods, views, *arguments, **finer)

    monkeypatch.setattr(computing, "relevance_of", explain)
    monkeypatch.setattr(computing, "_TOKENS", 60)
    return seen


def test_a_batch_has_as_many_tokens_as_fit_and_alike_lengths(model, watched):
    closelook.explain(TEXTS, model=model)
    assert watched == [(2, 24), (4, 15), (2, 11)]


def test_a_batch_that_memory_does_not_hold_is_halved_and_says_the_same(model, watched, monkeypatch):
    monkeypatch.setattr(computing, "_TOKENS", 8 * 24)
    whole = closelook.explain(TEXTS, model=model)
    assert watched == [(8, 24)]
    watched.clear()
    watched.most = 2
    halved = closelook.explain(TEXTS, model=model)
    assert [rows for rows, _ in watched] == [8, 4, 2, 2, 4, 2, 2]
    for expected, actual in zip(whole, halved, strict=True):
        torch.testing.assert_close(expected["attnlrp"], actual["attnlrp"], rtol=1e-4, atol=1e-6)


def test_other_errors_of_a_batch_are_not_taken_for_a_lack_of_memory(model, watched, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr(computing, "relevance_of", broken)
    with pytest.raises(RuntimeError, match="broken"):
        closelook.explain(TEXTS, model=model)
