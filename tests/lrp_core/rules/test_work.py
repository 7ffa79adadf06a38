"""What a pass computes, counted in operations and bytes: time on a busy machine would not be as clear."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from closelook.jobs.bench.table_8 import METHODS, once
from closelook.jobs.geometries import GEOMETRIES
from closelook.lrp_core import Batch, random_model
from closelook.lrp_core.rules.linear import gamma_rule
from closelook.lrp_core.verification.samples import random_rows

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm)


class Counting(TorchDispatchMode):
    """Counts bytes that are read and written inside the `with`; views of a tensor count as no work."""

    def __init__(self):
        super().__init__()
        self.operations = self.moved_bytes = self.product_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.is_view or func is torch.ops.aten.detach.default:
            return result
        leaves = [leaf for leaf in tree_iter((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        self.operations += 1
        self.moved_bytes += size
        if func.overloadpacket in PRODUCTS:
            self.product_bytes += size
        return result


def test_work_is_what_a_pass_computes_reads_and_writes():
    x, weight = torch.ones(3, 4), torch.ones(4, 5, requires_grad=True)
    y = (x @ weight).sum()
    with Counting() as counting:
        torch.autograd.grad(y, weight)
    assert counting.product_bytes == 4 * (3 * 4 + 3 * 5 + 4 * 5)
    ones_like, product = 4 + 4, counting.product_bytes
    assert counting.moved_bytes == ones_like + product
    assert counting.operations == 2


@pytest.mark.parametrize(("geometry", "most"), [("bert-base", 1.12), ("gpt2", 1.0), ("Llama-3.2-1B", 1.0)])
def test_the_rules_move_hardly_more_bytes_than_the_plain_gradient(geometry, most):
    """At the width of the geometry, where weights dominate."""
    config = replace(GEOMETRIES[geometry], layers=1, vocabulary=128).config()
    view = random_model(config)
    batch = Batch.collate(random_rows(view, [14 if view.kind.slot else 4]), pad_id=0)
    work = {method: Counting() for method in METHODS}
    for method, counting in work.items():
        once(view, batch, method, counting)
    plain = work["gradient_x_input"]
    of_head = 1.003 if view.kind.slot else 1.0  # the model itself transforms all tokens of the head, not one
    assert work["attnlrp"].product_bytes <= of_head * plain.product_bytes
    assert work["attnlrp"].moved_bytes <= most * plain.moved_bytes
    assert work["lrp"].moved_bytes < (1.0 if view.family.qkv == "joined" else 0.95) * plain.moved_bytes


def test_gamma_takes_three_products_where_the_gradient_takes_one():
    dy, x, y, weight = torch.randn(5, 7), torch.randn(5, 6), torch.randn(5, 7), torch.randn(7, 6)
    with Counting() as counting:
        gamma_rule(0.25).backward(dy, x, y, weight, None)
    assert counting.product_bytes == 3 * 4 * (x.numel() + y.numel() + weight.numel())
