"""The corpus pass: what neurons answer to, as brute force finds it, whoever is killed, and counted."""

import os
import runpy
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from closelook.evaluation.schema import ACTIVATIONS, CONTEXTS
from closelook.jobs.commands.roots.gc import garbage
from closelook.jobs.commands.roots.status import collect
from closelook.jobs.plan import corpus as plan_corpus
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.neurons import contexts
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core import Batch, UserError, load_model
from closelook.lrp_core.neurons.near_ties import ROUNDING
from tests.jobs.forked import FORKS
from tests.jobs.inline import HOLD, without_ray
from tests.jobs.small import config_of, prepared, rows_of, save_model
from tests.patience import wait_for
from tests.stages import neurons

TOKENS, TOP, CHARACTERS = 16, 4, 700


def lines_of(count=40):
    """Texts of 1 to 39 words of one token; the last two are equal, and so are two in the middle."""
    draw = np.random.default_rng(3)
    words = [[f"w{token}" for token in draw.integers(40, 60, draw.integers(1, 40))] for _ in range(count)]
    texts = [" ".join(line) for line in words]
    return [*texts, texts[7], texts[-1]]


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(plan_corpus, "UNIT_CHARACTERS", CHARACTERS)


@pytest.fixture
def corpus(tmp_path):
    return written(tmp_path / "corpus.txt")


def written(file):
    lines = [line.encode() for line in lines_of()]
    file.write_bytes(b"\n".join([*lines[:3], b"", b"\xff\xfe", b"w40\0w41", *lines[3:]]))
    return file


def config_for(root, model, corpus, changes=None, **more):
    settings = {"source": "text", "path": str(corpus), "tokens": TOKENS, "top": TOP}
    return config_of(root, model, neurons={"corpus": settings | more}, **changes or {})


def cell_of(config, store):
    (cell,) = contexts.nodes(Run(config, make_plan(config, store), Ledger(store)))
    return cell.artifact


def test_the_corpus_pass_is_brute_force_in_units_of_any_size(tmp_path, model, corpus, inline, small_units):
    """Every context through the model alone: what is kept is as active as what is left out, but for rounding."""
    config = config_for(tmp_path / "root", model, corpus)
    store = prepared(config, rows_of(2))
    summary = neurons(config, store)
    assert (summary.computed, summary.failures) == (1, ())
    view = load_model(model)
    pieces = {}  # ids, by the number of their text and where in it they begin, in characters
    for number, line in enumerate(lines_of()):
        words = line.split()
        for start in range(0, len(words), TOKENS):
            before = sum(len(word) + 1 for word in words[:start])
            pieces[number, before] = [int(word[1:]) for word in words[start : start + TOKENS]]
    seen = {context: activations(view, ids) for context, ids in pieces.items()}  # [T, F] each
    artifact = cell_of(config, store)
    rows = Ledger(store).read(artifact, CONTEXTS).to_pylist()
    assert len(rows) == view.n_neurons * TOP
    for neuron in range(view.n_neurons):
        peaks = {context: float(values[:, neuron].max()) for context, values in seen.items()}
        kept = [row for row in rows if row["neuron"] == neuron]
        assert [row["rank"] for row in kept] == [1, 2, 3, 4]
        for row in kept:
            context = row["number"], row["start"]
            peak = peaks.pop(context)
            assert row["input_ids"] == pieces[context]
            assert row["activation"] == pytest.approx(peak, rel=ROUNDING, abs=1e-8)
            assert seen[context][row["position"], neuron] == pytest.approx(peak, rel=ROUNDING, abs=1e-8)
        following = [row["activation"] for row in kept[1:]] + [max(peaks.values())]
        for row, least in zip(kept, following, strict=True):
            assert row["activation"] >= least - ROUNDING * abs(least) - 1e-8
    every = np.concatenate(list(seen.values()))  # [tokens, F]
    ends = [-np.inf, *Ledger(store).record(artifact)["boundaries"], np.inf]
    result = store.read([f"{artifact.folders[1]}/{artifact.shard('layer-000')}"], ACTIVATIONS).to_pylist()
    for neuron, row in enumerate(result):
        assert (row["layer"], row["neuron"], row["tokens"]) == (0, neuron, len(every))
        assert row["mean"] == pytest.approx(every[:, neuron].mean(), abs=1e-7)
        assert (
            abs(np.array(row["histogram"]) - np.histogram(every[:, neuron], ends)[0]).sum() <= 2
        )  # rounding at an end
    assert any(line.startswith("gpt2, corpus: 42 texts = ") for line in summary.lines)
    assert "corpus: 2 places hold no text, the first is corpus.txt:5: not UTF-8" in summary.lines
    assert not [path for path in store.files(artifact.folder) if "part" in path]


def test_a_corpus_that_changes_while_it_is_read_is_not_complete(tmp_path, model, corpus, inline, small_units):
    config = config_for(tmp_path / "root", model, corpus)
    store = prepared(config, rows_of(2))

    def change(index):
        if index == 1:
            corpus.write_bytes(corpus.read_bytes() + b"\nw40 w41")

    inline.before_unit = change
    read = cell_of(config, store)
    assert neurons(config, store).failures == (
        "the files of the corpus corpus changed while they were read: run again",
    )
    assert Ledger(store).state(read) == "partial"


