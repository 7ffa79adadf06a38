"""``python -m tests.golden FOLDER``: keys and numbers that a change of code must leave as they are.

Keys decide whether stored artifacts are of use, so a change that changes no number changes no key. `demo` and `smoke`
want what their prepared samples say. The papers' configs are planned over three made-up samples a task, with random
weights of their models' geometry: of the models themselves, only the identity enters a key.

Numbers are those of every product and table of the report, of a run of few samples. Of each column there is a digest
that processors agree about: a sum of its values under weights that tell rows and places apart, and the sum of their
magnitudes, against which differences are judged.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.report.frame import FRAME
from closelook.evaluation.schema import VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import keeping
from closelook.jobs.geometries import GEOMETRIES, geometry_of
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import reading_of, resolve
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import nodes
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.stages.run import run
from closelook.jobs.store import Artifact, Ledger, Store, artifact_in
from closelook.jobs.store.artifacts import short, views_of
from tests import parity
from tests.jobs.inline import without_ray

DATA = Path(__file__).parent / "data"
PAPERS = ("paper", "attnlrp", "normxlogit")
DEMOS = ("smoke", "demo")
LABELS = {
    "sst2": ("negative", "positive"),
    "imdb": ("negative", "positive"),
    "qnli": ("entailment", "not_entailment"),
    "mnli": ("contradiction", "entailment", "neutral"),
    "stsb": ("score",),
}
#: A shipped tokenizer in place of that of each family.
TOKENIZERS = {"bert": "bert", "roberta": "bert", "deberta-v2": "bert", "gpt2": "gpt2", "llama": "llama", "t5": "t5"}
LENGTH = 6
SMALL = [
    "tasks={sva: {source: demo, limit: 4}, qa: {source: demo, limit: 3}, sentiment: {source: demo, limit: 4}, "
    "similarity: {source: demo, limit: 4}, shapes: {source: demo, limit: 3}, brackets: {source: demo, limit: 3}, "
    "triggers: {source: demo, limit: 3}, sources: {source: demo, limit: 2}}",
    "models.gpt2.dtypes={}",
    "models.llama.dtypes={}",
    "models.llama.tasks=[sva]",
    "models.gpt2.tasks=[sva]",
    "models.bert.tasks=[sva]",
    "methods=[attnlrp, lrp, alti_logit, alti, gradient_l2, random]",
    "models.bert-sentiment.methods=[attnlrp, lrp, attention_rollout, normxlogit, random]",
    "models.gpt2-sentiment.methods=[attnlrp, lrp, gradient_x_input, normxlogit]",
    "models.bert-score.methods=[attnlrp, lrp, normxlogit, random]",
    "models.megatron-brackets.methods=[attnlrp, random]",
    "models.bert-triggers.methods=[lrp, random]",
    "models.gpt2-seed1.methods=[lrp]",
    "models.gpt2-seed2.methods=[lrp]",
    "models.reader.methods=[attnlrp, gradient_l2, attention_share, contextcite, random]",
    "models.vit.methods=[{name: attnlrp_vit, method: attnlrp, composite: vit}, attnlrp, lrp, random]",
    "heads={sva: 3}",
    "layers={sva: 2, sentiment: 2}",
    "labels={sentiment: 2}",
    "prune.random_runs=1",
    "perturb.samples=3",
    "perturb.tasks=[sva, sentiment, similarity, shapes]",
    "perturb.methods=[attnlrp, lrp]",
    "controls={tasks: [sva], models: [gpt2], methods: [lrp, gradient_l2], samples: 3, depths: 2}",
    "ablations={ways: [remove, cut], fit: 32, judge: 16, shapley: 0, shown: 1}",
    "neurons={tasks: {sva: 3}, knockout: {models: [gpt2]}, "
    "corpus: {source: demo, limit: 12, top: 2, ranks: 2, models: [gpt2]}}",
    "bench=null",
    "report={samples: 1, resamples: 50}",
]
Digest = tuple[int, float, float]


def stored(name: str) -> dict[str, Any]:
    """The stored `keys` or `numbers`."""
    return json.loads((DATA / f"golden_{name}.json").read_text(encoding="utf-8"))


def keys_of(name: str, root: Path) -> dict[str, dict[str, str]]:
    """The beginning of the key of each artifact that the config of this name wants, by product and place."""
    store = Store(str(root / name))
    config = RunConfig.load(name, root=store.root)
    if name in PAPERS:
        config = with_random_weights(config)
        for model in config.models:
            write_views(store, config, model.name)
    else:
        prepare(config, store)
    keys: dict[str, dict[str, str]] = {}
    for artifact in artifacts(config, Ledger(store)):
        if not artifact.key:  # made-up views
            continue
        of_product = keys.setdefault(artifact.product, {})
        label = str(artifact).removeprefix(f"{artifact.product} ")
        assert label not in of_product, f"two artifacts of the product {artifact.product} at {label}"
        of_product[label] = short(artifact.key)
    return keys


def artifacts(config: RunConfig, ledger: Ledger) -> Iterator[Artifact]:
    """Prepared artifacts, and the others that the run wants except the report, whose key depends on the whole root."""
    for _, record in ledger.records():
        prepared = artifact_in(record)
        assert prepared is not None
        yield prepared
    for product, node in nodes(Run(config, make_plan(config, ledger.store), ledger)):
        if product.stage not in ("prepare", "report"):
            yield node.artifact


def with_random_weights(config: RunConfig) -> RunConfig:
    """The config with random weights of each model's geometry in place of published ones."""
    models = []
    for model in config.models:
        like = next((name for name in GEOMETRIES if model.name.startswith(name)), "")
        geometry = geometry_of(model.id) or GEOMETRIES.get(like)
        assert geometry is not None, f"{model.name} has no geometry"
        (labels,) = {LABELS.get(task) for task in model.tasks or ("",)}
        known = TOKENIZERS.get(geometry.family)
        changed = {
            "id": f"random/{geometry.name}",
            "adapter": None,
            "classes": labels,
            "tokenizer": (str(model_dir(known)),) if known else (),
        }
        models.append(model.model_copy(update=changed))
    return config.model_copy(update={"models": tuple(models)})


