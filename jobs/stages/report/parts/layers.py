"""What each layer says of the tokens, held against evidence (figures 4 and 5 of NormXLogit)."""

from __future__ import annotations

from evaluation.report.layer_maps import LayerScore, layer_figures, layer_table
from evaluation.report.page import Part
from evaluation.report.results import Results
from evaluation.schema import LAYER_SCORES as SCHEMA
from jobs.config import RunConfig
from jobs.plan.cells import Plan
from jobs.plan.products.scores import LAYER_SCORES
from jobs.store import Ledger
from lrp_core.explained import EXPLAINED, NONE, TARGET


def layers_part(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Part:
    """Scores of layers that are done: of the target alone where it is explained, in a context where there is one."""
    scores: list[LayerScore] = []
    lacking: set[tuple[str, str, str]] = set()
    for one in LAYER_SCORES.wanted(config, plan, ledger):
        artifact = one.artifact
        if one.state(ledger) != "done":
            lacking.add((artifact.task, artifact.model, artifact.method))
            continue
        rows = ledger.store.read(f"{artifact.folder}/{artifact.shard()}", SCHEMA).to_pylist()
        explained = [name for name in (TARGET.name, *EXPLAINED, NONE) if any(r["explanation"] == name for r in rows)]
        scope = "context" if any(row["scope"] == "context" for row in rows) else "full"
        scores += [
            LayerScore(row["model"], row["task"], row["method"], row["layer"], row["metric"], row["value"], row["n"])
            for row in rows
            if (row["explanation"], row["tokens"], row["scope"]) == (explained[0], "all", scope)
        ]
    how = "No layers are kept and scored: set `layers` in the config, run `closelook attribute` and `evaluate`."
    note = (
        f"{len(lacking)} cells of layers have no scores: run `closelook attribute` and `evaluate`." if lacking else ""
    )
    figures = layer_figures(scores, results.methods)
    details = [layer_table(scores, results.methods, frozenset(lacking))] if scores else []
    return Part("Evidence by layer", how, figures, note=note, page="faithfulness.html", details=details)
