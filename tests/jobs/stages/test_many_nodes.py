"""A stage of very many artifacts: its own work for each does not grow with their number."""

from dataclasses import replace

from closelook.jobs.plan.node import Node, Plan, Run
from closelook.jobs.products.relevance import RELEVANCE
from closelook.jobs.stages import compute
from closelook.jobs.store import Artifact, Ledger, Store
from tests.synthetic import CONFIG

MANY = 200


def test_a_stage_compares_no_artifact_with_all_others(tmp_path, monkeypatch):
    """With 10,000 missing artifacts, the comparisons alone took 22 s of a processor."""
    nodes = [
        Node(artifact=Artifact("relevance", f"m{at}", "sva", "float32", "lrp", key="a" * 64)) for at in range(MANY)
    ]
    made, compared = [], []

    def make(run, products, ready, stage, unit, alone):
        made.extend(ready)
        return []

    def equal(self, other):
        compared.append(self)
        return self.artifact == other.artifact

    monkeypatch.setattr(compute, "_order", lambda stage: [(replace(RELEVANCE, nodes=lambda run: nodes),)])
    monkeypatch.setattr(compute, "make", make)
    monkeypatch.setattr(Node, "__eq__", equal)
    run = Run(CONFIG, Plan(()), Ledger(Store(str(tmp_path))))
    assert not compute.compute_plan(run, "attribute").made
    assert len(made) == MANY
    assert len(compared) < 10 * MANY
