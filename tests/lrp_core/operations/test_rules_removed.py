"""No rule is idle: each one, put off in turn, changes relevance, and a function without an entry is refused by name."""

import pytest
import torch

from closelook.lrp_core.operations import table
from closelook.lrp_core.operations.scope import name_of
from closelook.lrp_core.operations.table import PASS, TABLE, Entry
from closelook.lrp_core.records.types import UnsupportedModel
from tests.lrp_core.operations import spellings as of
from tests.lrp_core.operations.spellings import explained

pytestmark = pytest.mark.numeric

#: By the rule's function: a model whose relevance needs it.
NEEDED = {
    "activation": of.Block,
    "attention": of.FusedAttention,
    "contraction": of.Block,
    "deviation": of.NormByHand,
    "gated": of.GatedLinear,
    "layer_norm": of.NormWithMean,
    "mul": of.Block,
    "rms_norm": of.Block,
    "softmax": of.Block,
    "steps": of.TorchAttention,
    "sum_and_product": of.AttentionByBatches,
}
#: Rules whose effect is not the gradient's, of other operations: tiny models of their architectures need them.
ELSEWHERE = {"log_of_sum", "put_out", "read_out", "div", "solve", "topk", "gather", "choice", "of_experts"}
#: Rules that are the gradient: they say what is linear.
LINEAR = {
    "view",
    "cast",
    "total",
    "joining",
    "add",
    "negative",
    "merging",
    "dropout",
    "pooling",
    "linear",
    "convolution",
}
LINEAR |= {"like", "mixture", "comparison", "of_no_relevance", "detached", "_in_place_write", "only_called"}


def rules():
    """The functions of all rules in the table."""
    return {entry.handler.__name__ for entry in TABLE.values()} - {"copied"}


def test_every_rule_is_in_a_list():
    assert rules() <= {*NEEDED, *ELSEWHERE, *LINEAR}


@pytest.mark.parametrize("name", NEEDED)
def test_relevance_changes_without_a_rule(name, monkeypatch):
    before = explained(NEEDED[name])
    for func, entry in TABLE.items():
        if entry.handler.__name__ == name:
            monkeypatch.setitem(TABLE, func, Entry(table.only_called, None))
    try:
        after = explained(NEEDED[name])
    except UnsupportedModel:
        return
    ours = torch.stack([*before.values()])
    assert (ours - torch.stack([*after.values()])).abs().max() > 1e-3 * ours.abs().max()


def called(spelling):
    """The torch functions that a model calls for which the table has a rule."""
    seen = []

    class Recorder(dict):
        def get(self, func, default=None):
            seen.append(func)
            return super().get(func, default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("closelook.lrp_core.operations.mode.TABLE", Recorder(TABLE))
        explained(spelling)
    return [func for func in dict.fromkeys(seen) if func in TABLE and TABLE[func] is not PASS]


@pytest.mark.parametrize("spelling", [of.Block, of.NormByHand, of.FusedAttention, of.StreamInPlace, of.StreamInSlices])
def test_a_function_without_an_entry_is_refused_by_its_name(spelling, monkeypatch):
    unneeded = []
    for func in called(spelling):
        with monkeypatch.context() as patch:
            patch.delitem(TABLE, func)
            try:
                explained(spelling)
            except UnsupportedModel as refusal:
                message = str(refusal)
            else:
                unneeded.append(name_of(func))
                continue
            assert name_of(func) in message
    assert set(unneeded) <= {"torch.ones", "torch.triu", "torch.embedding", "torch.zeros", "torch.conj"}