def test_activations_that_are_not_finite_are_told_and_count_nowhere(tmp_path, corpus, inline, small_units):
    broken = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "broken"))
    with torch.no_grad():
        broken.transformer.h[0].mlp.c_fc.bias[3] = torch.nan
    broken.save_pretrained(tmp_path / "broken")
    config = config_for(tmp_path / "root", tmp_path / "broken", corpus)
    store = prepared(config, rows_of(2))
    summary = neurons(config, store)
    artifact = cell_of(config, store)
    tokens = Ledger(store).record(artifact)["tokens"]
    assert f"broken, corpus: {tokens:,} activations in float32 are not finite and count nowhere" in summary.lines
    rows = store.read([f"{artifact.folders[1]}/{artifact.shard('layer-000')}"], ACTIVATIONS).to_pylist()
    assert [row["not_finite"] for row in rows] == [tokens if row["neuron"] == 3 else 0 for row in rows]
    assert [row["mean"] is None for row in rows] == [row["neuron"] == 3 for row in rows]


def activations(view, ids):
    """[T, F] of the first layer."""
    batch, result = Batch.collate([{"input_ids": ids, "position": 0, "target_id": 0}], 0), []
    hook = view.blocks[0].down.register_forward_pre_hook(lambda _, args: result.append(args[0]))
    with torch.inference_mode():
        view.all_logits(batch)
    hook.remove()
    return result[0][0].double().numpy()


def files_of(store):
    return {
        path: store.read_bytes(path)
        for folder in ("contexts", "activations")
        for path in store.files(folder, recursive=True)
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    """The files of an undisturbed run, by path."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = config_for(folder / "root", model, written(folder / "corpus.txt"))
    store = prepared(config, rows_of(2))
    with without_ray(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_corpus, "UNIT_CHARACTERS", CHARACTERS)
        assert neurons(config, store).complete
    return files_of(store)


def held(folder, *arguments):
    """Of a process: the command with small units, which stops before its third unit."""
    plan_corpus.UNIT_CHARACTERS = CHARACTERS
    os.environ[HOLD] = str(folder)
    sys.argv = ["closelook", *arguments]
    runpy.run_module("tests.jobs.inline", run_name="__main__")


def test_a_killed_process_changes_no_byte_and_what_it_committed_is_not_read_again(
    undisturbed, tmp_path, model, corpus, inline, small_units
):
    config = config_for(tmp_path / "root", model, corpus)
    store = prepared(config, rows_of(2))
    file = tmp_path / "config.json"  # which is YAML, too
    file.write_text(config.model_dump_json())
    process = FORKS.Process(target=held, args=(tmp_path, "neurons", "--config", str(file)))
    process.start()
    try:
        wait_for(lambda: (tmp_path / "holding").exists() or not process.is_alive())
        assert process.is_alive()
    finally:
        process.kill()
        process.join()
    store.delete("lock.json")
    ledger, artifact = Ledger(store), cell_of(config, store)
    assert (ledger.state(artifact), len(ledger.begun(artifact))) == ("partial", 2)
    indices = []
    inline.before_unit = indices.append
    assert neurons(config, store).computed == 1
    units = ledger.store.manifest(artifact.name)["corpus"]["survey"]["units"]
    assert units > 3
    assert indices == list(range(units - 2)), "the units that are left"
    assert files_of(store) == undisturbed


def test_status_and_gc_know_contexts(tmp_path, model, corpus, inline):
    config = config_for(tmp_path / "root", model, corpus)
    store = prepared(config, rows_of(2))
    before = cell_of(config, store)
    for states in ({"missing": 1}, {"done": 1}):
        plan, ledger = make_plan(config, store), Ledger(store)
        row = collect(Run(config, plan, ledger))["gpt2", "corpus", "float32", "contexts"]
        assert (row.states, row.samples) == (states, 42)
        neurons(config, store)
    assert cell_of(config_for(tmp_path / "root", model, corpus, name="other"), store).key == before.key
    corpus.write_text("w41 w42\n")
    changed = config_for(tmp_path / "root", model, corpus)
    assert cell_of(changed, store).key != before.key
    (group,) = (group for group in garbage(changed, store) if group.why.startswith("sets of contexts"))
    assert len(group.files) == 3  # contexts and activations of the layer, and the manifest
    assert cell_of(config_for(tmp_path / "root", model, corpus, top=3), store).key != cell_of(changed, store).key


def test_a_corpus_that_is_gone_is_known_by_its_manifest_and_else_an_error(tmp_path, model, corpus, inline):
    config = config_for(tmp_path / "root", model, corpus)
    store = prepared(config, rows_of(2))
    assert neurons(config, store).complete
    corpus.unlink()
    assert Ledger(store).is_done(cell_of(config, store))
    with pytest.raises(UserError, match=r"neurons\.corpus.*no \.txt file at"):
        neurons(config_for(tmp_path / "other", model, corpus), Store(str(tmp_path / "other")))


def test_bad_input_is_one_line_that_names_the_key(closelook, tmp_path, corpus):
    asked = ("status", "--config", "demo", "--root", str(tmp_path))
    for settings, message in (
        ("{source: txt}", "no source 'txt' (did you mean 'text'?)"),
        ("{source: text}", "give a `path`"),
        ("{source: mnli, path: x}", "holds no texts for a corpus: take one of "),
        ("{source: demo}", "set `limit` to the number of texts"),
        ("{source: demo, limit: 5, models: [gtp2]}", "no model 'gtp2'"),
        ("{source: demo, limit: 5, models: [vit]}", "model vit reads images: leave it out"),
    ):
        code, _, err = closelook(*asked, "--set", f"neurons.corpus={settings}")
        assert code == 2, settings
        assert message in err
        assert "neurons.corpus" in err
        assert len(err.splitlines()) == 1
