"""Numbers follow from the sample and the weights alone: not from the caller's state, nor from another thread."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from transformers.models.llama import modeling_llama

from closelook.jobs.methods import METHODS, applicable
from closelook.lrp_core import Batch, Method, UnsupportedMethod, UnsupportedModel, UnusableRows, UserError, without_sum
from closelook.lrp_core.opening.altered import note_altered
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.readers.attention import around_attention
from tests.tiny import ragged_rows, tiny_classifier, tiny_model


def methods_of(view):
    return applicable(view.family.capabilities)


def explained(view, batch):
    """Tokens and explained numbers by method."""
    result = {method.name: method(view, batch) for method in methods_of(view)}
    return {name: (relevance.tokens, relevance.explained) for name, relevance in result.items()}


def assert_same(result, expected):
    for name, numbers in expected.items():
        for tensor, other in zip(result[name], numbers, strict=True):
            assert torch.equal(tensor, other), name


# the caller's state


def test_a_method_that_writes_into_its_batch_changes_no_number_of_another(view, batch):
    def writing(view, batch, requests):
        batch.input_ids.fill_(3)
        logits = view.logits(batch)
        return {request: without_sum(batch.attention_mask / 2, logits) for request in requests}

    of_writing = {"explanations": ("none",), "embeddings": ("none",), "conserves": False}
    kept = batch.input_ids.clone()
    Method("writing", version=1, label="Writing", explain=writing, **of_writing)(view, batch)
    assert torch.equal(batch.input_ids, kept)


@pytest.mark.thinned(3)
def test_parameters_that_require_gradients_change_no_number_and_still_do_afterwards(view, batch):
    expected = explained(view, batch)
    view.model.requires_grad_(True)
    assert_same(explained(view, batch), expected)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in view.model.parameters())


@pytest.mark.thinned(3)
def test_training_mode_after_wrapping_drops_nothing_out_and_is_restored(family):
    dropout = {"bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"), "gpt2": ("resid_pdrop", "attn_pdrop")}
    view = tiny_model(family, **dict.fromkeys(dropout.get(family, ("attention_dropout",)), 0.5))
    batch = Batch.collate(ragged_rows(view), 0)
    expected = explained(view, batch)
    frozen = view.blocks[0].module
    view.model.train()
    frozen.eval()
    assert_same(explained(view, batch), expected)
    assert {module.training for module in frozen.modules()} == {False}
    assert view.model.training
    assert view.blocks[1].module.training


@pytest.mark.thinned(3)
def test_autocast_of_the_caller_changes_no_number(family):
    view = tiny_model(family, dtype="float32")
    batch = Batch.collate(ragged_rows(view), 0)
    expected = explained(view, batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(explained(view, batch), expected)
        assert torch.is_autocast_enabled("cpu")


# threads


@pytest.mark.thinned(5)
@pytest.mark.parametrize("pair", [("lrp", "attnlrp"), ("lrp", "attention_rollout"), ("attnlrp_explicit", "lrp")])
def test_two_threads_on_one_view_get_the_numbers_of_one(view, batch, pair):
    plain = view.model(input_ids=batch.input_ids).logits
    expected = {name: METHODS[name](view, batch).tokens for name in pair}

    def repeat(name):
        return [METHODS[name](view, batch).tokens for _ in range(15)]

    with ThreadPoolExecutor(4) as pool:
        for name, runs in zip(pair * 2, pool.map(repeat, pair * 2), strict=True):
            assert all(torch.equal(tokens, expected[name]) for tokens in runs), name
    assert torch.equal(view.model(input_ids=batch.input_ids).logits, plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in view.model.modules())
    assert view.config._attn_implementation == "sdpa"


@pytest.mark.thinned(3)
def test_two_views_of_one_model_wait_for_each_other(view, batch):
    views = (view, view_of(view.model))
    expected = [METHODS[name](view, batch).tokens for name in ("lrp", "attnlrp")]

    def repeat(model_view, name):
        return [METHODS[name](model_view, batch).tokens for _ in range(15)]

    with ThreadPoolExecutor(2) as pool:
        for runs, alone in zip(pool.map(repeat, views, ("lrp", "attnlrp")), expected, strict=True):
            assert all(torch.equal(tokens, alone) for tokens in runs)


def test_scopes_of_models_that_share_a_config_may_overlap(view):
    twin = view_of(type(view.model)(view.config).double())
    assert twin.config is view.config
    config = view.config
    first, second = ExitStack(), ExitStack()
    first.enter_context(around_attention(view, {}, stock="eager"))
    assert twin.config._attn_implementation == "sdpa"
    second.enter_context(around_attention(twin, {}))
    assert view.config._attn_implementation == "closelook_eager"
    first.close()
    assert twin.config._attn_implementation == "closelook_sdpa"
    second.close()
    assert twin.config is view.config is config
    assert config._attn_implementation == "sdpa"


# rows


def test_a_position_without_a_token_is_an_error_that_names_the_rows(view, batch):
    for position in (torch.tensor([8, 3, 10]), torch.tensor([-1, 3, 10])):
        for method in methods_of(view):
            with pytest.raises(UnusableRows, match="rows 0, 2 of the batch: the position") as error:
                method(view, replace(batch, position=position))
            assert (error.value.rows, error.value.reason) == ((0, 2), "no_position")


def test_a_token_outside_the_vocabulary_is_an_index_error_that_names_the_row(view, batch):
    outside = batch.input_ids.clone()
    outside[1, 2] = view.vocab
    for broken in (
        replace(batch, input_ids=outside),
        replace(batch, target_ids=torch.tensor([3, -1, 3])),
        replace(batch, foil_ids=torch.tensor([3, view.vocab, 3])),
    ):
        for method in methods_of(view):
            with pytest.raises(IndexError, match="row 1 of the batch: token index out of range"):
                method(view, broken)


@pytest.mark.thinned(3)
def test_more_tokens_than_the_model_takes_are_an_error_that_names_the_row(view):
    fits = Batch.collate(ragged_rows(view, lengths=(view.max_length, 5)), 0)
    too_long = Batch.collate(ragged_rows(view, lengths=(5, view.max_length + 1)), 0)
    for method in methods_of(view):
        assert method(view, fits).tokens.isfinite().all()
        with pytest.raises(UnusableRows, match=f"row 1 of the batch: the model takes {view.max_length}") as error:
            method(view, too_long)
        assert (error.value.rows, error.value.reason) == ((1,), "too_long")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error_that_names_the_rows(view, batch, value):
    ids = torch.full_like(batch.input_ids, 3)
    ids[0, 1] = ids[2, 0] = 7
    unusual = replace(batch, input_ids=ids, target_ids=torch.tensor([4] * 3), foil_ids=torch.tensor([5] * 3))
    view.token_embedding.weight.data[7] = value
    for method in methods_of(view):
        with pytest.raises(UnusableRows, match=r"rows 0, 2 of the batch: .*not finite") as error:
            method(view, unusual)
        assert (error.value.rows, error.value.reason) == ((0, 2), "logits_not_finite")


@pytest.mark.thinned(3)
def test_rows_of_padding_alone_stand_for_no_sample(view, batch):
    mask = batch.attention_mask.clone()
    mask[1] = 0
    for method in methods_of(view):
        assert not method(view, replace(batch, attention_mask=mask)).tokens[1].any(), method.name


def test_the_error_of_unusable_rows_survives_pickling():
    error = pickle.loads(pickle.dumps(UnusableRows(range(12), "too_long", "drop them")))
    assert error.rows == tuple(range(12))
    assert str(error) == "rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... of the batch: drop them"


# holes in the mask


@pytest.mark.thinned(3)
def test_hidden_tokens_inside_a_sample_are_as_good_as_absent(view):
    rows = ragged_rows(view, lengths=(8, 5))
    without = [{**row, "input_ids": row["input_ids"][:1] + row["input_ids"][2:]} for row in rows]
    for row in without:
        row["position"] -= 1
    holed = Batch.collate(rows, 0)
    holed.attention_mask[:, 1] = 0
    for method in methods_of(view):
        if method.name == "random":  # drawn for the whole row of ids
            continue
        expected, relevance = method(view, Batch.collate(without, 0)), method(view, holed)
        torch.testing.assert_close(relevance.explained, expected.explained, rtol=1e-5, atol=1e-6, msg=method.name)
        seen = torch.cat([relevance.tokens[:, :1], relevance.tokens[:, 2:]], 1)
        torch.testing.assert_close(seen, expected.tokens, rtol=1e-5, atol=1e-6, msg=method.name)
        assert not relevance.tokens[:, 1].any()


def test_a_norm_whose_weights_were_taken_away_is_refused_when_wrapped(view):
    norm = view.norms()[-1].module
    norm.weight = None
    path = next(name for name, module in view.model.named_modules() if module is norm)
    with pytest.raises(UnsupportedModel, match=f"the norm {path} has no weights"):
        view_of(view.model)


@pytest.mark.parametrize(
    ("part", "new", "message"),
    [
        ("score", torch.nn.Linear(16, 5), "has 5 outputs, but its config says 3 labels"),
        ("score", torch.nn.Sequential(torch.nn.Linear(16, 3)), "has other parts than llama models with labels"),
        ("model.layers", slice(1), "has 1 layers, but its config says 2"),
    ],
)
def test_a_model_with_replaced_parts_is_refused_by_name(part, new, message):
    model = tiny_classifier("llama", dtype="float32").model
    model.set_submodule(part, model.get_submodule(part)[new] if isinstance(new, slice) else new)
    with pytest.raises(UnsupportedModel, match=message):
        view_of(model)


@pytest.mark.parametrize("family", [None, "generic"])
def test_a_head_with_fewer_rows_than_there_are_tokens_is_refused_by_name(family):
    model = tiny_model("gpt2", "float32").model
    model.lm_head = torch.nn.Linear(16, 40)
    with pytest.raises(UnsupportedModel, match=r"GPT2LMHeadModel has 40 outputs.* 50 tokens"):
        view_of(model, family)


@pytest.mark.parametrize("family", [None, "generic"])
def test_a_model_without_numbers_is_refused_by_name(family):
    for part in ("", "transformer.h.1.mlp"):
        model = tiny_model("gpt2", "float32").model
        model.get_submodule(part).to("meta")
        with pytest.raises(UserError, match=r"GPT2LMHeadModel has weights on the meta device, .* \(transformer\."):
            view_of(model, family)


class _Added(torch.nn.Linear):
    """A linear layer with an adapter of one's own, which its weight does not contain."""

    @classmethod
    def around(cls, layer):
        own = cls(layer.in_features, layer.out_features, bias=False)
        own.weight = layer.weight
        own.added = torch.nn.Parameter(torch.randn(own.weight.shape, generator=torch.Generator().manual_seed(0)))
        return own

    def forward(self, x):
        return super().forward(x) + x @ self.added.T


