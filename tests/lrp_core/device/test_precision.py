"""A model in float64 is computed in float64 all the way, and stays the stock model."""

import sys
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch, load_model
from closelook.lrp_core.device.precision import unrounded
from tests.asked import in_turn
from tests.tiny import BOTH, FEWER, IMAGES, MORE, TINY, picture_rows, ragged_rows, tiny_model

pytestmark = pytest.mark.numeric
FAMILIES = [*TINY, *MORE, *FEWER, *BOTH, *IMAGES]
#: Distances are sorted into buckets by logarithms in float32, as the stock models do: whole numbers come of them.
BUCKETS = {"_relative_position_bucket", "make_log_bucket_position"}
#: What docs/models.md says: how far logits of stock models in float64 are from those without their roundings.
STOCK_ROUNDING = 2e-6


def rows_of(view):
    return picture_rows(view) if view.kind.images else ragged_rows(view)


def callers():
    frame = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


class Narrow(TorchDispatchMode):
    """Keeps the names of operations that put out numbers in less than float64 which are not whole."""

    def __init__(self):
        super().__init__()
        self.operations = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            narrow = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64
            if narrow and not torch.equal(leaf, leaf.round()) and BUCKETS.isdisjoint(callers()):
                self.operations.add(str(func))
        return out


def narrow_operations(view, batch, names):
    """By method, where there are any."""
    by_method = {}
    for name in names:
        if not METHODS[name].applies(view.family.capabilities):
            continue
        with Narrow() as narrow:
            METHODS[name](view, batch)
        if narrow.operations:
            by_method[name] = sorted(narrow.operations)
    return by_method


def test_what_looks_for_float32_finds_it_in_stock_models():
    view = tiny_model("llama", attn="eager")
    with Narrow() as narrow:
        view.model(input_ids=torch.tensor([[3, 4, 5]]))
    assert {"aten._softmax.default", "aten.rsqrt.default"} <= narrow.operations


@pytest.mark.thinned(7)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_method_rounds_a_float64_model_to_float32(family):
    """A third of the methods on each family, in turn; pixels, SmoothGrad's noise and captum's samples are float32."""
    view = tiny_model(family, attn="eager")
    batch = Batch.collate(rows_of(view), 0)
    if view.kind.images:
        batch.pixel_values.round_()
    names = [name for name in METHODS if name not in ("smoothgrad", "kernel_shap")]
    assert not narrow_operations(view, batch, names[FAMILIES.index(family) % 3 :: 3])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "modernbert", "qwen2_moe", "bart"])
def test_nor_does_a_model_that_was_loaded(family, tmp_path):
    """Frequencies of rotary positions are constants in float32 there, whatever the model's precision is."""
    tiny_model(family, dtype="float32").model.save_pretrained(tmp_path)
    view = load_model(tmp_path, dtype="float64", attn="eager")
    batch = Batch.collate(ragged_rows(view), 0)
    assert not narrow_operations(view, batch, ["gradient_x_input", "lrp", "occlusion"])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_nor_does_a_block_that_is_run_again(checkpoint):
    view = tiny_model("llama")
    batch = Batch.collate(ragged_rows(view), 0)
    with Narrow() as narrow:
        METHODS["attnlrp"](view, batch, checkpoint=checkpoint)
    assert not narrow.operations


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("family", "attn"), in_turn(FAMILIES, ["sdpa", "eager"]))
def test_logits_lie_within_the_documented_bound_of_the_stock_model(family, attn):
    view = tiny_model(family, attn=attn)
    for row in rows_of(view):
        batch = Batch.collate([row], 0)
        inputs = {"input_ids": batch.input_ids}
        if view.kind.images:
            inputs = {"pixel_values": batch.pixel_values.double()}
        elif view.kind.decoder:
            inputs["decoder_input_ids"] = batch.decoder_input_ids
        stock = view.model(**inputs).logits[0]
        stock = stock if view.kind.labels else stock[row["position"]]
        ours = view.logits(batch)[0]
        gap = (ours - stock[[row["target_id"], row["foil_id"]]]).abs().max() / stock.abs().max()
        assert gap < STOCK_ROUNDING


def test_what_is_unrounded_on_one_thread_is_stock_on_another():
    view = tiny_model("llama", attn="eager")
    ids = torch.tensor([[3, 4, 5]])
    stock, elsewhere = view.model(input_ids=ids).logits, []
    with unrounded(view.dtype):
        assert not torch.equal(view.model(input_ids=ids).logits, stock)
        thread = threading.Thread(target=lambda: elsewhere.append(view.model(input_ids=ids).logits))
        thread.start()
        thread.join()
    assert torch.equal(elsewhere[0], stock)
    assert torch.equal(view.model(input_ids=ids).logits, stock)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_in_other_precisions_are_left_alone(dtype):
    view = tiny_model("gemma2", dtype=dtype, attn="eager")
    ids = torch.tensor([[3, 4, 5]])
    stock = view.model(input_ids=ids).logits
    with unrounded(view.dtype):
        assert torch.equal(view.model(input_ids=ids).logits, stock)


def test_numbers_that_were_integers_meet_float64_in_products():
    positions = torch.arange(4)
    with unrounded(torch.float64):
        assert positions.float().dtype == torch.float32, "another rounding could choose another bucket of T5"
        product = torch.ones(4, 1).float() @ positions[None].float()
    assert torch.equal(product, torch.arange(4.0, dtype=torch.float64).expand(4, 4))
