"""Predicted bytes against measured ones, and how samples are cut."""

import pytest
import torch

from closelook.alti import METHODS, planner
from closelook.alti.planner import MemoryNeeds, predict
from closelook.alti.transformed import Chunk
from closelook.lrp_core import Batch, UserError
from closelook.lrp_core.device.memory import peak_memory
from tests.tiny import tiny_model

SIZES = {
    "gpt2": {"hidden_size": 96, "num_attention_heads": 6, "n_inner": 384, "n_positions": 512},
    "llama": {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "max_position_embeddings": 512,
    },
    "bert": {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "intermediate_size": 384,
        "max_position_embeddings": 512,
    },
}


def uniform(view, samples: int, length: int) -> Batch:
    ids = torch.randint(3, view.vocab, (samples, length), generator=torch.Generator().manual_seed(0))
    return Batch(ids, torch.ones_like(ids), torch.full((samples,), length - 1), ids[:, 0], ids[:, 1])


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", SIZES)
def test_predicted_bytes_are_within_a_fifth_of_the_measured_peak(name, dtype):
    view = tiny_model(name, dtype, **SIZES[name])
    method = METHODS["alti_logit" if view.family.norm_order == "pre" else "alti"]
    geometry = MemoryNeeds.of(view)
    for samples, length in ((1, 4), (32, 6), (4, 48), (1, 200)):
        roomy = predict(geometry, samples, length, geometry.chunk(samples, length))
        for budget in (roomy, roomy // 2) if samples > 1 else (roomy,):
            batch = uniform(view, samples, length)
            with peak_memory() as peak:
                plans = method(view, batch, byte_budget=budget).plans
            predicted = max(plan.bytes for plan in plans)
            assert abs(predicted / peak.peak_bytes - 1) < 0.2, (samples, length, plans[0])


def test_samples_of_like_length_go_together_and_all_go_once():
    geometry = MemoryNeeds.of(tiny_model("gpt2"))
    lengths = [5, 900, 4, 6, 1000, 450, 5]
    groups = list(planner.cut(geometry, lengths, 2**40))
    assert sorted(row for rows, _ in groups for row in rows) == list(range(7))
    assert [sorted(lengths[row] for row in rows) for rows, _ in groups] == [[900, 1000], [450], [4, 5, 5, 6]]
    assert all(plan.length == max(lengths[row] for row in rows) for rows, plan in groups)


def test_a_long_sample_takes_nothing_from_a_short_one():
    geometry = MemoryNeeds.of(tiny_model("gpt2"))
    budget = predict(geometry, 1, 1000, geometry.chunk(1, 1000))
    plans = [plan for _, plan in planner.cut(geometry, [1000, 1000, *[4] * 100], budget)]
    assert [plan.batch for plan in plans] == [1, 1, 100]


def test_a_tight_budget_shrinks_the_chunk_and_too_tight_a_one_is_an_error():
    geometry = MemoryNeeds.of(tiny_model("gpt2", **SIZES["gpt2"]))
    least = predict(geometry, 1, 200, Chunk(1, 1))
    plan = planner.plan(geometry, 200, least, batch=8)
    assert plan.batch == 1
    assert plan.bytes <= least
    with pytest.raises(UserError, match=f"needs {least} bytes for one sample of 200 tokens"):
        planner.plan(geometry, 200, least - 1, batch=8)


def test_free_memory_of_the_host_is_positive():
    assert planner.free_bytes(torch.device("cpu")) > 2**20