def _doubled(_, args, output):
    return output * 2


def _replaced(path):
    def change(model):
        model.set_submodule(path, _Added.around(model.get_submodule(path)))

    return change


def _hooked(path):
    return lambda model: model.get_submodule(path).register_forward_hook(_doubled)


def _patched(path):
    def change(model):
        module = model.get_submodule(path)
        forward = module.forward
        module.forward = lambda *args: forward(*args) * 2

    return change


def _computes_by_functions(model):
    """Replaces the MLP's forward by one that does not call its activation module, as packages of fast kernels do."""
    mlp = model.model.layers[0].mlp
    silu = torch.nn.functional.silu
    mlp.forward = lambda x: mlp.down_proj(silu(mlp.gate_proj(x)) * mlp.up_proj(x))


def _attends_by_itself(model):
    attention, eager = model.model.layers[1].self_attn, modeling_llama.eager_attention_forward

    def forward(hidden_states, position_embeddings, attention_mask=None, **options):
        shape = (*hidden_states.shape[:-1], -1, attention.head_dim)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (projection(hidden_states).view(shape).transpose(1, 2) for projection in projections)
        query, key = modeling_llama.apply_rotary_pos_emb(query, key, *position_embeddings)
        causal = torch.full((shape[1], shape[1]), -torch.inf).triu(1)[None, None]
        context, weights = eager(attention, query, key, value, causal, attention.scaling)
        return attention.o_proj(context.flatten(2)), weights

    attention.forward = forward


