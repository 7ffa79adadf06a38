"""Contributions in chunks against every transformed vector at once."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from closelook.alti.maps import normalised
from closelook.alti.threads import run_all
from closelook.alti.transformed import AttentionParts, Chunk, contributions, contributions_to

pytestmark = pytest.mark.numeric


def random_parts(causal: bool, samples=3, length=7, heads=4, width=5, d_model=11) -> AttentionParts:
    draw = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
    allowed = torch.ones(samples, length, length, dtype=torch.bool)
    allowed[1, :, -2:] = False  # padding
    allowed = allowed.tril() if causal else allowed
    weights = normal(samples, heads, length, length).masked_fill(~allowed.mT[:, None], -torch.inf).softmax(-2)
    value, output = normal(samples, heads, length, width), normal(heads, width, d_model)
    residual = normal(samples, length, d_model)
    attended = torch.einsum("bhji,bhjk,hkd->bid", weights, value, output)
    return AttentionParts(weights, value, output, residual, residual + attended + normal(d_model), allowed, causal)


def at_once(parts: AttentionParts) -> torch.Tensor:
    vectors = torch.einsum("bhji,bhjk,hkd->bijd", parts.weights, parts.value, parts.output)
    each = torch.arange(vectors.shape[1])
    vectors[:, each, each] += parts.residual
    resultant = parts.resultant[:, :, None]
    return (resultant.abs().sum(-1) - (resultant - vectors).abs().sum(-1)).clamp_min(0)


@pytest.mark.parametrize("causal", [True, False])
def test_any_chunk_gives_what_all_vectors_at_once_give(causal):
    parts = random_parts(causal)
    expected = at_once(parts)
    for sources, vectors in itertools.product((1, 2, 5, 100), (1, 3, 7, 9, 20, 49, 100, 1000)):
        for width in (None, 1, 4, 11, 50):
            relevance = contributions(parts, Chunk(sources, vectors, width=width))
            torch.testing.assert_close(relevance, expected, rtol=0, atol=1e-10, msg=f"{sources} {vectors} {width}")


@pytest.mark.parametrize("inference", [True, False])
def test_threads_change_nothing_and_leave_torch_with_its_own(inference):
    with torch.inference_mode(inference):
        parts = random_parts(causal=True)
        expected, before = contributions(parts, Chunk(2, 9)), torch.get_num_threads()
        for workers in (2, 5):
            assert torch.equal(contributions(parts, Chunk(2, 9, workers)), expected)
    assert torch.get_num_threads() == before


def test_overlapping_calls_leave_torch_with_its_threads():
    before = torch.get_num_threads()
    first_in, second_in, first_done = Event(), Event(), Event()

    def first() -> None:
        run_all([first_in.set, lambda: second_in.wait(10)])
        first_done.set()

    def second() -> None:
        first_in.wait(10)
        run_all([second_in.set, lambda: first_done.wait(10)])

    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda call: call(), (first, second)))
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("causal", [True, False])
def test_one_destination_is_a_row_of_the_map(causal):
    parts = random_parts(causal)
    position = torch.tensor([3, 2, 6])
    at = torch.arange(3)
    row = AttentionParts(
        parts.weights[at, :, :, position].unsqueeze(-1),
        parts.value,
        parts.output,
        parts.residual[at, position].unsqueeze(1),
        parts.resultant[at, position].unsqueeze(1),
        parts.allowed[at, position].unsqueeze(1),
    )
    expected = contributions(parts, Chunk(100, 1000))[at, position]
    torch.testing.assert_close(contributions_to(row, position), expected, rtol=0, atol=1e-10)


def test_what_attention_hides_contributes_exactly_nothing():
    parts = random_parts(causal=True)
    relevance = contributions(parts, Chunk(2, 9))
    hidden = ~(parts.allowed | torch.eye(relevance.shape[-1], dtype=torch.bool))
    assert (relevance[hidden] == 0).all()


def test_a_row_that_is_clipped_everywhere_becomes_the_identity_row():
    """A resultant opposite to every transformed vector: each distance exceeds its norm."""
    parts = random_parts(causal=False)
    opposed = AttentionParts(
        parts.weights,
        parts.value,
        parts.output.abs(),
        parts.residual.abs(),
        parts.resultant.clone(),
        torch.ones_like(parts.allowed),
    )
    opposed.value.abs_()
    opposed.resultant[0, 4] = -1.0
    rows = normalised(contributions(opposed, Chunk(3, 20)), torch.eye(7))
    assert torch.equal(rows[0, 4], torch.eye(7, dtype=torch.float64)[4])
    torch.testing.assert_close(rows.sum(-1), torch.ones(3, 7, dtype=torch.float64))
