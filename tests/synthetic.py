"""A small store of made-up relevance, for whatever reads one: no model runs."""

import json

import numpy as np
import pyarrow as pa

from closelook.evaluation.schema import GENERIC, VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import keeping
from closelook.jobs.plan.cells import schema_of
from closelook.jobs.plan.inputs import Inputs, read_inputs
from closelook.jobs.plan.models import ResolvedModel
from closelook.jobs.plan.node import Cell, ModelPlan, Plan
from closelook.jobs.store import Artifact, Ledger, Store
from closelook.jobs.store.artifacts import samples_of, views_of
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.records.types import Request
from tests.stages import score_plan

TOKENIZER = "words-0000"
VARIANTS = {
    "attnlrp": [("contrastive", "full"), ("target", "full"), ("contrastive", "partial"), ("target", "partial")],
    "gradient_l2": [("contrastive", "none"), ("target", "none")],
    "attention_rollout": [("none", "none")],
    "random": [("none", "none")],
}
QUALITY = {"attnlrp": 3.0, "gradient_l2": 1.5, "attention_rollout": 0.5, "random": 0.0}  # evidence over noise
CONFIG = RunConfig.model_validate(
    {
        "name": "made-up",
        "root": "runs/made-up",
        "tasks": {"sva": {"source": "demo"}, "qa": {"source": "demo"}},
        "models": [{"name": name, "id": f"demo/{name}"} for name in ("gpt2", "llama")],
        "methods": list(VARIANTS),
    }
)


def write_benchmark(store, task="sva", samples=20, seed=0, text=None):
    """Generic samples and their views: four to nine words, the first special, one of the others evidence."""
    rng = np.random.default_rng([seed, *task.encode()])
    generic, views = [], []
    for i in range(samples):
        words = ["[CLS]", *(f"word{k}" for k in rng.integers(0, 50, rng.integers(4, 10)))]
        length, at = len(words), int(rng.integers(1, len(words)))
        sentence = " ".join(words[1:]) if text is None else text
        generic.append(
            {"sample_id": f"{task}{i:05d}", "source": "made up", "text": sentence, "slot": len(sentence),
             "target": "are", "foil": "is", "evidence": [[0, 4]], "scope": None,
             "meta": json.dumps({"attractors": int(i % 3)})}
        )  # fmt: skip
        mask = [k == at for k in range(length)]
        views.append(
            {"sample_id": f"{task}{i:05d}", "input_ids": list(range(i, i + length)), "position": length - 1,
             "target_id": 1, "foil_id": 2, "evidence_mask": mask, "special_mask": [k == 0 for k in range(length)],
             "scope_mask": [k in (at, at - 1) for k in range(length)] if task == "qa" else None, "length": length}
        )  # fmt: skip
    store.write_shard(f"{samples_of(task).folder}/0.parquet", pa.Table.from_pylist(generic, GENERIC), GENERIC)
    store.write_shard(f"{views_of(TOKENIZER, task).folder}/0.parquet", pa.Table.from_pylist(views, VIEW), VIEW)
    for artifact in (samples_of(task), views_of(TOKENIZER, task)):
        Ledger(store).commit(artifact, {"shards": ["0.parquet"], "rows": samples})
    return views


def relevance_rows(views, method, seed=0, wrong=4):
    """Relevance that finds the evidence as well as the method's quality says; every `wrong`-th is mispredicted."""
    rng = np.random.default_rng([seed, *method.encode()])
    for i, view in enumerate(views):
        for explanation, embedding in VARIANTS[method]:
            values = rng.standard_normal(view["length"]) + QUALITY[method] * np.array(view["evidence_mask"])
            yield {
                "sample_id": view["sample_id"], "explanation": explanation, "embedding": embedding,
                "relevance": values.astype(np.float32).tolist(), "explained": 1.0, "residual": None,
                "logit_target": 0.0 if i % wrong == 0 else 2.0, "logit_foil": 1.0,
            }  # fmt: skip


def write_cell(store, cell, rows, shard_rows=16, state="complete"):
    rows = list(rows)
    shards = []
    for start in range(0, len(rows), shard_rows):
        shards.append(f"{cell.key[:12]}-{start:05d}.parquet")
        schema = schema_of(cell.product, cell.dtype)
        table = pa.Table.from_pylist(rows[start : start + shard_rows], schema)
        store.write_shard(f"{cell.folder}/{shards[-1]}", table, schema)
    record = {"shards": shards, "rows": len({row["sample_id"] for row in rows})}
    Ledger(store).commit(cell, record, complete=state == "complete")


def a_cell(task="sva", method="attnlrp", model="gpt2", dtype="float32", key="0123456789abcdef"):
    return Artifact("relevance", model, task, dtype, method, f"{key}{method}")


def a_plan(store, cells) -> Plan:
    """The plan of a run of these cells over the views of `store`."""
    models = []
    for name in sorted({cell.model for cell in cells}):
        of_model = [cell for cell in cells if cell.model == name]
        inputs = {task: a_view(store, task) for task in sorted({cell.task for cell in of_model})}
        planned = tuple(
            Cell(
                artifact=cell,
                requests=tuple(Request(cell.method, *v) for v in VARIANTS[cell.method]),
                samples=inputs[cell.task].table.num_rows,
            )
            for cell in of_model
        )
        resolved = ResolvedModel(CONFIG.model(name), name, None, "identity", FAMILIES["gpt2"], 512)
        models.append(ModelPlan(resolved, inputs, planned, tasks=tuple(inputs)))
    return Plan(tuple(models))


def a_view(store, task) -> Inputs:
    inputs = read_inputs(Ledger(store), TOKENIZER, task)
    assert inputs is not None
    return inputs


def write_store(root, tasks=("sva", "qa"), models=("gpt2",), methods=tuple(VARIANTS), samples=20, text=None):
    """(store, plan) with complete relevance of every combination."""
    store = Store(str(root))
    cells = []
    for task in tasks:
        views = write_benchmark(store, task, samples, text=text)
        for model in models:
            for method in methods:
                cell = a_cell(task, method, model)
                write_cell(store, cell, relevance_rows(views, method))
                cells.append(cell)
    return store, a_plan(store, cells)


def write_run(root, samples=8, tasks=("sva", "qa")):
    """The same, scored, with the manifests and the configuration that a run leaves."""
    store, plan = write_store(root, tasks=tasks, samples=samples)
    for planned in plan.cells():
        record = store.manifest(planned.artifact.name)
        made_of = {"tokenizer": plan.models[0].inputs[planned.artifact.task].tokenizer}
        described = {"inputs": made_of, "written": "2025-01-01T00:00:00Z"}
        store.write_manifest(planned.artifact.name, record | described)
    score_plan(CONFIG, plan, store)
    with keeping(CONFIG, store):
        pass
    return store


class Words:
    """A tokenizer of numbers."""

    def decode(self, ids):
        return " ".join(f"w{token}" for token in ids)
