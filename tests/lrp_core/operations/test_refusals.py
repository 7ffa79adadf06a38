"""What rules on operations do not cover is refused by name, with the module that ran it, and values never change."""

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import WhisperConfig, WhisperForConditionalGeneration

from closelook.lrp_core.operations import explain_operations
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN, changed

IDS = torch.tensor([[3, 1, 4, 1, 5]])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x @ torch.eye(x.shape[-1], dtype=x.dtype) * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Silu(torch.autograd.Function):
    """An activation whose backward is wrong on purpose: rules must not use it."""

    @staticmethod
    def forward(ctx, x):
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 100


def scripted(x):
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated, but models that use it are about
        return torch.jit.script(doubled)(x)


def doubled(x):
    return x * 2


class Model(nn.Module):
    """Embeddings, a layer `change` of the test's choice, a linear layer."""

    def __init__(self, change, dtype=torch.float64, positions=None):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.words = nn.Embedding(8, 6, dtype=dtype)
        self.block = Block(change)
        self.first, self.second = nn.Linear(6, 6, dtype=dtype), nn.Linear(6, 4, bias=False, dtype=dtype)
        self.table = nn.Parameter(torch.empty(9, 6, dtype=dtype)) if positions else None
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.positions = positions

    def forward(self, input_ids):
        x = self.words(input_ids) if self.positions is None else self.positions(self, input_ids)
        return self.second(self.block(self.first(x), self.second.weight))


class Block(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x, weight):
        return self.change(x, weight)


def explained(change, composites=(LRP, ATTNLRP), **options):
    return explain_operations(Model(change, **options), {"input_ids": IDS}, lambda out: out[:, -1, 2], composites)


def by_hand(x, weight):
    e = torch.exp(x)
    return x * (e / e.sum(-1, keepdim=True))


