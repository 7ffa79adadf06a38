"""Costs are medians over batches, per sample."""

import pytest

from closelook.evaluation.report.sections.costs import Pass, costs


def row(wall_s, length=10, batch=2, peak=None, **more):
    columns = {"task": "sva", "model": "gpt2", "dtype": "float32", "device": "cpu", "method": "gradients"}
    return columns | {"stage": "method", "wall_s": wall_s, "length": length, "batch": batch, "peak_bytes": peak} | more


def test_medians_and_quartiles_of_a_sample():
    [(key, cost)] = costs([row(1.0), row(2.0), row(3.0), row(4.0), row(5.0)]).items()
    assert key == Pass("sva", "gpt2", "float32", "cpu", "gradients", "method", 16)
    assert cost.sample_s == pytest.approx((1.0, 1.5, 2.0))
    assert cost.tokens_per_s == pytest.approx(20 / 3)
    assert (cost.batches, cost.peak_bytes) == (5, None)


def test_lengths_models_devices_and_stages_are_apart():
    rows = [row(1), row(1, length=17), row(1, model="llama"), row(1, device="H200", peak=7), row(1, stage="forward")]
    measured = costs(rows)
    assert len(measured) == 5
    assert {cost.peak_bytes for cost in measured.values()} == {None, 7}
