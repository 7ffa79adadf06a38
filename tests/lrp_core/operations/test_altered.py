"""Models altered in memory are explained as they ran, or refused by name."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.llama import modeling_llama

from closelook.lrp_core.operations import explain_operations
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.rules import ATTNLRP, LRP
from tests.tiny import tiny_model

pytestmark = pytest.mark.numeric

IDS = torch.tensor([[5, 17, 33, 41, 29, 11, 8]])


def llama(attn="eager", **changes):
    return tiny_model("llama", attn=attn, num_hidden_layers=3, **changes).model


def without_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    return model


def explained(model):
    def readout(output):
        return output.logits[:, -1, 23] - output.logits[:, -1, 40]

    result = explain_operations(model, {"input_ids": IDS, "use_cache": False}, readout, [LRP, ATTNLRP])
    with torch.no_grad():
        stock = readout(model(IDS))
    torch.testing.assert_close(result.numbers, stock, rtol=1e-5, atol=0)  # the stock model rounds to float32 inside
    return result.numbers, {rules.name: result.relevance[rules]["input_ids"].full for rules in (LRP, ATTNLRP)}


def assert_same(altered, plain):
    torch.testing.assert_close(explained(altered), explained(plain), rtol=1e-9, atol=1e-11)


def assert_conserved(model):
    number, relevance = explained(without_biases(model))
    torch.testing.assert_close(relevance["lrp"].sum(-1), number, rtol=1e-9, atol=1e-11)


class Adapter(nn.Module):
    """A low-rank update beside a linear layer, with trainable weights."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(0.3 * torch.randn(4, base.in_features, dtype=torch.float64))
        self.b = nn.Parameter(0.3 * torch.randn(base.out_features, 4, dtype=torch.float64))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


def test_an_adapter_of_ones_own_is_explained_as_the_merged_weight():
    altered, plain = llama(), llama()
    adapter = Adapter(altered.model.layers[1].mlp.down_proj)
    altered.model.layers[1].mlp.down_proj = adapter
    plain.model.layers[1].mlp.down_proj.weight.data += (adapter.b @ adapter.a).data
    assert_same(altered, plain)


def test_a_head_ablated_by_a_hook_is_explained_as_a_head_without_weights():
    altered, plain = llama(), llama()

    def zero(_, args):
        x = args[0].clone()
        x[..., :4] = 0
        return (x,)

    altered.model.layers[1].self_attn.o_proj.register_forward_pre_hook(zero)
    plain.model.layers[1].self_attn.o_proj.weight.data[:, :4] = 0
    assert_same(altered, plain)


def with_queries_doubled(model):
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 2
    return model


def test_another_eager_kernel_is_explained_as_it_ran(monkeypatch):
    plain = explained(with_queries_doubled(llama()))
    eager = modeling_llama.eager_attention_forward

    def doubled(module, q, k, v, mask, scaling, **options):
        return eager(module, q, k, v, mask, scaling * 2, **options)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", doubled)
    torch.testing.assert_close(explained(llama()), plain, rtol=1e-9, atol=1e-11)


def test_another_fused_attention_is_explained_as_it_ran(monkeypatch):
    plain = explained(with_queries_doubled(llama("sdpa")))
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, *rest, **options: fused(q * 2, *rest, **options))
    torch.testing.assert_close(explained(llama("sdpa")), plain, rtol=1e-9, atol=1e-11)


def test_a_flag_that_changes_no_logit_changes_no_relevance():
    altered = llama()
    for layer in altered.model.layers:
        layer.self_attn.is_causal = False
    assert_same(altered, llama())


def test_a_global_hook_is_explained_as_it_ran():
    altered, plain = llama(), llama()
    for module in plain.modules():
        if isinstance(module, nn.Linear):
            module.weight.data *= 1.2
    expected = explained(plain)
    register = nn.modules.module.register_module_forward_hook
    hook = register(lambda module, args, output: output * 1.2 if isinstance(module, nn.Linear) else None)
    try:
        ours = explained(altered)
    finally:
        hook.remove()
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def test_backward_hooks_are_refused():
    altered = llama()
    double = lambda module, into, out: tuple(None if gradient is None else 2 * gradient for gradient in into)  # noqa: E731
    altered.model.layers[1].register_full_backward_hook(double)
    with pytest.raises(UnsupportedModel, match="backward hook"):
        explained(altered)


def test_gradient_hooks_on_tensors_are_refused():
    altered = llama()

    def hook(module, args, output):
        if output[0].requires_grad:
            output[0].register_hook(lambda gradient: 2 * gradient)

    altered.model.layers[1].self_attn.register_forward_hook(hook)
    with pytest.raises(UnsupportedModel, match="hook"):
        explained(altered)


def test_a_compiled_block_is_explained_as_it_ran_or_refused():
    altered = llama()
    altered.model.layers[1].compile(backend="eager")
    with contextlib.suppress(UnsupportedModel):
        assert_same(altered, llama())


def test_a_reparametrised_weight_is_explained_as_it_is():
    altered = llama()
    nn.utils.parametrizations.weight_norm(altered.model.layers[1].mlp.up_proj)
    assert_same(altered, llama())


def behind(parent, name, *more):
    setattr(parent, name, nn.Sequential(getattr(parent, name), *more).double())


@pytest.mark.parametrize(
    ("part", "name", "inserted"),
    [
        ("mlp", "down_proj", nn.LayerNorm(16)),
        ("mlp", "down_proj", nn.RMSNorm(16)),
        ("self_attn", "v_proj", nn.GELU()),
        ("self_attn", "o_proj", nn.Tanh()),
        ("mlp", "up_proj", nn.SiLU()),
    ],
)
def test_inserted_norms_and_activations_conserve(part, name, inserted):
    model = llama()
    behind(getattr(model.model.layers[0], part), name, copy.deepcopy(inserted))
    assert_conserved(model)


@pytest.mark.parametrize(("place", "inserted"), [("mlp.dropout", nn.Tanh()), ("attn.resid_dropout", nn.LayerNorm(16))])
def test_what_takes_the_place_of_dropout_conserves(place, inserted):
    model = tiny_model("gpt2", attn="eager").model
    model.transformer.h[0].set_submodule(place, copy.deepcopy(inserted).double())
    assert_conserved(model)


def test_an_embedding_in_a_sequence_is_explained():
    model = llama()
    model.model.embed_tokens = nn.Sequential(model.model.embed_tokens, nn.LayerNorm(16)).double()
    assert_conserved(model)


def test_a_sigmoid_in_place_of_an_activation_is_refused():
    model = llama()
    behind(model.model.layers[0].self_attn, "v_proj", nn.Sigmoid())
    with pytest.raises(UnsupportedModel):
        explained(model)


def test_dropout_that_is_on_is_refused_or_explained_at_its_own_draw():
    model = llama()
    behind(model.model.layers[0].mlp, "down_proj", nn.Dropout(0.5).train())
    model.model.layers[0].mlp.down_proj[1].train()
    try:
        result = explain_operations(model, {"input_ids": IDS, "use_cache": False}, lambda o: o.logits[:, -1, 3], [LRP])
    except UnsupportedModel:
        return
    assert result.numbers.isfinite().all()
