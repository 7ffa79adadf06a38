"""`closelook compare` tests the same variant of both runs, on clusters of samples where they have any."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from closelook.evaluation.report.results import CellKey, Variant
from closelook.evaluation.scoring.samples import VARIANT
from closelook.jobs.commands.roots import changes as module
from closelook.jobs.commands.roots.changes import changes

CELL = CellKey("gpt2", "sva", "float32", "lrp")
TARGET, CONTRASTIVE = (Variant(name, "full", "non_special", "full") for name in ("target", "contrastive"))


def run(values):
    """A run whose only cell has these scores [N] by variant."""
    tables = []
    for variant, scores in values.items():
        columns = dict(zip(VARIANT, ([value] * len(scores) for value in variant), strict=True))
        columns |= {"sample_id": [f"s{at:02d}" for at in range(len(scores))], "correct": [True] * len(scores)}
        tables.append(pa.table({**columns, "pg": pa.array(scores, pa.float32())}))
    artifact = SimpleNamespace(columns=CELL, key=str(sorted(values)))
    return SimpleNamespace(
        ledger=None,
        current=lambda product: [(artifact, {})],
        read_each=lambda product, schema, folder: iter([(CELL, pa.concat_tables(tables))]),
    )


def test_runs_are_compared_in_a_variant_that_both_have(monkeypatch):
    monkeypatch.setattr(module, "clusters_of", lambda ledger, task: {})
    both = run({CONTRASTIVE: np.zeros(20), TARGET: np.ones(20)})
    [change] = changes(both, run({TARGET: np.ones(20)}), "pg")
    assert (change.first, change.second, change.p) == (100, 100, 1)
    assert changes(run({CONTRASTIVE: np.zeros(20)}), run({TARGET: np.ones(20)}), "pg") == []


def test_samples_of_a_cluster_count_as_one(monkeypatch):
    worse, better = run({TARGET: np.zeros(20)}), run({TARGET: np.repeat([1.0, 0.0], [16, 4])})
    p = []
    for clusters in ({}, {f"s{at:02d}": f"article {at // 10}" for at in range(20)}):
        monkeypatch.setattr(module, "clusters_of", lambda ledger, task, of=clusters: of)
        p += [change.p for change in changes(worse, better, "pg")]
    assert p[0] < 0.01 < 0.4 < p[1]