REFUSED = {
    "no rule for torch.cos": lambda x, w: torch.cos(x),
    "no rule for torch.cumprod": lambda x, w: x.cumprod(1),
    "detach takes a tensor that carries relevance out of the graph": lambda x, w: x + x.detach(),
    "takes a tensor that carries relevance out": lambda x, w: x + x.data,
    "item takes a tensor": lambda x, w: x * x.sum().item(),
    "runs with gradients disabled": lambda x, w: x + torch.no_grad()(lambda: x.flip(1))(),
    "MulBackward1 computed a tensor": lambda x, w: scripted(x),
    "Doubled|matmul of a tensor that carries|double of a tensor that carries": lambda x, w: Doubled.apply(x),
    "a gate is constant, so torch.nn.functional.linear": lambda x, w: F.linear(
        torch.sigmoid(x), torch.eye(6, dtype=x.dtype)
    ),
    "a gate is constant, so torch.add": lambda x, w: x + torch.sigmoid(x.flip(1)),
    "a gate is constant, so torch.softmax": lambda x, w: x * F.softmax(torch.sigmoid(x), -1),
    "a gate is constant, so torch.cat": lambda x, w: torch.cat([x, torch.sigmoid(x)], 1),
    "softmax that is written as exponentials": by_hand,
    "dropout drops relevance": lambda x, w: F.dropout(x, 0.5, training=True),
    "with relevance in another argument than input": lambda x, w: F.linear(x, x[0, :4] @ torch.eye(6, dtype=x.dtype)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_rule_is_refused_by_name_with_its_module(message):
    with pytest.raises(UnsupportedModel, match=message) as refusal:
        explained(REFUSED[message])
    assert "(block)" in str(refusal.value) or "(second)" in str(refusal.value)


def test_code_that_torch_functions_do_not_reach_is_refused():
    def hidden(x, weight):
        with torch._C.DisableTorchFunction():
            return torch.tanh(x)

    with pytest.raises(UnsupportedModel, match="computed a tensor that carries relevance where rules do not see it"):
        explained(hidden)


def test_an_empty_table_refuses_nothing_and_is_the_plain_gradient():
    result = explained(lambda x, w: torch.cos(x).cumprod(1), composites=[PLAIN])
    model = Model(lambda x, w: torch.cos(x).cumprod(1))
    embedded = model.words(IDS).detach().requires_grad_()
    logit = model.second(torch.cos(model.first(embedded)).cumprod(1))[:, -1, 2]
    expected = (torch.autograd.grad(logit.sum(), embedded)[0] * embedded).sum(-1)
    torch.testing.assert_close(result.relevance[PLAIN]["input_ids"].full, expected.detach(), rtol=0, atol=1e-12)


SILU = {
    "module": lambda x, w: nn.SiLU()(x),
    "function": lambda x, w: F.silu(x),
    "in place": lambda x, w: F.silu(x.clone(), inplace=True),
    "by hand": lambda x, w: x * torch.sigmoid(x),
    "in place by hand": lambda x, w: x.clone().mul_(torch.sigmoid(x)),
    "as a quotient": lambda x, w: x / (1 + torch.exp(-x)),
    "by tanh": lambda x, w: 0.5 * x * (1 + torch.tanh(x * 0.5)),
    "in an autograd function": lambda x, w: Silu.apply(x),
    "in two views": lambda x, w: torch.cat([F.silu(half) for half in x.chunk(2, -1)], -1),
    "reshaped": lambda x, w: F.silu(x.view(-1)).view(x.shape),
    "expanded": lambda x, w: F.silu(x[:, :, None].expand(-1, -1, 2, -1))[:, :, 1],
}


@pytest.mark.parametrize("composite", [LRP, ATTNLRP], ids=lambda composite: composite.name)
@pytest.mark.parametrize("spelling", SILU)
def test_an_activation_has_the_same_relevance_however_it_is_written(spelling, composite):
    expected = explained(SILU["module"], [composite]).relevance[composite]["input_ids"].full
    found = explained(SILU[spelling], [composite]).relevance[composite]["input_ids"].full
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


SIGMOID = {
    "function": lambda x, w: x.flip(1) * torch.sigmoid(x),
    "quotient": lambda x, w: x.flip(1) / (1 + torch.exp(-x)),
    "tanh": lambda x, w: x.flip(1) * (0.5 * (1 + torch.tanh(0.5 * x))),
}


@pytest.mark.parametrize("spelling", SIGMOID)
def test_a_sigmoid_is_a_constant_gate_however_it_is_written(spelling):
    expected = explained(SIGMOID["function"], [ATTNLRP]).relevance[ATTNLRP]["input_ids"].full
    found = explained(SIGMOID[spelling], [ATTNLRP]).relevance[ATTNLRP]["input_ids"].full
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


POSITIONS = {
    "a table of indices": lambda model, ids: model.words(ids) + F.embedding(torch.arange(ids.shape[1]), model.table),
    "a slice": lambda model, ids: model.words(ids) + model.table[: ids.shape[1]],
    "in place": lambda model, ids: model.words(ids).add_(model.table[None, : ids.shape[1]]),
    "weight[ids]": lambda model, ids: model.words.weight[ids] + model.table[: ids.shape[1]],
}


@pytest.mark.parametrize("spelling", POSITIONS)
def test_words_and_positions_are_roots_however_they_are_looked_up(spelling):
    def change(x, w):
        return torch.tanh(x)

    result = explained(change, [LRP], positions=POSITIONS[spelling]).relevance[LRP]["input_ids"]
    reference = explained(change, [LRP], positions=POSITIONS["a table of indices"]).relevance[LRP]["input_ids"]
    torch.testing.assert_close(result.full, reference.full, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.partial, reference.partial, rtol=0, atol=1e-12)
    assert (result.full - result.partial).abs().max() > 0.01


def test_positions_of_embeddings_that_a_model_pads_are_those_of_its_tokens():
    """As LED pads embeddings to whole windows: a longer text in the batch must not move what positions add."""

    def padded(model, ids):
        words = torch.cat([model.words.weight[None, :1], model.words(ids), model.words.weight[None, :2]], 1)
        return words + torch.cat([model.table[-1:], model.table[: ids.shape[1] + 2]])

    def change(x, w):
        return torch.tanh(x[:, 1:6]) if x.shape[1] > 5 else torch.tanh(x)

    found, expected = (
        explained(change, [LRP], positions=positions).relevance[LRP]["input_ids"]
        for positions in (padded, POSITIONS["a slice"])
    )
    torch.testing.assert_close(found.full, expected.full, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.partial, expected.partial, rtol=0, atol=1e-12)


def test_copies_of_a_token_beside_each_other_are_no_positions():
    """As hyper-connections: as many copies of each token as the text has tokens."""

    def copied(model, ids):
        return (model.words(ids)[:, :, None].expand(-1, -1, ids.shape[1], -1) + model.table[: ids.shape[1]]).mean(2)

    found = explained(lambda x, w: torch.tanh(x), [LRP], positions=copied).relevance[LRP]["input_ids"]
    assert found.full.shape == IDS.shape
    torch.testing.assert_close(found.full, found.partial, rtol=0, atol=1e-12)


def test_a_second_table_of_the_same_tokens_is_a_root_if_a_model_copies_their_ids():
    """As Gemma 3n's embeddings of every layer, for which ids outside of the table are replaced."""

    def twice(ids_of):
        return lambda model, ids: model.words(ids) * 2 + F.embedding(ids_of(ids), model.table)

    found, expected = (
        explained(lambda x, w: torch.tanh(x), [LRP], positions=twice(ids_of)).relevance[LRP]
        for ids_of in (lambda ids: torch.where(ids < 8, ids, 0), lambda ids: ids)
    )
    assert found.keys() == expected.keys() == {"input_ids"}
    torch.testing.assert_close(found["input_ids"].full, expected["input_ids"].full, rtol=0, atol=1e-12)


def one_hot(model, ids):
    return F.one_hot(ids, 8).double() @ model.words.weight


def compared(model, ids):
    return (ids[..., None] == torch.arange(8)).double() @ model.words.weight


WITHOUT_ROOTS = {
    "one-hot rows of tokens": one_hot,
    "one-hot rows of": lambda model, ids: model.words(ids) + one_hot(model, ids),
    "does not depend on the batch's tokens": compared,
}


@pytest.mark.parametrize("message", WITHOUT_ROOTS)
def test_words_that_no_rule_sees_looked_up_are_refused(message):
    with pytest.raises(UnsupportedModel, match=message):
        explained(lambda x, w: x, positions=WITHOUT_ROOTS[message])


def test_an_input_beside_tokens_that_has_no_relevance_is_refused():
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=20,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            num_mel_bins=8,
            max_source_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()
    inputs = {"input_features": torch.randn(1, 8, 32), "decoder_input_ids": torch.tensor([[1, 5]])}
    with pytest.raises(UnsupportedModel, match="reads input_features, whose relevance is not defined"):
        explain_operations(model, inputs, lambda out: out.logits[:, -1, 2], [LRP])


PRODUCTS = {
    "matmul of three axes": lambda x, w: x @ torch.ones(1, 6, 6, dtype=x.dtype),
    "bmm": lambda x, w: torch.bmm(x, torch.ones(1, 6, 6, dtype=x.dtype)),
    "einsum": lambda x, w: torch.einsum("bti,oi->bto", x, torch.ones(6, 6, dtype=x.dtype)),
    "weights on the left": lambda x, w: torch.ones(5, 5, dtype=x.dtype) @ x,
    "baddbmm": lambda x, w: torch.baddbmm(torch.ones(1, 5, 6, dtype=x.dtype), x, torch.ones(1, 6, 6, dtype=x.dtype)),
}


@pytest.mark.parametrize("rule", ["gamma 0.25", "zplus", "alpha_beta 2"])
@pytest.mark.parametrize("spelling", PRODUCTS)
def test_a_product_with_weights_that_a_rule_of_linear_layers_does_not_reach_is_refused(spelling, rule):
    with pytest.raises(UnsupportedModel, match=r"rules of linear layers do not cover .* with weights.*block"):
        explained(PRODUCTS[spelling], [changed(ATTNLRP, f"linear {rule}")])
    explained(PRODUCTS[spelling], [ATTNLRP])


def shifted(maximum):
    return lambda x, w: torch.softmax(x - maximum(x), -1) * x.flip(1)


MAXIMA = {
    "values": lambda x: x.max(-1, keepdim=True).values,
    "detached": lambda x: x.max(-1, keepdim=True).values.detach(),
    "amax": lambda x: torch.amax(x, -1, keepdim=True).detach(),
    "of all": lambda x: x.max().data,
}


@pytest.mark.parametrize("softmax", ["gradient", "identity", "zplus", "constant"])
@pytest.mark.parametrize("spelling", MAXIMA)
def test_a_maximum_before_a_softmax_is_undone(spelling, softmax):
    rules = ATTNLRP if softmax == "gradient" else changed(ATTNLRP, f"softmax {softmax}")
    expected = explained(shifted(lambda x: 0.0), [rules]).relevance[rules]["input_ids"].full
    found = explained(shifted(MAXIMA[spelling]), [rules]).relevance[rules]["input_ids"].full
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


NO_SHIFTS = {
    "of another axis": lambda x, w: x * torch.softmax(x - x.amax(1, keepdim=True).detach(), -1),
    "of another tensor": lambda x, w: x * torch.softmax(x - x.flip(1).amax(-1, keepdim=True).detach(), -1),
    "of two tensors": lambda x, w: x * torch.softmax(x - torch.max(x, x.flip(1)).detach(), -1),
    "in a linear layer": lambda x, w: F.linear(x - x.amax(-1, keepdim=True).detach(), torch.eye(6, dtype=x.dtype)),
    "in an activation": lambda x, w: F.gelu(x - x.amax(-1, keepdim=True).detach()),
    "in a multiple": lambda x, w: 2 * (x - x.amax(-1, keepdim=True).detach()),
    "in a view": lambda x, w: F.gelu((x - x.amax(-1, keepdim=True).detach()).view(-1)).view(x.shape),
    "without gradients": lambda x, w: torch.softmax(x - torch.no_grad()(x.amax)(-1, keepdim=True), -1) * x,
}


@pytest.mark.parametrize("spelling", NO_SHIFTS)
def test_a_maximum_that_no_softmax_undoes_is_refused(spelling):
    with pytest.raises(UnsupportedModel, match=r"detach|gradients disabled"):
        explained(NO_SHIFTS[spelling])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_values_are_those_of_the_stock_model(dtype, autocast):
    def change(x, w):
        return F.layer_norm(F.silu(x) * x.flip(1) @ torch.softmax(x, -1).mT @ x, (6,))

    model = Model(change, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        with torch.no_grad():
            expected = model(IDS)[:, -1, 2]
        result = explain_operations(model, {"input_ids": IDS}, lambda out: out[:, -1, 2], [LRP, ATTNLRP])
    assert torch.equal(result.numbers, expected)
    assert all(relevance["input_ids"].full.isfinite().all() for relevance in result.relevance.values())


def test_parameters_that_require_gradients_are_constants():
    def change(x, w):
        return F.linear(x @ (w.mT @ w * 0.1), torch.eye(6, dtype=x.dtype))

    frozen = Model(change).requires_grad_(False)
    result = explain_operations(frozen, {"input_ids": IDS}, lambda out: out[:, -1, 2], [ATTNLRP])
    expected = result.relevance[ATTNLRP]["input_ids"].full
    torch.testing.assert_close(explained(change, [ATTNLRP]).relevance[ATTNLRP]["input_ids"].full, expected)


def test_another_thread_runs_the_stock_model_meanwhile():
    seen = []
    model = Model(lambda x, w: (seen.append(0), torch.tanh(x))[1])
    stock = []

    def readout(out):
        def other():
            embedded = model.words(IDS).detach().requires_grad_()
            stock.append(torch.autograd.grad(torch.tanh(model.first(embedded)).sum(), embedded)[0])

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return out[:, -1, 2]

    explain_operations(model, {"input_ids": IDS}, readout, [LRP])
    embedded = model.words(IDS).detach().requires_grad_()
    expected = torch.autograd.grad(torch.tanh(model.first(embedded)).sum(), embedded)[0]
    assert torch.equal(stock[0], expected)
