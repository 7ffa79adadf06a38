"""Relevance inside the model: of every neuron, and across every layer boundary."""

import pytest
import torch

from closelook.lrp_core import METHODS, Batch, UnsupportedMethod, attribute
from closelook.lrp_core.device.memory import peak_memory
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.interventions.neurons import neurons_set
from closelook.lrp_core.methods.gradients import READINGS, explain_many
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.places.boundaries import REASONS
from closelook.lrp_core.records.capabilities import NEURONS
from closelook.lrp_core.records.types import Request
from closelook.lrp_core.verification.stock import without_biases
from tests.asked import in_turn
from tests.ruled import forward
from tests.tiny import MORE, TINY, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
#: Unstable rules take the same path, and their rounding is as large as they are.
LISTENING = [name for name, method in METHODS.items() if "neurons" in method.gives and not method.unstable]


#: All families that have neurons, not only the three of the other tests.
EVERY = [name for name in sorted(TINY | MORE) if NEURONS in FAMILIES[name].capabilities]
#: Those whose feed-forward layers are MLPs, whose down projections are modules; for experts see `test_experts`.
MLPS = [name for name in EVERY if FAMILIES[name].experts is None]


def gradients_inside(view, batch, name, read):
    """Gradient of the contrast at each block's tensor, by brute force; `read(block)` gives a module and which side."""
    result, hooks = [], []
    reading = READINGS[name]
    for block in view.blocks:
        module, output = read(block)
        if output:
            hooks.append(module.register_forward_hook(lambda _, args, y: result.append(y)))
        else:
            hooks.append(module.register_forward_pre_hook(lambda _, args: result.append(args[0])))
    logits = forward(view, batch, reading.composite).output["logits"]
    gradients = torch.autograd.grad((logits[:, 0] - logits[:, 1]).sum(), result)
    for hook in hooks:
        hook.remove()
    shape = batch.input_ids.shape  # which some families flatten
    return [tensor.view(*shape, -1) for tensor in gradients], [tensor.detach().view(*shape, -1) for tensor in result]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("kind", "name"), in_turn(MLPS, LISTENING))
def test_neurons_equal_the_gradient_at_every_neuron_by_brute_force(kind, name):
    """Every family, and every method: where the gradient is read is the family's, its measure is the method's."""
    view = tiny_model(kind)
    batch = Batch.collate(ragged_rows(view), 0)
    gradients, values = gradients_inside(view, batch, name, lambda block: (block.down, False))
    result = attribute(name, view, batch, neurons=True)
    for layer, (gradient, value) in enumerate(zip(gradients, values, strict=True)):
        relevance = READINGS[name].measure(gradient, value) * batch.attention_mask[..., None]
        for sample in range(len(batch)):
            for neuron in range(view.n_neurons):
                of_neuron = relevance[sample, :, neuron]
                at = int(result.neuron_positions[sample, layer, neuron])
                assert float(result.neurons[sample, layer, neuron]) == pytest.approx(float(of_neuron.sum()), abs=1e-12)
                assert float(of_neuron[at].abs()) == float(of_neuron.abs().max())
                assert result.neuron_values[sample, layer, neuron] == value[sample, at, neuron]


@pytest.mark.thinned(3)
def test_neurons_of_the_plain_gradient_are_finite_differences(view, batch):
    relevance = attribute("gradient_x_input", view, batch, neurons=True)
    activations = []
    hook = view.blocks[1].down.register_forward_pre_hook(lambda _, args: activations.append(args[0].clone()))
    view.all_logits(batch)
    hook.remove()
    step, neuron = 1e-4, 5
    for sample in range(len(batch)):
        total = 0.0
        for position in torch.nonzero(batch.attention_mask[sample]).flatten().tolist():
            before = float(activations[0][sample, position, neuron])
            where = torch.zeros_like(batch.attention_mask, dtype=torch.bool)
            where[sample, position] = True
            contrasts = []
            for moved in (before + step, before - step):
                with neurons_set(view, [{(1, neuron): moved} if row == sample else {} for row in range(3)], where):
                    target, foil = view.logits(batch)[sample]
                contrasts.append(float(target - foil))
            total += (contrasts[0] - contrasts[1]) / (2 * step) * before
        assert float(relevance.neurons[sample, 1, neuron]) == pytest.approx(total, rel=1e-5, abs=1e-8)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", ["lrp", "attnlrp"])
@pytest.mark.parametrize("kind", MLPS)
def test_neurons_hold_what_reaches_the_feed_forward_layer_and_pass_all_of_it_on(kind, name):
    view = tiny_model(kind)
    with without_biases(view.model):
        _check_neurons_pass_all_on(view, name)


