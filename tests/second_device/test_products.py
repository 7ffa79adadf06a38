"""Products besides relevance on a second device: no mixed devices, the numbers of the CPU, few waits.

A forward whose numbers the host reads is waited for once; what several forwards make is read together where it can be.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from closelook.evaluation.scoring.faithfulness.flipping import PerturbedSample, compute_curves
from closelook.evaluation.scoring.faithfulness.flips import AREAS, SHARES_OF_TOKENS, Flips
from closelook.evaluation.scoring.head_orders import ACTIVATION, RANDOM, random_curves
from closelook.evaluation.scoring.neuron_ablation import NeuronAblation
from closelook.evaluation.scoring.pruning import Sweep
from closelook.explaining.neurons import changes_of, steered
from closelook.jobs.methods import METHODS
from closelook.jobs.products.explaining import Explainer, check_against_model
from closelook.lrp_core import Batch, Relevance, Request
from closelook.lrp_core.interventions.heads import branches, heads_removed
from closelook.lrp_core.interventions.neurons import neurons_scaled, neurons_set
from closelook.lrp_core.interventions.tokens import pixels_replaced, tokens_removed
from closelook.lrp_core.neurons.activity import Activity
from closelook.lrp_core.neurons.contexts import Context, explain_contexts
from closelook.lrp_core.neurons.logit_lens import keys_of, top_neurons, writings_of
from closelook.lrp_core.operations.forward import logits_at
from closelook.lrp_core.readers.predictions import with_predictions
from closelook.lrp_core.records.variants import tiled
from closelook.lrp_core.views.guard import check_rows
from tests.second_device.kinds import OF_RULES, assert_same, batch_of, check, models, rows_of

BUDGET = 10_000  # tokens: nothing is cut


def logits(view, batch):
    return view.logits(batch).detach()


# what stages of the job compute


@pytest.mark.thinned(3)
@pytest.mark.parametrize("product", ["relevance", "heads", "neurons", "layers"])
@pytest.mark.parametrize("kind", ["bert", "llama", "t5", "vit"])
def test_a_batch_of_relevance_is_read_in_one_copy(kind, product):
    of_product = {"layers": "normxlogit"}
    method = METHODS[of_product.get(product, "attnlrp")]
    known = models(kind, 2)[0].family.capabilities
    if method.missing(known):
        pytest.skip("not of this kind")
    explanations = ("contrastive", "target") if product == "relevance" else ("target",)
    requests = tuple(Request(method.name, explanation, method.embeddings_of(known)[0]) for explanation in explanations)

    def compute(view, rows):
        samples = [{**row, "sample_id": str(at)} for at, row in enumerate(rows_of(view, rows))]
        return list(Explainer(view, requests, product, metered=set(range(9))).batch(samples).relevance.values())

    check(kind, compute, most=2 + OF_RULES)  # whether logits are finite, and the numbers


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["bert classifier", "gpt2 classifier", "vit"])
@pytest.mark.parametrize("name", ["attnlrp", "normxlogit", "occlusion"])
def test_labels_that_share_a_forward_are_waited_for_once(kind, name):
    def compute(view, rows):
        plain = replace(batch_of(view, rows), foil_ids=None)
        asked = [METHODS[name].bound(Request(name, "target", METHODS[name].embeddings[-1], label=at)) for at in (2, 0)]
        return METHODS[name].compute(view, plain, asked)

    check(kind, compute, most=6 + OF_RULES)


def test_rows_that_are_on_the_device_are_checked_by_one_copy():
    def compute(view, rows):
        check_rows(view, batch_of(view, rows).to(view.device))
        return 0

    for kind in ("bert", "t5", "bert classifier"):
        check(kind, compute, most=1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "vit"])
def test_predictions_are_read_together(kind):
    def compute(view, rows):
        open_rows = [{**row, "target_id": None, "foil_id": None} for row in rows_of(view, rows)]
        return [row["target_id"] for row in with_predictions(view, open_rows)]

    check(kind, compute, most=1)


CURVES = [
    ("gpt2", "zero"),
    ("gpt2", "delete"),
    ("bert", "mask"),
    ("bert", "resample"),
    ("t5", "zero"),
    ("mixtral", "delete"),
    ("vit", "black"),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("measure", [AREAS, SHARES_OF_TOKENS])
@pytest.mark.parametrize(("kind", "way"), CURVES)
def test_curves_are_waited_for_once_a_forward(kind, way, measure):
    def compute(view, rows):
        fill = (0.5, -0.5) if view.kind.images else None
        flips = Flips(way, steps=5, flip_special=True, seed=0, mask_id=2, measure=measure, pixels=False, fill=fill)
        asked = []
        for at, row in enumerate(rows_of(view, rows)):
            length = len(row["input_ids"])
            relevance = np.random.default_rng(at).normal(size=(2, length))
            masks = {"special_mask": [False] * length, "scope_mask": None}
            instead = np.random.default_rng(at).integers(3, 40, (2, length))
            asked.append(
                PerturbedSample.of({**row, **masks, "replacements": instead}, relevance, flips, view.kind.slot)
            )
        curves, _ = compute_curves(view, asked, flips, BUDGET)
        return [(curve.logit, curve.probability, curve.correct) for curve in curves]

    check(kind, compute, most=1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "vit", "bert classifier"])
def test_pruning_is_waited_for_once_whatever_the_samples(kind):
    def compute(view, rows):
        sweep = Sweep(view, random_curves(view.n_layers * view.n_heads, 2, seed=0), step=3)
        right, finite = sweep.right(rows_of(view, rows), BUDGET)
        return right[:, :, finite].mean(2)

    check(kind, compute, most=1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "mixtral"])
def test_ablated_neurons_are_waited_for_once_a_sample_and_once_to_rank_them(kind):
    def compute(view, rows):
        knockout = NeuronAblation(view, (1, 3), "target", 0, BUDGET)
        rankings = {"given": [(0, 3), (1, 6), (0, 1)], ACTIVATION: None, RANDOM: None}
        return [knockout.sample(row, rankings) for row in rows_of(view, rows)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.second_device.kinds.SIZES", ((2, 2), (2, 5)))
        check(kind, compute, most=0, a_row=2)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "mixtral"])
def test_a_corpus_is_read_without_waits(kind):
    def compute(view, rows):
        activity = Activity(view, top=2, apart=(3, 4))
        activity.add([row["input_ids"] for row in rows_of(view, rows)], range(rows))
        return [value for layer in range(view.n_layers) for value in _told(activity.layer(layer))]

    def _told(layer):  # of equal values rounding decides about the rest
        return [layer.values, layer.total, layer.not_finite]

    check(kind, compute, most=0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_contexts_of_a_neuron_are_explained_in_a_wait(kind):
    def compute(view, rows):
        texts = [row["input_ids"] for row in rows_of(view, rows)]
        return explain_contexts(view, [Context(ids, len(ids) - 1, layer=1, neuron=6) for ids in texts])

    check(kind, compute, most=1 + OF_RULES)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5"])
def test_logits_of_a_package_s_method_are_compared_on_the_device(kind):
    def compute(view, rows):
        batch, request = batch_of(view, rows), Request("attnlrp", "target")
        relevance = METHODS["attnlrp"](view, batch, explanation="target")
        (relevance,) = Relevance.on_host([relevance])
        check_against_model(view, batch.to("cpu"), [{"sample_id": str(at)} for at in range(rows)], {request: relevance})
        return relevance.tokens

    check(kind, compute, most=4 + OF_RULES)


# interventions, and what commands tell of neurons


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("gpt2", "zero"),
        ("gpt2", "delete"),
        ("bert", "mask"),
        ("bert", "zero"),
        ("gpt2", "resample"),
        ("t5", "zero"),
        ("t5", "delete"),
    ],
)
def test_tokens_are_removed_without_waits(kind, way):
    def compute(view, rows):
        batch = batch_of(view, rows)
        removed = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
        removed[:, 1] = True
        instead = torch.full(batch.input_ids.shape, 2) if way == "resample" else 2
        with tokens_removed(view, batch, removed, way, instead) as changed:
            return logits(view, changed)

    check(kind, compute, most=2 if way == "zero" else 0)  # are other ids of that shape, as of positions, the tokens'?


@pytest.mark.thinned(3)
@pytest.mark.parametrize("whole", ["patches", "pixels"])
def test_pixels_are_replaced_without_waits(whole):
    def compute(view, rows):
        batch = batch_of(view, rows)
        size = view.image_shape[1] * view.image_shape[2] if whole == "pixels" else batch.input_ids.shape[1]
        removed = (torch.arange(size) % 3 == 0).expand(rows, -1)
        return logits(view, pixels_replaced(view, batch, removed, (0.5, -0.5)))

    check("vit", compute, most=0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "vit"])
def test_heads_are_removed_without_waits(kind):
    def compute(view, rows):
        masks = np.ones((3, view.n_layers, view.n_heads), np.uint8)
        masks[0, 0, 1] = masks[1, 1, 2] = 0
        sample = batch_of(view, 1).to(view.device)
        with heads_removed(view, list(branches(view, masks))):
            return logits_at(view, tiled(sample, len(masks)), sample)[1]

    check(kind, compute, most=0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("change", [neurons_set, neurons_scaled])
@pytest.mark.parametrize("kind", ["gpt2", "bert", "vit", "mixtral"])
def test_neurons_are_changed_without_waits(kind, change):
    def compute(view, rows):
        batch = batch_of(view, rows).to(view.device)
        where = torch.arange(batch.input_ids.shape[1]).expand(rows, -1) > 1
        with change(view, [{(0, 3): 2.0, (1, 6): -1.0}] * rows, where):
            return logits(view, batch)

    check(kind, compute, most=0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_a_steered_text_is_not_waited_for(kind):
    def compute(view, rows):
        batch = batch_of(view, 1)
        changes = changes_of(["0.3=2"], ["1.6=-1"])
        with steered(view, changes):
            moved = batch.to(view.device)
            return view.all_logits(moved)[:, -1].detach()

    check(kind, compute, most=0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral"])
def test_what_neurons_write_and_answer_to_is_that_of_the_cpu(kind):
    cpu_view, device_view = models(kind, 2)
    for vectors_of in (writings_of, keys_of):
        on_cpu, on_device = (vectors_of(view, 1, [0, 6, 3], 4) for view in (cpu_view, device_view))
        assert str(on_cpu)[:20] == str(on_device)[:20]
    batch = batch_of(cpu_view, 2)
    on_cpu, on_device = (
        top_neurons(METHODS["attnlrp"](view, batch, neurons=True), 3) for view in (cpu_view, device_view)
    )
    assert_same([[n.relevance for n in row] for row in on_device], [[n.relevance for n in row] for row in on_cpu])


def test_a_batch_goes_there_and_back():
    _, device_view = models("vit", 2)
    batch = batch_of(device_view, 2)
    back = batch.to(device_view.device).to("cpu")
    assert isinstance(back, Batch)
    for name, value in vars(batch).items():
        assert value is None or torch.equal(getattr(back, name), value)