def _doubles_logits(model):
    def hook(_, args, output):
        output.logits = output.logits * 2

    model.register_forward_hook(hook)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (_replaced("lm_head"), "lm_head"),
        (_replaced("model.layers.0.self_attn.v_proj"), "model.layers.0.self_attn.v_proj"),
        (_hooked("lm_head"), "lm_head"),
        (_patched("lm_head"), "lm_head"),
        (_doubles_logits, "LlamaForCausalLM"),
        (_hooked("model.layers.0.input_layernorm"), "model.layers.0.input_layernorm"),
        (_patched("model.norm"), "model.norm"),
        (_computes_by_functions, "model.layers.0.mlp"),
        (_attends_by_itself, "model.layers.1.self_attn"),
    ],
)
def test_what_a_caller_changed_is_explained_as_it_ran_or_refused_by_methods_that_read_weights(change, path):
    model = tiny_model("llama", dtype="float32").model
    change(model)
    view = view_of(model)
    row = ragged_rows(view)[0]
    batch = Batch.collate([row], pad_id=0)
    stock = model(torch.tensor([row["input_ids"]])).logits[0, -1]
    relevance = METHODS["attnlrp"](view, batch)
    torch.testing.assert_close(relevance.logit_target[0], stock[row["target_id"]])
    with pytest.raises(UnsupportedMethod, match=f"^{path} may compute something else than its class"):
        METHODS["alti_logit"](view, batch)
    if "layers" in path and "norm" not in path:
        with pytest.raises(UnsupportedMethod, match=f"^{path} may compute something else"):
            METHODS["attnlrp"](view, batch, heads=True, neurons=True)


