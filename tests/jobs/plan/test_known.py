"""Facts that a run leaves in its root: who looks at it needs neither weights nor samples, and gets the same answers."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from closelook.evaluation.benchmark.demo import EVERY, model_dir
from closelook.jobs.config import ModelConfig
from closelook.jobs.plan import known as facts
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.inputs import read_inputs
from closelook.jobs.plan.known import FILE, Known, stamp_of
from closelook.jobs.plan.models import reading_of, resolve
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import nodes
from closelook.jobs.stages import run as stages
from closelook.jobs.store import Ledger, Store, StoreError
from closelook.jobs.store.artifacts import views_of
from tests.jobs.small import REPOSITORY, config_of, prepared, rows_of

STATUS = """
import json, sys
from closelook.jobs.__main__ import main
try:
    main()
except SystemExit:
    print(json.dumps([name for name in ("torch", "transformers") if name in sys.modules]))
"""


@pytest.fixture
def done(tmp_path, model, inline):
    """A complete run whose samples are entered as `prepare` enters them."""
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    config = config_of(tmp_path / "root", folder, heads={"sva": 8}, perturb={"samples": 5, "ways": ["zero"]})
    store = prepared(config, rows_of(12))
    enter_views(store)
    assert all(summary.complete for summary in stages.run(config, store, ["attribute", "evaluate", "perturb"]))
    return config, folder


def enter_views(store):
    """Enter the samples that were put there, with their files."""
    [(name, _)] = Ledger(store).records("views")
    _, tokenizer, task = name.split(".")
    views = replace(views_of(tokenizer, task), key="f" * 64)
    [path] = store.files(views.folder)
    record = {"task": task, "tokenizer": tokenizer, "rows": 12, "rejects": {}, "shards": [path.rpartition("/")[2]]}
    Ledger(store).commit(views, record)


def keys(config, store, trust_known):
    """The keys of all that the run wants, by product and place."""
    plan = make_plan(config, store, trust_known=trust_known)
    planned = nodes(Run(config, plan, Ledger(store)))
    return {(product.name, str(node.artifact)): node.artifact.key for product, node in planned}


@pytest.mark.parametrize("name", EVERY)
def test_a_model_is_what_a_run_found_it_to_be(name, store):
    model = ModelConfig(name="m", id=f"demo/{name}")
    resolved = resolve(model)
    Known.of(store).learn(stamp_of(model, 0), resolved, reading_of(resolved))
    Known.of(store).save()
    assert Known.of(Store(store.root)).model(model, 0) == (resolved, reading_of(resolved))


def test_keys_are_those_that_a_run_has(done):
    config, _ = done
    store = Store(config.root)
    assert store.exists(FILE)
    assert keys(config, store, trust_known=True) == keys(config, Store(config.root), trust_known=False)


def test_a_look_reads_no_samples_and_imports_no_torch(done, tmp_path, monkeypatch):
    config, _ = done
    (tmp_path / "small.json").write_text(config.model_dump_json())
    command = [sys.executable, "-c", STATUS, "status", "--config", str(tmp_path / "small.json")]
    out = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True).stdout
    assert json.loads(out.splitlines()[-1]) == []
    monkeypatch.setattr(Store, "read_shard", None)
    assert keys(config, Store(config.root), trust_known=True)


@pytest.mark.parametrize("change", ["weights", "settings", "seed", "code"])
def test_what_decides_a_model_makes_facts_void_where_it_changes(change, done, monkeypatch):
    config, folder = done
    model, known, seed = config.models[0], Known.of(Store(config.root)), config.seed
    assert known.model(model, seed) is not None
    if change == "weights":
        path = folder / "model.safetensors"
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif change == "settings":
        model = model.model_copy(update={"attn": "eager"})
    elif change == "seed":
        seed += 1
    else:
        monkeypatch.setattr(facts, "_code", lambda: "other")
    assert known.model(model, seed) is None


def test_weights_that_change_change_what_a_look_says(done):
    config, folder = done
    before = keys(config, Store(config.root), trust_known=True)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"layer_norm_epsilon": 1e-4}))
    after = keys(config, Store(config.root), trust_known=True)
    assert before.keys() == after.keys()
    changed = {name for name, _ in before if before[name, _] != after[name, _]}
    assert changed == {"relevance", "heads", "scores", "curves"}


def test_a_model_on_the_hub_is_asked_for_every_time(store):
    assert stamp_of(ModelConfig(name="m", id="openai-community/gpt2"), 0) is None
    assert stamp_of(ModelConfig(name="m", id="random/gpt2"), 0) is None
    drawn = ModelConfig(name="m", id="random/gpt2", tokenizer=[str(model_dir("gpt2"))])
    assert stamp_of(drawn, 0) not in (None, stamp_of(drawn, 1))


def test_samples_that_are_not_those_of_the_facts_are_an_error(done):
    config, _ = done
    path = Path(config.root) / FILE
    text = path.read_text()
    [(name, entry)] = json.loads(text)["views"].items()
    path.write_text(text.replace(entry["facts"]["inputs"], "0" * 64))
    _, tokenizer, task = name.split(".")
    inputs = read_inputs(Ledger(Store(config.root)), tokenizer, task)
    assert (inputs.digest, inputs.rows) == ("0" * 64, 12)
    with pytest.raises(StoreError, match=r"holds other samples than `closelook prepare` wrote \(inputs differ\)"):
        len(inputs.table)


def test_views_that_are_entered_anew_have_no_facts_yet(done):
    config, _ = done
    store = Store(config.root)
    [(name, record)] = Ledger(store).records("views")
    store.write_manifest(name, record | {"hashes": "0123456789abcdef"})
    _, tokenizer, task = name.split(".")
    assert read_inputs(Ledger(store), tokenizer, task).facts.keys() == {"rows"}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 0, "models": {}, "views": {}}'])
def test_a_file_of_facts_that_says_nothing_is_no_error(content, done):
    config, _ = done
    (Path(config.root) / FILE).write_bytes(content)
    assert keys(config, Store(config.root), trust_known=True) == keys(config, Store(config.root), trust_known=False)