def _check_neurons_pass_all_on(view, name):
    batch = Batch.collate(ragged_rows(view), 0)
    neurons = attribute(name, view, batch, neurons=True).neurons.sum(-1)  # [B, L]
    of_output = gradients_inside(view, batch, name, lambda block: (block.down, True))
    for layer, (gradient, value) in enumerate(zip(*of_output, strict=True)):
        # what the hook on the output sees is after the rule of a product has taken its share, like the neurons' inputs
        torch.testing.assert_close((gradient * value).sum((1, 2)), neurons[:, layer], rtol=1e-9, atol=1e-11)
    reading = [gradients_inside(view, batch, name, lambda block: (block.up, True))]
    apart = view.family.gate not in (None, view.family.up)  # else one module puts out both
    if apart and READINGS[name].composite.bilinear.serves_gate:
        reading.append(gradients_inside(view, batch, name, lambda block: (block.gate, True)))
    for layer in range(view.n_layers):
        below = sum((gradients[layer] * values[layer]).sum((1, 2)) for gradients, values in reading)
        torch.testing.assert_close(below, neurons[:, layer], rtol=1e-9, atol=1e-11)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["lrp", "lrp_identity_softmax", "lrp_distributed_bias"])
def test_the_largest_relevance_of_a_token_is_that_of_the_gradient_at_every_boundary(view, name):
    batch = Batch.collate(ragged_rows(view), 0)
    gradients, values = gradients_inside(view, batch, name, lambda block: (block.module, False))
    peaks = attribute(name, view, batch, boundaries=True).peaks
    assert peaks.shape == (len(batch), view.n_layers + 1)
    for layer, (gradient, value) in enumerate(zip(gradients, values, strict=True)):
        for sample in range(len(batch)):
            by_token = [float((g * v).sum()) for g, v in zip(gradient[sample], value[sample], strict=True)]
            assert float(peaks[sample, layer]) == pytest.approx(max(map(abs, by_token)), rel=1e-9)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["lrp", "attnlrp"])
@pytest.mark.parametrize("kind", EVERY)
def test_what_crosses_layer_boundaries_is_accounted_for(kind, name):
    view = tiny_model(kind)
    relevance = attribute(name, view, Batch.collate(ragged_rows(view), 0), boundaries=True)
    steps = relevance.boundaries[:, 1:] - relevance.boundaries[:, :-1]
    torch.testing.assert_close(steps, relevance.kept.sum(-1), rtol=1e-9, atol=1e-10)
    has_biases = any(name.endswith("bias") for name, _ in view.model.base_model.named_parameters())
    assert (relevance.kept[..., REASONS.index("biases")].abs() > 1e-6).all() == has_biases
    for reason in REASONS[1:]:
        assert (relevance.kept[..., REASONS.index(reason)].abs() > 1e-12).any() == (name == "attnlrp")
    if view.embedding_norm is None and not view.family.position_embedding:
        torch.testing.assert_close(relevance.boundaries[:, 0], relevance.tokens.sum(-1), rtol=1e-9, atol=1e-10)


def parted(view, tensor):
    """Queries [B, T, H, K], keys and values [B, T, G, K] from what a fused module puts out."""
    heads, groups, width = view.n_heads, view.n_kv_heads, view.head_dim
    if view.family.qkv == "per_head":
        return tensor.unflatten(-1, (heads, 3, width)).unbind(3)
    parts = tensor.split([heads * width, groups * width, groups * width], dim=-1)
    return tuple(part.unflatten(-1, (-1, width)) for part in parts)


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("kind", "name"), in_turn(EVERY, LISTENING, each=2))
def test_projections_equal_the_gradient_at_what_each_puts_out_by_brute_force(kind, name):
    """Every family with two methods: queries and keys have relevance under some, and under others none."""
    view = tiny_model(kind)
    batch = Batch.collate(ragged_rows(view), 0)
    result = attribute(name, view, batch, projections=True)
    weighed = READINGS[name].composite.bilinear.serves_gate
    assert (result.queries is None) == (result.keys is None) == (not weighed)
    expected = {"outputs": gradients_inside(view, batch, name, lambda block: (block.output, True))}
    if view.family.qkv == "separate":
        for field in ("queries", "keys", "values") if weighed else ("values",):
            part = {"queries": "query", "keys": "key", "values": "value"}[field]
            pair = gradients_inside(view, batch, name, lambda block, part=part: (getattr(block, part), True))
            expected[field] = [[x.unflatten(-1, (-1, view.head_dim)) for x in layers] for layers in pair]
    else:
        pair = [
            [parted(view, x) for x in layers]
            for layers in gradients_inside(view, batch, name, lambda block: (block.value, True))
        ]
        for at, field in enumerate(("queries", "keys", "values")):
            if weighed or field == "values":
                expected[field] = [[x[at] for x in layers] for layers in pair]
    for field, (gradients, values) in expected.items():
        for layer, (gradient, value) in enumerate(zip(gradients, values, strict=True)):
            relevance = READINGS[name].measure(gradient, value)
            mask = batch.attention_mask.view(*batch.attention_mask.shape, *(1,) * (relevance.dim() - 2))
            torch.testing.assert_close(
                getattr(result, field)[:, layer], (relevance * mask).sum(1), rtol=1e-9, atol=1e-12
            )
    groups = (len(batch), view.n_layers, view.n_kv_heads, view.head_dim)
    assert result.values.shape == groups
    assert not weighed or (result.keys.shape, result.queries.shape[2]) == (groups, view.n_heads)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["lrp", "attnlrp"])