def test_layers_of_other_classes_are_explained_or_refused_by_methods_that_read_weights():
    view = tiny_model("gpt2", dtype="float32")
    batch, attention = Batch.collate(ragged_rows(view), pad_id=0), view.model.transformer.h[0].attn
    plain = METHODS["attnlrp"](view, batch)
    linear = torch.nn.Linear(16, 16)
    linear.weight.data, linear.bias.data = attention.c_proj.weight.data.T.clone(), attention.c_proj.bias.data
    attention.c_proj = linear
    altered = view_of(view.model)
    torch.testing.assert_close(METHODS["attnlrp"](altered, batch).tokens, plain.tokens)
    with pytest.raises(UnsupportedMethod, match=r"transformer\.h\.0\.attn\.c_proj may compute something else"):
        METHODS["alti_logit"](altered, batch)


class _Block(modeling_llama.LlamaDecoderLayer):
    def forward(self, *args, **options):
        return super().forward(*args, **options)


def test_blocks_of_an_unknown_class_are_refused_by_methods_that_read_weights_unless_their_family_brings_it():
    view = tiny_model("llama", dtype="float32")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    view.model.model.layers[1].__class__ = _Block
    with pytest.raises(UnsupportedMethod, match=r"model\.layers\.1 may compute something else"):
        METHODS["alti_logit"](view_of(view.model), batch)
    brought = replace(view, family=replace(view.family, classes=__name__))
    note_altered(brought)
    METHODS["alti_logit"](brought, batch)


def test_a_norm_of_another_class_is_refused_by_methods_that_read_weights():
    model = tiny_model("gpt2", dtype="float32").model
    model.transformer.h[1].ln_2 = torch.nn.RMSNorm(16, eps=1e-5)
    view = view_of(model)
    with pytest.raises(UnsupportedMethod, match=r"^transformer\.h\.1\.ln_2 may compute something else"):
        METHODS["alti_logit"](view, Batch.collate(ragged_rows(view), pad_id=0))
