"""Relevance of neurons in a run: stored as the methods give it, knocked out as it says, shown, and computed once."""

import pytest
import torch

from closelook.evaluation.schema import CONTEXTS, HEATMAPS, KNOCKOUTS, NEURONS, VIEW
from closelook.evaluation.scoring.head_orders import ACTIVATION, RANDOM
from closelook.jobs.commands.roots.status import collect
from closelook.jobs.config import RunConfig
from closelook.jobs.methods import METHODS
from closelook.jobs.plan import corpus as plan_corpus
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import open_view
from closelook.jobs.plan.node import Run
from closelook.jobs.products.neurons import contexts
from closelook.jobs.products.neurons import knockouts as stage
from closelook.jobs.products.neurons.heatmaps import explained, heatmaps_of
from closelook.jobs.products.neurons.knockouts import knockouts_of
from closelook.jobs.runner import worker
from closelook.jobs.stages.report import report
from closelook.jobs.store import Ledger
from closelook.lrp_core import Batch, UserError, load_model
from closelook.lrp_core.neurons.contexts import Context, explain_contexts
from tests.jobs.small import config_of, prepared, rows_of
from tests.leaves import first_leaf, island
from tests.shown import numbers_of
from tests.stages import attribute, evaluate, neurons

pytestmark = pytest.mark.drawn

NAMES = ["attnlrp", "gradient_l1", "random"]
COUNTS = [1, 3, 30]


@pytest.fixture
def run(tmp_path, model, inline):
    settings = {"tasks": {"sva": 5}, "knockout": {"counts": COUNTS, "explanation": "target"}}
    config = config_of(tmp_path / "root", model, methods=NAMES, neurons=settings, report={"resamples": 50})
    return config, prepared(config, rows_of(8))


def cells_of(config, store):
    plan = make_plan(config, store)
    return {
        planned.artifact.method: planned.artifact for planned in plan.cells() if planned.artifact.product == "neurons"
    }


