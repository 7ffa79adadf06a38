"""Contributions in chunks against every transformed vector at once."""

import itertools

import pytest
import torch

from closelook.alti.maps import normalised
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
        relevance = contributions(parts, Chunk(sources, vectors))
        torch.testing.assert_close(relevance, expected, rtol=0, atol=1e-10, msg=f"{sources} {vectors}")


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
