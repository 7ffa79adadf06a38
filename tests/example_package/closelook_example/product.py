"""A product: the entropy of what a model predicts for each sample, in nats."""

import pyarrow as pa
import torch

from closelook.evaluation.report.page import Part as ReportPart
from closelook.evaluation.report.table import Cell, Column, Row, Table
from closelook.evaluation.schema.versioned import versioned
from closelook.jobs.plan.node import Node, Part
from closelook.jobs.plan.units import cut_units
from closelook.jobs.products.record import Made, Product, Unit
from closelook.jobs.store import Artifact
from closelook.lrp_core import Batch

VERSION = 1  # raised when the numbers change


class Entropies:
    """A row a sample."""

    sample_id: str
    entropy: float


SCHEMA = versioned("entropy", 1, Entropies)


def nodes(run):
    """One artifact for every model and task."""
    for model in run.plan.models:
        for task, inputs in model.inputs.items():
            yield Node(
                artifact=Artifact("entropy", model.name, task, model.resolved.config.dtypes_for(task)[0], "entropy"),
                key_fields={"version": VERSION, "model": model.resolved.identity, "inputs": inputs.digest},
                samples=len(inputs.table),
                model=model,
            )


def units(run, nodes):
    """Batches within the token budget, the same for every node of a task."""
    inputs = nodes[0].plan.inputs[nodes[0].artifact.task]
    every = inputs.subset(None, run.config.seed)
    for cut in cut_units(inputs, every, run.config.token_budget, run.config.shard_rows):
        yield Unit(cut.name, tuple(Part(node, cut.name) for node in nodes), cut.rows, cut.cuts)


@torch.no_grad()
def compute(opened, parts, rows):
    """The entropies of a batch [B]."""
    view = opened.view
    batch = Batch.collate(rows, pad_id=view.pad_id).to(view.device)
    logits = view.all_logits(batch)[:, -1]  # [B, V]
    entropy = torch.distributions.Categorical(logits=logits.double()).entropy().cpu()
    columns = {"sample_id": [row["sample_id"] for row in rows], "entropy": entropy.tolist()}
    made = Made(pa.table(columns, schema=SCHEMA))
    return dict.fromkeys(parts, made)


def report(run):
    """A table of mean entropies."""
    rows = []
    for node in nodes(run):
        if run.ledger.is_done(node.artifact):
            mean = run.ledger.read(node.artifact, SCHEMA)["entropy"].to_numpy().mean()
            rows.append(Row(node.artifact.task, (node.artifact.model,), (Cell(float(mean)),)))
    table = Table(
        "entropy", "Entropy of predictions", "Means, in nats.", ("model",), (Column("", "entropy"),), tuple(rows)
    )
    return ReportPart("Entropy of predictions", "faithfulness.html", tables=[table] if rows else [])


ENTROPY = Product(
    name="entropy",
    title="entropies of predictions",
    stage="attribute",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
    report=report,
)