def test_neurons_are_stored_as_the_methods_give_them(run, model):
    config, store = run
    assert attribute(config, store).complete
    cells, view = cells_of(config, store), load_model(model)
    assert set(cells) == {"attnlrp", "gradient_l1"}, "random relevance has none of neurons"
    rows = {row["sample_id"]: row for row in rows_of(8)}
    for name, cell in cells.items():
        entries = Ledger(store).read(cell, NEURONS).to_pylist()
        assert len(entries) == 5 * 2  # samples and explanations
        for entry in entries:
            batch = Batch.collate([rows[entry["sample_id"]]], 0)
            finer = {"boundaries": True} if name == "attnlrp" else {}
            relevance = METHODS[name](view, batch, explanation=entry["explanation"], neurons=True, **finer)
            width = relevance.neurons.shape[-1]
            best = relevance.neurons[0].flatten().sort(descending=True).values[: len(entry["relevance"])]
            torch.testing.assert_close(torch.tensor(entry["relevance"]), best, rtol=1e-4, atol=1e-6)
            at = [layer * width + neuron for layer, neuron in zip(entry["layer"], entry["neuron"], strict=True)]
            assert len(set(at)) == min(50, relevance.neurons.numel())
            torch.testing.assert_close(relevance.neurons[0].flatten()[at], best, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(
                torch.tensor(entry["layer_relevance"]), relevance.neurons[0].sum(-1), rtol=1e-4, atol=1e-5
            )
            assert (entry["boundaries"] is None) == (name == "gradient_l1")
            if entry["boundaries"] is not None:
                torch.testing.assert_close(
                    torch.tensor(entry["boundaries"]), relevance.boundaries[0], rtol=1e-4, atol=1e-5
                )
                torch.testing.assert_close(torch.tensor(entry["peaks"]), relevance.peaks[0], rtol=1e-4, atol=1e-5)


def test_the_page_shows_what_neurons_answer_to_in_a_corpus_and_which_tokens_make_them(
    tmp_path, model, inline, monkeypatch, undrawn
):
    file, units = tmp_path / "texts.txt", []
    file.write_text("".join(f"w{n} w{n + 1} w{n + 2}\n" for n in range(4, 28)))
    settings = {
        "tasks": {"sva": 2},
        "knockout": None,
        "corpus": {"source": "text", "path": str(file), "top": 7, "ranks": 3},
    }
    config = config_of(tmp_path / "root", model, methods=["attnlrp"], neurons=settings, report={"resamples": 50})
    store = prepared(config, rows_of(3))
    assert attribute(config, store).complete
    inline.before_unit = units.append
    assert neurons(config, store).complete
    assert report(config, store).complete
    page = store.read_bytes("report/neurons.html").decode()
    entries = first_leaf(page, "neurons")
    ledger = Ledger(store)
    (cell,) = contexts.nodes(Run(config, make_plan(config, store), ledger))
    stored = ledger.read(cell.artifact, CONTEXTS).to_pylist()
    view = load_model(model)
    (ranked,) = cells_of(config, store).values()
    first = set()
    for row in ledger.read(ranked, NEURONS).to_pylist():
        first |= set(zip(row["layer"][:3], row["neuron"][:3], strict=True))
    assert 3 <= len(first) < len(entries)
    for shown in entries:
        neuron = shown["layer"], shown["neuron"]
        rows = [row for row in stored if (row["layer"], row["neuron"]) == neuron][:5]
        assert shown["explained"] == ("AttnLRP" if neuron in first else "")
        for context, row in zip(shown["contexts"], rows, strict=True):
            assert context["activation"] == pytest.approx(row["activation"], rel=1e-3)
            assert context["where"] == row["place"]
            whole = Context(row["input_ids"], row["position"], *neuron)
            assert ("values" in context) == (neuron in first)
            if neuron not in first:
                continue
            assert context["values"] == pytest.approx(explain_contexts(view, [whole])[0], rel=1e-3, abs=1e-6)
    assert any(value for shown in entries for context in shown["contexts"] for value in context.get("values", ()))
    assert entries[0]["corpus"] == "corpus"
    beside = maps_of(config, store)
    assert len(beside) == 5 * len(first)
    monkeypatch.setattr(plan_corpus, "UNIT_CHARACTERS", 60)
    assert neurons(config, store).complete, "read in several units, and explained when all are merged"
    assert units[-1] == 0 < max(units), "by a pool that follows"
    assert maps_of(config, store).equals(beside), "whoever explains them"
    file.unlink()
    assert report(config, store).complete
    entry = config.model_dump() | {"root": str(tmp_path / "other")}
    entry["neurons"]["corpus"]["explain"] = "attnlpr"
    with pytest.raises(UserError, match=r"neurons.corpus.explain.*no gradient method 'attnlpr'"):
        RunConfig.load(entry)


def maps_of(config, store):
    """All heat maps of the run's model."""
    cell = heatmaps_of(config, make_plan(config, store).models[0], Ledger(store))
    return Ledger(store).read(cell.artifact, HEATMAPS)


def knocked_out(view, row, gone):
    """The target's logit with columns of the down projection zeroed."""
    kept = [block.down.weight.clone() for block in view.blocks]
    for layer, neuron in gone:
        view.blocks[layer].down.weight[neuron] = 0
    batch = Batch.collate([row], 0)
    logit = float(view.logits(batch)[0, 0])
    for block, weight in zip(view.blocks, kept, strict=True):
        block.down.weight.copy_(weight)
    return logit


def test_knock_outs_are_the_models_without_those_neurons_done_once_and_shown(run, model):
    config, store = run
    assert attribute(config, store).complete
    assert evaluate(config, store).complete
    summary = neurons(config, store)
    assert (summary.computed, summary.failures) == (4, ()), "four rankings"
    plan, ledger = make_plan(config, store), Ledger(store)
    cells = list(knockouts_of(config, plan.models[0]))
    assert [cell.ranking for cell in cells] == ["attnlrp", "gradient_l1", RANDOM, ACTIVATION]
    view, rows = load_model(model), {row["sample_id"]: row for row in rows_of(8)}
    ranked = {row["sample_id"]: row for row in ledger.read(cells_of(config, store)["attnlrp"], NEURONS).to_pylist()
              if row["explanation"] == "target"}  # fmt: skip
    for entry in ledger.read(cells[0].artifact, KNOCKOUTS).to_pylist():
        assert entry["removed"] == [0, *COUNTS]
        ranking = ranked[entry["sample_id"]]
        order = list(zip(ranking["layer"], ranking["neuron"], strict=True))
        expected = [knocked_out(view, rows[entry["sample_id"]], order[:count]) for count in entry["removed"]]
        assert entry["explained"] == pytest.approx(expected, abs=1e-5)
    assert neurons(config, store).computed == 0
    result = collect(Run(config, plan, ledger))
    assert result["gpt2", "sva", "float32", "knockouts"].states == {"done": 4}
    assert result["gpt2", "sva", "float32", "neurons"].states == {"done": 2}
    assert report(config, store).complete
    page = store.read_bytes("report/neurons.html").decode()
    assert "Neuron ablation" in page
    assert "Conservation by layer" in page
    assert numbers_of(store, "knockouts", ranking="Activation")
    explored(page, ledger, cells_of(config, store))


def test_knock_outs_of_a_contrast_follow_its_own_ranking(tmp_path, model, inline):
    settings = {"tasks": {"sva": 3}, "knockout": {"counts": COUNTS, "explanation": "contrastive"}}
    config = config_of(tmp_path / "root", model, methods=["attnlrp"], neurons=settings)
    store = prepared(config, rows_of(3))
    assert attribute(config, store).complete
    assert neurons(config, store).complete
    ledger, view, rows = Ledger(store), load_model(model), {row["sample_id"]: row for row in rows_of(3)}
    (ranked,) = cells_of(config, store).values()
    orders = {
        (row["sample_id"], row["explanation"]): list(zip(row["layer"], row["neuron"], strict=True))
        for row in ledger.read(ranked, NEURONS).to_pylist()
    }
    cell = next(knockouts_of(config, make_plan(config, store).models[0]))
    for entry in ledger.read(cell.artifact, KNOCKOUTS).to_pylist():
        row, order = rows[entry["sample_id"]], orders[entry["sample_id"], "contrastive"]
        foil = {**row, "target_id": row["foil_id"]}
        expected = [knocked_out(view, row, order[:n]) - knocked_out(view, foil, order[:n]) for n in entry["removed"]]
        assert entry["explained"] == pytest.approx(expected, abs=1e-5)


def test_knock_outs_of_samples_some_of_which_have_no_foil(tmp_path, model, inline):
    rows = [{**row, "foil_id": row["foil_id"] if at % 2 else None} for at, row in enumerate(rows_of(4))]
    settings = {"tasks": {"sva": 4}, "knockout": {"counts": COUNTS}}
    config = config_of(tmp_path / "root", model, methods=["attnlrp"], neurons=settings)
    contrasts = config_of(tmp_path / "root", model, methods=["attnlrp"], neurons=settings, explanations=["contrastive"])
    store = prepared(config, rows)
    for run, explanation, count in ((config, "target", 4), (contrasts, "contrastive", 2)):
        assert attribute(run, store).complete
        assert neurons(run, store).complete
        ledger = Ledger(store)
        cells = list(knockouts_of(run, make_plan(run, store).models[0]))
        assert cells
        for cell in cells:
            made, record = ledger.read(cell.artifact, KNOCKOUTS), ledger.record(cell.artifact)
            assert made["explanation"].to_pylist() == [explanation] * count
            assert record["rejects"] == ({} if count == 4 else {"no_foil": 2})


def test_knock_outs_that_lack_a_unit_are_not_complete_and_the_next_run_computes_that_alone(run, inline, monkeypatch):
    monkeypatch.setattr(stage, "UNIT_TOKENS", 1)  # a unit a sample
    config, store = run
    assert attribute(config, store).complete

    def lose_one(index):
        if index == 2:
            raise RuntimeError("a node died")

    inline.before_unit = lose_one
    assert "RuntimeError: a node died" in neurons(config, store).failures[0]
    cells = list(knockouts_of(config, make_plan(config, store).models[0]))
    assert {Ledger(store).state(cell.artifact) for cell in cells} == {"partial"}
    computed = []
    inline.before_unit = computed.append
    assert neurons(config, store).complete
    assert len(computed) == 5 - 2, "samples but those that are there"
    assert {Ledger(store).state(cell.artifact) for cell in cells} == {"done"}


def ranked_by(ranking, ledger, artifact, view, row):
    """(layer, neuron) of a sample, the first to go first."""
    from closelook.evaluation.scoring.neuron_ablation import NeuronAblation

    if ranking == "attnlrp":
        rows = ledger.read(artifact, NEURONS).to_pylist()
        (entry,) = (
            entry for entry in rows if (entry["sample_id"], entry["explanation"]) == (row["sample_id"], "target")
        )
        return list(zip(entry["layer"], entry["neuron"], strict=True))
    with torch.inference_mode():
        return NeuronAblation(view, tuple(COUNTS), "target", 0, 4096)._ranked(ranking, Batch.collate([row], 0))


def explored(page, ledger, cells):
    """Check that the page of neurons shows for each neuron the numbers of the store."""
    places = island(page, "neuron-choices")["places"]
    assert places == ["sva · AttnLRP", "sva · Gradient l1"]
    shown = {(entry["layer"], entry["neuron"]): entry for entry in first_leaf(page, "neurons")}
    sums = {}
    for at, name in enumerate(("attnlrp", "gradient_l1")):
        for row in ledger.read(cells[name], NEURONS).to_pylist():
            neurons = list(zip(row["layer"], row["neuron"], strict=True))
            if row["explanation"] == "contrastive":
                for neuron, relevance in zip(neurons, row["relevance"], strict=True):
                    sums.setdefault(neuron, {}).setdefault(at, []).append(relevance)
    assert set(shown) == set(sums)
    for neuron, entry in shown.items():
        assert [at for at, _, _ in entry["ranked"]] == sorted(sums[neuron])
        for at, mean, count in entry["ranked"]:
            values = sums[neuron][at]
            assert (mean, count) == (pytest.approx(sum(values) / 5, rel=1e-3, abs=1e-9), len(values))
        largest = sorted((abs(value) for group in sums[neuron].values() for value in group), reverse=True)
        result = [abs(sample["relevance"]) for sample in entry["samples"]]
        assert result == pytest.approx(largest[:5], rel=1e-3)


def activations(view, batch):
    """Of the first layer, [B, T, F]."""
    seen = []
    hook = view.blocks[0].down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    view.all_logits(batch)
    hook.remove()
    return seen[0]


def test_the_activation_ranking_is_by_the_largest_over_positions_and_random_ones_differ_by_sample(run, model):
    from closelook.evaluation.scoring.neuron_ablation import NeuronAblation

    view, rows = load_model(model), rows_of(8)
    knockout = NeuronAblation(view, (5,), "target", 0, 4096)
    drawn = set()
    for row in rows:
        batch = Batch.collate([row], 0)
        largest = activations(view, batch)[0].max(0).values.sort(descending=True).indices[:5].tolist()
        with torch.inference_mode():
            assert knockout._ranked(ACTIVATION, batch) == [(0, neuron) for neuron in largest]
            random = knockout._ranked(RANDOM, batch)
            assert random == knockout._ranked(RANDOM, batch)
        assert len(set(random)) == 5
        drawn.add(tuple(random))
        actual = knockout.sample(row, {RANDOM: None})[RANDOM]
        assert actual == pytest.approx([knocked_out(view, row, random[:n]) for n in (0, 5)], abs=1e-5)
    assert len(drawn) == len(rows)


def test_neurons_under_rules_of_linear_layers_are_kept_without_what_crosses_boundaries(tmp_path, model, inline):
    methods = ["attnlrp", {"attnlrp": {"name": "gamma", "composite": {"linear": {"gamma": 0.1}}}}]
    config = config_of(tmp_path / "root", model, methods=methods, neurons={"tasks": {"sva": 2}, "knockout": None})
    store = prepared(config, rows_of(2))
    assert attribute(config, store).complete
    stored = {name: Ledger(store).read(cell, NEURONS).to_pylist() for name, cell in cells_of(config, store).items()}
    assert set(stored) == {"attnlrp", "gamma"}
    assert all(row["boundaries"] is None and row["kept_by_biases"] is None for row in stored["gamma"])
    assert all(row["boundaries"] is not None for row in stored["attnlrp"])
    assert stored["gamma"][0]["relevance"] != stored["attnlrp"][0]["relevance"]


def test_without_neurons_in_the_config_the_stage_says_what_to_set(closelook, tmp_path):
    code, _, err = closelook("neurons", "--config", "smoke", "--root", str(tmp_path))
    assert code == 2
    assert "config key 'neurons'" in err
    assert closelook("neurons", "--model", "demo/gpt2")[0] == 2


def test_every_task_is_knocked_out_in_its_own_precision(tmp_path, model, inline, monkeypatch):
    tasks, opened = {"sva": "float64", "ra": "float32"}, []

    def noted(model, dtype, *rest):
        opened.append(dtype)
        return open_view(model, dtype, *rest)

    config = config_of(
        tmp_path / "root",
        tasks={task: {"source": "demo"} for task in tasks},
        models=[{"name": "gpt2", "id": str(model), "dtypes": {task: [dtype] for task, dtype in tasks.items()}}],
        methods=["attnlrp"],
        neurons={"tasks": dict.fromkeys(tasks, 3), "knockout": {"counts": [2], "explanation": "target"}},
    )
    store = prepared(config, rows_of(4))
    assert attribute(config, store).complete
    monkeypatch.setattr(worker, "open_view", noted)
    assert neurons(config, store).complete
    assert sorted(opened) == ["float32", "float64"]
    rows = {row["sample_id"]: row for row in rows_of(4)}
    for cell in knockouts_of(config, make_plan(config, store).models[0]):
        view = load_model(model, dtype=tasks[cell.artifact.task])
        for entry in Ledger(store).read(cell.artifact, KNOCKOUTS).to_pylist():
            expected = knocked_out(view, rows[entry["sample_id"]], ())
            assert entry["explained"][0] == pytest.approx(expected, rel=1e-6)


def test_neurons_of_a_model_of_images_are_knocked_out_and_random_ones_differ_by_image(tmp_path, inline):
    from closelook.evaluation.scoring.neuron_ablation import NeuronAblation
    from closelook.jobs.plan.models import resolve
    from closelook.jobs.stages.prepare import prepare
    from closelook.jobs.store import Store

    config = config_of(
        tmp_path / "root",
        tasks={"shapes": {"source": "demo", "limit": 3}},
        models=[{"name": "vit", "id": "demo/vit"}],
        methods=["gradient_x_input"],
        neurons={"tasks": {"shapes": 3}, "knockout": {"counts": [4]}},
    )
    store = Store(config.root)
    store.create()
    assert prepare(config, store).complete
    assert attribute(config, store).complete
    assert neurons(config, store).complete
    resolved = resolve(config.models[0])
    views = store.read(make_plan(config, store).models[0].inputs["shapes"].folder, VIEW).to_pylist()
    knockout, drawn = NeuronAblation(load_model(resolved.location), (4,), "target", 0, 4096), set()
    for row in resolved.taken(views):
        batch = Batch.collate([{**row, "target_id": 0, "foil_id": 1}], 0)
        with torch.inference_mode():
            drawn.add(tuple(knockout._ranked(RANDOM, batch)))
    assert len(drawn) == len(views) == 3


def test_a_context_whose_relevance_is_not_finite_has_none(monkeypatch):
    """As half precision has it under rules that explode."""

    def exploding(view, asked, method):
        return [[float("nan") if context.neuron == 3 else 2.0] * len(context.ids) for context in asked]

    monkeypatch.setattr("closelook.lrp_core.neurons.contexts.explain_contexts", exploding)
    rows = [
        {"layer": 0, "neuron": neuron, "rank": 1, "activation": 1.0, "position": 1, "input_ids": [5, 9, 4]}
        for neuron in (3, 4)
    ]
    assert explained(None, rows, "attnlrp", 64) == [None, [2.0, 2.0, 2.0]]
