"""Knock-outs in the report: which samples their means are over."""

import numpy as np
import pytest

from closelook.evaluation.report.sections.neurons import Ablations, ablation_table
from closelook.evaluation.scoring.intervals import Resampling


def test_knock_outs_count_and_compare_the_samples_that_all_rankings_have():
    draw = np.random.default_rng(0)
    logits = {name: {f"s{at:02d}": draw.normal(size=3) for at in range(12)} for name in ("lrp", "random", "activation")}
    del logits["lrp"]["s04"]  # which the method rejected
    logits["random"]["s07"][2] = np.nan
    logits["void"] = {}
    logits["overflown"] = {f"s{at:02d}": np.full(3, np.nan) for at in range(12)}
    table = ablation_table([Ablations.of("gpt2", "sva", (1, 5), logits)], {}, Resampling(50))
    used = [name for name in logits["activation"] if name not in ("s04", "s07")]
    for row, ranking in zip(table.rows, ("lrp", "random", "activation"), strict=False):
        for at, cell in enumerate(row.cells, start=1):
            drops = [logits[ranking][name][0] - logits[ranking][name][at] for name in used]
            assert (cell.value, cell.n) == (pytest.approx(np.mean(drops)), 10)
    assert [cell.state for row in table.rows[3:-1] for cell in row.cells] == ["not finite"] * 4
    assert "2 samples are left out" in table.caption
