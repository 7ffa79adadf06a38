"""One transformer block in many spellings: explained as the plain one, or refused by name."""

import contextlib

import pytest
import torch

from closelook.lrp_core.operations import explain_operations
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.rules import LRP
from tests.lrp_core.operations import spellings as of
from tests.lrp_core.operations.spellings import Block, explained

pytestmark = pytest.mark.numeric

EQUAL = [
    of.NormByHand,
    of.NormByDivision,
    of.NormByPower,
    of.SiluByHand,
    of.SiluAsModule,
    of.GateSecond,
    of.FeedByEinsum,
    of.FeedInPlace,
    of.FeedAsOneLayer,
    of.FeedByMatrices,
    of.StreamInPlace,
    of.StreamInSlices,
    of.SoftmaxOfStableScores,
    of.AttentionByEinsum,
    of.AttentionByBatches,
    of.FusedAttention,
    of.TorchAttention,
    of.EmbeddingByIndex,
]
EQUAL_OR_REFUSED = [
    of.SiluByDivision,
    of.SoftmaxByHand,
    of.SoftmaxByLogarithm,
    of.EmbeddingByOneHot,
    of.ScriptedFeed,
    of.Vmapped,
]
REFUSED = [of.FeedByFunction, of.DetachedWeights, of.WeightsAsData, of.WithoutTorchFunction, of.NoGradient]


def assert_as_plain(spelling):
    torch.testing.assert_close(explained(spelling), explained(Block), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spelling", EQUAL, ids=lambda spelling: spelling.__name__)
def test_a_block_in_another_spelling_has_the_same_relevance(spelling):
    assert_as_plain(spelling)


@pytest.mark.parametrize("spelling", EQUAL_OR_REFUSED, ids=lambda spelling: spelling.__name__)
def test_a_rare_spelling_has_the_same_relevance_or_is_refused(spelling):
    with contextlib.suppress(UnsupportedModel):
        assert_as_plain(spelling)


@pytest.mark.parametrize("spelling", REFUSED, ids=lambda spelling: spelling.__name__)
def test_what_rules_do_not_see_is_refused_by_name(spelling):
    with pytest.raises(UnsupportedModel):
        explained(spelling)


def test_a_sigmoid_without_its_input_is_no_silent_constant():
    class SigmoidMLP(Block):
        def feed(self, x):
            return self.down(torch.sigmoid(self.gate(x)))

    torch.manual_seed(0)
    model = SigmoidMLP().double()
    with pytest.raises(UnsupportedModel, match="linear"):
        explain_operations(model, {"input_ids": torch.tensor([[5, 7]])}, lambda logits: logits[:, -1, 3], [LRP])
