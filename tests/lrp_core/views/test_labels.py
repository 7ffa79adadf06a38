"""Every label of a classifier: each as if it were the batch's target, in few forwards."""

from dataclasses import replace

import pytest
import torch

from closelook.lrp_core import Batch, Request, UnusableRows, UserError
from closelook.lrp_core.methods import METHODS
from closelook.lrp_core.views.repeated import LABELS_AT_ONCE
from tests.tiny import tiny_classifier, tiny_model

ROWS = [[5, 9, 17, 8, 33], [12, 40, 7]]
SHARED = ("lrp", "attnlrp", "gradient_l1", "normxlogit", "logat")
ALONE = ("integrated_gradients", "occlusion", "gradcam")


def batch(view, target=0):
    reads = {"first": lambda ids: 0}.get(view.kind.reads, lambda ids: len(ids) - 1)
    return Batch.collate([{"input_ids": ids, "position": reads(ids), "target_id": target} for ids in ROWS], pad_id=0)


def requests(method, labels):
    return [Request(method, "target", METHODS[method].embeddings[0], label=at) for at in labels]


def forwards(view, call):
    """The rows of each forward that `call` makes."""
    seen = []
    hook = view.blocks[0].module.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    call()
    hook.remove()
    return seen


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("method", [*SHARED, *ALONE])
def test_each_label_is_explained_as_if_it_were_the_target(family, method):
    view = tiny_classifier(family, 3)
    asked = [METHODS[method].bound(request) for request in requests(method, (2, 0, 1))]
    relevance = METHODS[method].compute(view, batch(view), asked)
    assert list(relevance) == asked
    for request in asked:
        alone = METHODS[method](view, batch(view, request.label), explanation="target", embedding=request.embedding)
        for name in ("tokens", "explained", "logit_target"):
            torch.testing.assert_close(getattr(relevance[request], name), getattr(alone, name), rtol=1e-9, atol=1e-12)
        assert relevance[request].logit_foil is None
        assert relevance[request].conserves == alone.conserves
    assert not torch.equal(relevance[asked[0]].tokens, relevance[asked[1]].tokens)


@pytest.mark.parametrize("method", SHARED)
def test_labels_share_a_forward_of_the_texts(method):
    view = tiny_classifier("bert", LABELS_AT_ONCE + 1)
    asked = requests(method, range(LABELS_AT_ONCE + 1))
    assert forwards(view, lambda: METHODS[method].compute(view, batch(view), asked)) == [len(ROWS)] * 2


def test_rows_that_cannot_be_explained_are_named_as_in_the_batch_that_was_given():
    view = tiny_classifier("bert", 3)
    broken = replace(batch(view), position=torch.tensor([0, 4]))  # on padding
    with pytest.raises(UnusableRows) as raised:
        METHODS["lrp"].compute(view, broken, requests("lrp", range(3)))
    assert raised.value.rows == (1,)


def test_one_label_of_texts_that_a_batch_repeats():
    """`texts` is the caller's where no label is named, and the labels' own where one is."""
    view = tiny_classifier("bert", 3)
    (asked,) = requests("lrp", (1,))
    inputs, results = batch(view), METHODS["lrp"].compute(view, batch(view), [asked], texts=1)
    torch.testing.assert_close(results[asked].tokens, METHODS["lrp"].compute(view, inputs, [asked])[asked].tokens)


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_that_the_model_does_not_have_is_named(label):
    view = tiny_classifier("bert", 3)
    with pytest.raises(UserError, match=f"there is no label {label}: the model's labels are 0 to 2"):
        METHODS["lrp"].compute(view, batch(view), requests("lrp", (0, label)))


def test_labels_are_of_classifiers_alone():
    for view in (tiny_model("gpt2"), tiny_classifier("bert", 1)):
        with pytest.raises(UserError, match="only classifiers have labels"):
            METHODS["lrp"].compute(view, batch(view), requests("lrp", (0,)))
    view = tiny_classifier("bert", 3)
    with pytest.raises(UserError, match="name one in each, or in none"):
        METHODS["lrp"].compute(view, batch(view), [*requests("lrp", (0,)), Request("lrp", "target")])