def write_views(store: Store, config: RunConfig, name: str) -> None:
    """Three samples of each task of a model, as its tokenizer would see them."""
    (model,) = (model for model in config.models if model.name == name)
    geometry = geometry_of(model.id)
    assert geometry is not None
    resolved = resolve(model, config.seed)
    tokenizer = reading_of(resolved).key
    images = resolved.kind.images
    length = resolved.max_length if images else LENGTH
    for task in config.tasks_for(model):
        labels = LABELS.get(task, ())
        gold = labels[0] if len(labels) > 1 else None
        rows = [
            {
                "sample_id": f"{task}-{number}",
                "input_ids": [0] * length if images else list(range(number, number + length)),
                "position": 0 if labels or images else length - 1,
                "target_id": None if labels or images else 7,
                "foil_id": None if labels or images else 8,
                "evidence_mask": [at == 1 for at in range(length)],
                "special_mask": [False] * length,
                "scope_mask": None,
                "length": length,
                "label": gold,
                "score": 0.5 if len(labels) == 1 else None,
                "decoder_input_ids": [4] if resolved.family.decoder is not None else None,
            }
            for number in range(3)
        ]
        table = pa.Table.from_pylist(rows, schema=VIEW)
        views = views_of(tokenizer, task)
        store.write_shard(f"{views.folder}/{views.shard('0')}", table, VIEW)
        Ledger(store).commit(views, {"rows": len(rows), "shards": [views.shard("0")]})


def small_run(root: Path) -> None:
    """A run of every product on few samples, of models and methods whose orders of tokens no rounding decides."""
    config, store = RunConfig.load("demo", root=str(root), overrides=SMALL), Store(str(root))
    with keeping(config, store):
        for summary in run(config, store):
            assert not summary.failures, summary


def numbers_of(root: Path) -> dict[str, dict[str, Digest]]:
    """The digest of each column of numbers, by product and artifact, and of each table of the report."""
    numbers: dict[str, dict[str, Digest]] = {}
    for product in parity.PRODUCTS:
        if not product.left_aside:
            numbers |= {f"{product.folder} {name}": _digests(t) for name, t in parity.read(root, product).items()}
    tables: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader((root / "report" / FRAME).read_text(encoding="utf-8").splitlines()):
        if row["label"] not in parity.MEASURED_COLUMNS:
            tables.setdefault(row["table"], []).append(row)
    for table, rows in tables.items():
        if not table.startswith((*parity.MEASURED, "figures/")):
            columns = {name: [float(row[name] or "nan") for row in rows] for name in ("value", "low", "high")}
            numbers[f"table {table}"] = {name: _digest(np.array(values)) for name, values in columns.items()}
    return numbers


def _digests(table: pa.Table) -> dict[str, Digest]:
    digests = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        while pa.types.is_list(column.type):
            column = column.flatten()
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            digests[name] = _digest(column.to_numpy(zero_copy_only=False).astype(np.float64))
    return digests


def _digest(values: np.ndarray) -> Digest:
    """The number of finite values, their weighted sum, and the sum of their magnitudes."""
    weights = np.cos(np.arange(len(values)))
    finite = np.isfinite(values)
    values, weights = values[finite], weights[finite]
    return int(finite.sum()), float(values @ weights), float(np.abs(values).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as root, without_ray():
        keys = {name: keys_of(name, Path(root)) for name in (*DEMOS, *PAPERS)}
        small_run(Path(root, "small"))
        numbers = numbers_of(Path(root, "small"))
    for name, golden in (("keys", keys), ("numbers", numbers)):
        text = json.dumps(golden, indent=0, sort_keys=True) + "\n"
        (folder / f"golden_{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