@pytest.mark.parametrize("kind", EVERY)
def test_queries_keys_and_values_have_what_outputs_have_but_for_what_attention_keeps(kind, name):
    view = tiny_model(kind)
    if view.blocks[0].head_norms or getattr(view.config, "attn_logit_softcapping", None) or view.blocks[0].added_norms:
        pytest.skip("what stands between takes a share of its own")
    with without_biases(view.model):
        relevance = attribute(name, view, Batch.collate(ragged_rows(view), 0), projections=True, boundaries=True)
    parts = [part.sum((2, 3)) for part in (relevance.queries, relevance.keys, relevance.values) if part is not None]
    torch.testing.assert_close(relevance.outputs.sum(-1) - sum(parts), relevance.kept[..., 1], rtol=1e-9, atol=1e-10)


def test_a_composite_with_rules_of_linear_layers_gives_neurons_without_boundaries(view, batch):
    method = METHODS["attnlrp"].configured(composite={"linear": {"gamma": 0.1}})
    assert set(METHODS["attnlrp"].given) - set(method.given) == {"boundaries"}
    gamma, epsilon = method.bound(Request("attnlrp")), Request("attnlrp")
    relevance = explain_many(view, batch, [gamma, epsilon], neurons=True, boundaries=True)
    alone = explain_many(view, batch, [epsilon], neurons=True, boundaries=True)[epsilon]
    assert relevance[gamma].boundaries is None
    torch.testing.assert_close(relevance[epsilon].boundaries, alone.boundaries, rtol=1e-9, atol=1e-10)
    assert not torch.allclose(relevance[gamma].neurons, alone.neurons)
    with pytest.raises(UnsupportedMethod, match="ask for composite 'epsilon'"):
        method(view, batch, boundaries=True)


@pytest.mark.thinned(3)
def test_neurons_and_boundaries_are_the_same_under_checkpointing_padding_and_company(view, batch):
    names = ("lrp", "attnlrp", "gradient_x_input")
    requests = [Request(name, explanation) for name in names for explanation in ("contrastive", "target")]
    together = explain_many(view, batch, requests, neurons=True, boundaries=True, checkpoint=True)
    for request in requests:
        for row in range(len(batch)):
            length = int(batch.attention_mask[row].sum())
            sample = {
                "input_ids": batch.input_ids[row, :length].tolist(),
                "position": int(batch.position[row]),
                "target_id": int(batch.target_ids[row]),
                "foil_id": int(batch.foil_ids[row]),
            }
            single = Batch.collate([sample], 0, "left")
            alone = explain_many(view, single, [request], neurons=True, boundaries=True)[request]
            for field in ("neurons", "neuron_values", "boundaries", "kept"):
                result, expected = getattr(together[request], field)[row], getattr(alone, field)[0]
                torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-10)
            assert torch.equal(together[request].neuron_positions[row], alone.neuron_positions[0])


def test_asking_changes_no_relevance_and_leaves_no_hook(view, batch):
    plain = attribute("attnlrp", view, batch)
    asked = attribute("attnlrp", view, batch, neurons=True, boundaries=True, heads=True)
    assert torch.equal(plain.tokens, asked.tokens)
    assert plain.neurons is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in view.model.modules())


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("checkpoint", "most"), [(False, 1.35), (True, 1.1)])
def test_neurons_cost_little_memory_beyond_the_token_pass(family, checkpoint, most):
    wide = {"hidden_size": 64, "n_inner": 256} if family == "gpt2" else {"hidden_size": 64, "intermediate_size": 256}
    layers = {"num_hidden_layers": 6, "vocab_size": 50}
    longest = {"n_positions" if family == "gpt2" else "max_position_embeddings": 200}
    view = tiny_model(family, dtype="float32", **wide, **layers, **longest)
    batch = Batch.collate(ragged_rows(view, lengths=(200,)), 0)
    peaks = []
    for asked in ({}, {"neurons": True}):
        with peak_memory() as peak:
            attribute("attnlrp", view, batch, checkpoint=checkpoint, **asked)
        peaks.append(peak.peak_bytes)
    assert peaks[1] <= most * peaks[0]


def test_methods_and_models_without_neurons_are_refused_by_name(view, batch):
    with pytest.raises(UnsupportedMethod, match="random gives no relevance of neurons"):
        attribute("random", view, batch, neurons=True)
    with pytest.raises(UnsupportedMethod, match="gradient_l1 gives no relevance at the boundaries of layers"):
        attribute("gradient_l1", view, batch, boundaries=True)
    generic = view_of(view.model, family="generic")
    with pytest.raises(UnsupportedMethod, match="neurons needs feed-forward layers that are described"):
        attribute("gradient_x_input", generic, batch, neurons=True, embedding="partial")
