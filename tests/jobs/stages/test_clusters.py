"""Samples that are alike share a cluster: intervals and tests of the report count clusters, not samples."""

import re

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.benchmark.samples import sample
from closelook.evaluation.report.overview.leaderboard import boards
from closelook.evaluation.report.overview.standings import OtherNumbers
from closelook.evaluation.schema import GENERIC
from closelook.evaluation.scoring.intervals import Resampling, mean_intervals
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import default_samples, results_of
from closelook.jobs.store import Ledger
from closelook.jobs.store.artifacts import samples_of
from tests.jobs.small import config_of, prepared, rows_of, save_model
from tests.stages import attribute, evaluate, perturb

ROWS = rows_of(60)


@pytest.fixture
def run(tmp_path, inline):
    """A run with scores and curves, and what writes the clusters of its samples."""
    few = {"ways": ["zero"], "steps": 5}
    config = config_of(tmp_path / "run", save_model(tmp_path / "gpt2"), perturb=few)
    store = prepared(config, ROWS)
    for stage in (attribute, evaluate, perturb):
        assert stage(config, store).complete

    def clustered(count: int | None):
        texts = []
        for at, row in enumerate(ROWS):
            text = sample("t", f"{row['sample_id']} says", 9, "yes", "no")
            cluster = None if count is None else f"article {at % count}"
            texts.append(text | {"sample_id": row["sample_id"], "cluster": cluster})
        store.write_shard(f"{samples_of('sva').folder}/a.parquet", pa.Table.from_pylist(texts, schema=GENERIC), GENERIC)
        Ledger(store).commit(samples_of("sva"), {"shards": ["a.parquet"], "rows": len(texts)})
        plan = make_plan(config, store)
        results = results_of(Run(config, plan, Ledger(store)))
        [comparison] = results.comparisons.values()
        return store, results, comparison, Reported(Run(config, plan, Ledger(store)), results).drawn[0]

    return clustered


def test_intervals_are_those_of_clusters_and_few_clusters_have_none(run):
    _, _, alone, areas_alone = run(None)
    store, results, comparison, drawn = run(24)
    cell_key = next(cell_key for cell_key in results.defaults if cell_key.method == "attnlrp")
    samples = default_samples(store, results, cell_key)
    samples = samples.filter(samples["correct"])
    ids = samples["sample_id"].to_pylist()
    of = np.array([int(name[1:]) % 24 for name in ids])
    assert 10 <= len(set(of)) < len(ids), "some share one"
    at, k = comparison.methods.index("attnlrp"), comparison.metrics.index("rma")
    low, high = mean_intervals(samples["rma"].to_numpy()[:, None], Resampling(1000, clusters=of), (0.0, 1.0))
    assert comparison.low[at, k] == pytest.approx(100 * low[0])
    assert comparison.high[at, k] == pytest.approx(100 * high[0])
    assert comparison.low[at, k] != alone.low[at, k]
    delta = ("attnlrp", "delta_area")
    assert drawn.areas.summaries[delta].value == areas_alone.areas.summaries[delta].value
    assert drawn.areas.summaries[delta].low != areas_alone.areas.summaries[delta].low
    _, few_results, few, drawn = run(4)
    assert np.isnan(few.low).all()
    assert (few.p == 1).all()
    [board] = boards(few_results, OtherNumbers())
    assert re.fullmatch(r"No difference is tested with \d+ samples in 4 clusters: too few\.", board.conclusion)
    assert np.isnan(drawn.areas.summaries[delta].low)
