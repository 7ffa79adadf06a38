"""Rows of all experts at once, as devices have them, against a loop over experts."""

import pytest
import torch

from closelook.lrp_core.device import expert_rows
from closelook.lrp_core.device.expert_rows import ExpertRows, multiply_rows

pytestmark = pytest.mark.numeric
N_TOKENS, N_EXPERTS, K = 24, 5, 2
SPREADS = {  # how tokens are spread over experts
    "at random": lambda draw: torch.rand(N_TOKENS, N_EXPERTS, generator=draw).argsort(1)[:, :K],
    "all to two": lambda draw: torch.tensor([3, 1]).expand(N_TOKENS, K),
    "none to the first and last": lambda draw: 1 + torch.rand(N_TOKENS, 3, generator=draw).argsort(1)[:, :K],
    "most to the first": lambda draw: torch.tensor([[0, 4]] * (N_TOKENS - 1) + [[2, 3]]),
}


@pytest.fixture(params=SPREADS)
def chosen(request):
    return SPREADS[request.param](torch.Generator().manual_seed(0))


@pytest.fixture(params=[1, 3, 10, 64])
def least_rows(request, monkeypatch):
    monkeypatch.setattr(expert_rows, "_LEAST_ROWS", request.param)
    return request.param


def drawn(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def sorted_rows(chosen):
    """The token, column of `chosen` and expert of every row, in lists."""
    order = sorted(
        (int(chosen[token, rank]), rank, token) for token in range(len(chosen)) for rank in range(chosen.shape[1])
    )
    experts, ranks, tokens = (list(column) for column in zip(*order, strict=True))
    return tokens, ranks, experts


def loop(x, weight, experts, multiply):
    return torch.stack([multiply(row[None], weight[expert])[0] for row, expert in zip(x, experts, strict=True)])


def test_rows_are_sorted_by_expert_rank_and_token(chosen):
    rows = ExpertRows.of(chosen, N_EXPERTS)
    tokens, ranks, experts = sorted_rows(chosen)
    assert rows.tokens.tolist() == tokens
    assert rows.ranks.tolist() == ranks
    assert rows.row_of[tokens, ranks].tolist() == list(range(N_TOKENS * K))
    assert rows.ends.tolist() == [sum(expert <= last for expert in experts) for last in range(N_EXPERTS)]


def test_products_and_gradients_are_those_of_a_loop(chosen, least_rows):
    rows, (_, _, experts) = ExpertRows.of(chosen, N_EXPERTS), sorted_rows(chosen)
    x, weight, gradient = drawn(N_TOKENS * K, 4), drawn(N_EXPERTS, 6, 4), drawn(N_TOKENS * K, 6)
    results = []
    of_rows = lambda x, weight: multiply_rows(x, weight, rows)  # noqa: E731
    for product in (of_rows, rows.product, lambda x, weight: loop(x, weight, experts, torch.nn.functional.linear)):
        y = product(leaf := x.clone().requires_grad_(), weight)
        results.append((y, *torch.autograd.grad(y, leaf, gradient)))
    for result in results[:2]:
        torch.testing.assert_close(result, results[2], rtol=1e-12, atol=1e-12)


def test_rows_that_are_multiplied_are_at_most_twice_as_many_as_there_are(chosen, monkeypatch):
    monkeypatch.setattr(expert_rows, "_LEAST_ROWS", 1)
    tiles = ExpertRows.of(chosen, N_EXPERTS)._tiles
    assert sum(len(rows) for _, rows in tiles) <= 2 * N_TOKENS * K + N_EXPERTS
    reached = torch.cat([rows for _, rows in tiles])
    assert reached[reached < N_TOKENS * K].sort().values.tolist() == list(range(N_TOKENS * K))


def test_torch_s_kernel_gives_the_same(chosen, monkeypatch):
    rows = ExpertRows.of(chosen, N_EXPERTS)
    x, weight = drawn(N_TOKENS * K, 8, dtype=torch.float32), drawn(N_EXPERTS, 16, 8, dtype=torch.float32)
    gradient = drawn(16, dtype=torch.float32).expand(N_TOKENS * K, -1)  # the kernel refuses such strides
    results = []
    for has_kernel in (False, True):
        monkeypatch.setattr(expert_rows, "_has_kernel", lambda *_, answer=has_kernel: answer)
        y = multiply_rows(leaf := x.clone().requires_grad_(), weight, rows)
        results.append((y, *torch.autograd.grad(y, leaf, gradient)))
    torch.testing.assert_close(*results)


def test_values_that_are_not_finite_stay_in_their_rows(chosen, least_rows):
    rows = ExpertRows.of(chosen, N_EXPERTS)
    x = drawn(N_TOKENS * K, 4)
    x[-1] = torch.inf
    assert multiply_rows(x, drawn(N_EXPERTS, 6, 4), rows).isfinite().all(1).tolist() == [True] * (N_TOKENS * K - 1) + [
        False
    ]
