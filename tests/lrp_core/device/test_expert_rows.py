"""Rows of all experts at once, as devices have them, against a loop over experts."""

import pytest
import torch

from closelook.lrp_core.device import expert_rows
from closelook.lrp_core.device.expert_rows import ExpertRows
from closelook.lrp_core.parts.block import FeedForward
from closelook.lrp_core.readers.feed_forward import PassingRows, PassingTokens, where_sent

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
    order = [
        (token, rank, expert)
        for expert, (tokens, ranks) in enumerate(where_sent(chosen, N_EXPERTS))
        for token, rank in zip(tokens.tolist(), ranks.tolist(), strict=True)
    ]
    return [list(column) for column in zip(*order, strict=True)]


def loop(x, weight, experts, multiply):
    return torch.stack([multiply(row[None], weight[expert])[0] for row, expert in zip(x, experts, strict=True)])


def test_rows_are_sorted_by_expert_and_token(chosen):
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
    for product in (rows.product, lambda x, weight: loop(x, weight, experts, torch.nn.functional.linear)):
        y = product(leaf := x.clone().requires_grad_(), weight)
        results.append((y, *torch.autograd.grad(y, leaf, gradient)))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


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
        y = rows.product(leaf := x.clone().requires_grad_(), weight)
        results.append((y, *torch.autograd.grad(y, leaf, gradient)))
    torch.testing.assert_close(*results)


def test_values_that_are_not_finite_stay_in_their_rows(chosen, least_rows):
    rows = ExpertRows.of(chosen, N_EXPERTS)
    x = drawn(N_TOKENS * K, 4)
    x[-1] = torch.inf
    assert rows.product(x, drawn(N_EXPERTS, 6, 4)).isfinite().all(1).tolist() == [True] * (N_TOKENS * K - 1) + [False]


@pytest.mark.parametrize("expert", range(N_EXPERTS))
def test_neurons_among_all_rows_pass_as_those_of_an_expert_alone(chosen, expert):
    rows, shape = ExpertRows.of(chosen, N_EXPERTS), (4, N_TOKENS // 4)
    part = FeedForward(3 * expert, 3, str(expert), expert)
    tokens, _ = where_sent(chosen, N_EXPERTS)[expert]
    alone, among = PassingTokens(part, N_TOKENS, tokens), PassingRows(part, N_TOKENS, expert, rows)
    every = drawn(N_TOKENS * K, 3)
    end = int(rows.ends[expert])
    of_expert = slice(end - len(tokens), end)
    spread = among.spread(every, shape)
    assert torch.equal(spread, alone.spread(every[of_expert], shape))
    mask = torch.arange(N_TOKENS).view(shape) % 3 > 0
    assert torch.equal(among.there(mask), alone.there(mask))
    changed = among.gathered(2 * spread + 1, every)
    assert torch.equal(changed[of_expert], alone.gathered(2 * spread + 1, every[of_expert]))
    changed[of_expert] = every[of_expert]
    assert torch.equal(changed, every)
