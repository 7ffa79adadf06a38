"""Options that lists leave open: chosen by faithfulness on a seeded subset, kept with their trials, and keyed."""

import hashlib
import json

import numpy as np
import pyarrow.compute as pc
import pytest

from closelook.evaluation.schema import CURVES, RELEVANCE, TRIALS
from closelook.evaluation.scoring.faithfulness.flips import TARGET_LOGIT
from closelook.evaluation.scoring.faithfulness.scores import Trial, choose, trials_of
from closelook.jobs.commands.roots.gc import garbage
from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.config.methods import left_open
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.choices import in_words
from closelook.jobs.plan.node import Run
from closelook.jobs.products.curves import curves_of
from closelook.jobs.stages.report.parts.faithfulness import faithfulness_part
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import default_samples, results_of
from closelook.jobs.store import Ledger
from closelook.lrp_core.records.option import Option
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute, evaluate, perturb, select

ROWS = rows_of(9)
SIGMAS = [3.0, 0.1]
THRESHOLDS = [0.4, 0.7, 1.0]
SMOOTH = {"smoothgrad": {"sigma": SIGMAS, "reduce": ["l1", "l2"], "samples": 2}}
ROLLOUT = {"attention_rollout": {"discard_threshold": THRESHOLDS}}
SELECT = {"samples": 6, "seed": 1}
RUN = {
    "methods": [SMOOTH, ROLLOUT, "random"],
    "select": SELECT,
    "perturb": {"explanations": ["target"], "embeddings": ["full"]},
}


def run_of(root, model, **changes):
    config = config_of(root, model, **{**RUN, **changes})
    return config, prepared(config, ROWS)


def choices_of(config, store):
    return {choice.artifact.method: choice for model in make_plan(config, store).models for choice in model.choices}


def chosen(config, store):
    return {name: choice.chosen for name, choice in choices_of(config, store).items()}


def oracle(root, model):
    """Every set of options as a method of its own, drawn by `perturb`: means of area differences, by method."""
    each = {
        "smoothgrad": [{"sigma": sigma, "reduce": how, "samples": 2} for sigma in SIGMAS for how in ("l1", "l2")],
        "attention_rollout": [{"discard_threshold": threshold} for threshold in THRESHOLDS],
    }
    names = {f"{name}-{at}": name for name, sets in each.items() for at in range(len(sets))}
    methods = [
        {"name": f"{name}-{at}", "method": name, **options}
        for name, sets in each.items()
        for at, options in enumerate(sets)
    ]
    config, store = run_of(root, model, methods=methods, select=None)
    assert attribute(config, store).complete
    assert perturb(config, store).complete
    drawn = sorted((row["sample_id"] for row in ROWS), key=lambda s: hashlib.sha256(f"select:1:{s}".encode()).digest())
    means = {name: [] for name in each}
    [plan] = make_plan(config, store).models
    for cell in curves_of(config, config.perturb, plan):
        of_target = Ledger(store).read(cell.artifact, CURVES).filter(pc.field("score") == TARGET_LOGIT)
        rows = {(row["sample_id"], row["order"]): row for row in of_target.to_pylist()}
        deltas = []
        for sample in drawn[:6]:
            area = {}
            for order in ("morf", "lerf"):
                y, x = np.array(rows[sample, order]["logit"], float), np.array(rows[sample, order]["removed"])
                area[order] = sum((y[k] + y[k + 1]) / 2 * (x[k + 1] - x[k]) for k in range(len(x) - 1)) / x[-1]
            deltas.append(area["lerf"] - area["morf"])
        means[names[cell.artifact.method]].append(sum(deltas) / len(deltas))
    return means


def test_the_option_with_the_largest_area_difference_on_the_subset_is_chosen_and_used(tmp_path, model, inline):
    config, store = run_of(tmp_path / "run", model)
    summary = select(config, store)
    assert (summary.computed, summary.skipped, summary.failures) == (2, 0, ())
    means = oracle(tmp_path / "oracle", model)
    settings = [{"sigma": sigma, "reduce": how} for sigma in SIGMAS for how in ("l1", "l2")]
    best = int(np.argmax(means["smoothgrad"]))
    assert chosen(config, store) == {
        "smoothgrad": settings[best],
        "attention_rollout": {"discard_threshold": THRESHOLDS[int(np.argmax(means["attention_rollout"]))]},
    }
    for name, choice in choices_of(config, store).items():
        trials = choice.record["trials"]
        assert [trial["delta_area"] for trial in trials] == pytest.approx(means[name], abs=1e-5)
        assert {(trial["n"], trial["left_out"]) for trial in trials} == {(6, 0)}
        assert len(Ledger(store).read(choice.artifact, TRIALS)) == 6
    assert any(f"smoothgrad on gpt2/sva/float32: sigma={settings[best]['sigma']}" in line for line in summary.lines)
    results = results_of(Run(config, make_plan(config, store), Ledger(store)))
    assert results.label("smoothgrad") == f"SmoothGrad ({in_words(settings[best])}, tuned)"
    part = faithfulness_part(Reported(Run(config, make_plan(config, store), Ledger(store)), results))
    [table] = [table for table in part.tables if table.title == "Options that were chosen"]
    assert table.rows[-1].labels[0] == "gpt2, float32, zeroed"
    assert [row.labels[2] for row in table.rows if row.cells[3].state == "chosen"] == [
        in_words(options) for options in chosen(config, store).values()
    ]
    assert len(table.rows) == sum(map(len, means.values()))
    assert attribute(config, store).complete
    assert perturb(config, store).complete
    alone = {"smoothgrad": {**settings[best], "samples": 2}}
    fixed, other = run_of(tmp_path / "fixed", model, methods=[alone], select=None)
    keys = {planned.artifact.method: planned.artifact.key for planned in make_plan(config, store).cells()}
    [planned] = make_plan(fixed, other).cells()
    assert keys["smoothgrad"] == planned.artifact.key, "a chosen option is no other cell than the same one written down"
    record = Ledger(store).record(
        next(p.artifact for p in make_plan(config, store).cells() if p.artifact.method == "smoothgrad")
    )
    assert dict(record["method"][2]) == {**METHODS["smoothgrad"].values, **settings[best], "samples": 2}
    assert attribute(fixed, other).complete
    columns = ["sample_id", "relevance"]
    read = (
        Ledger(s).read(planned.artifact, RELEVANCE, columns).sort_by("sample_id").to_pylist() for s in (store, other)
    )
    for mine, written in zip(*read, strict=True):
        assert mine["relevance"] == pytest.approx(written["relevance"], abs=1e-6)


def test_samples_that_chose_the_options_count_in_no_number_of_the_method(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    assert select(config, store).complete
    assert attribute(config, store).complete
    assert evaluate(config, store).complete
    assert perturb(config, store).complete
    plan = make_plan(config, store)
    results = results_of(Run(config, plan, Ledger(store)))
    rest = {row["sample_id"] for row in ROWS} - tuning_samples()
    for cell_key in results.defaults:
        counted = set(default_samples(store, results, cell_key)["sample_id"].to_pylist())
        assert counted == (rest if cell_key.method in chosen(config, store) else {row["sample_id"] for row in ROWS})
        score, samples = results.score(cell_key, "pg"), default_samples(store, results, cell_key)
        assert score.n == sum(samples["correct"].to_pylist())
    run = Run(config, plan, Ledger(store))
    [drawn] = Reported(run, results).drawn
    assert {name: area.n for (name, measure), area in drawn.areas.summaries.items() if measure == "delta_area"} == {
        "smoothgrad": len(rest),
        "attention_rollout": len(rest),
        "random": len(ROWS),
    }
    [table] = [table for table in faithfulness_part(Reported(run, results)).tables if "chosen" in table.title]
    assert {row.cells[4].value for row in table.rows} == {len(rest)}


def tuning_samples() -> set[str]:
    """The samples by which options are chosen: those whose hashes come first."""
    ids = (row["sample_id"] for row in ROWS)
    return set(sorted(ids, key=lambda s: hashlib.sha256(f"select:1:{s}".encode()).digest())[:6])


def test_options_cannot_be_chosen_by_every_sample(tmp_path, model):
    config, store = run_of(tmp_path, model, select={"samples": len(ROWS)})
    with pytest.raises(UserError, match=r"all 9 samples of task sva would choose the options of smoothgrad"):
        make_plan(config, store)


def test_the_choice_is_the_same_whatever_the_batching(tmp_path, model, inline):
    config, store = run_of(tmp_path / "one", model)
    select(config, store)
    other, elsewhere = run_of(tmp_path / "other", model, token_budget=20, shard_rows=2)
    select(other, elsewhere)
    assert {n: c.artifact.key for n, c in choices_of(config, store).items()} == {
        n: c.artifact.key for n, c in choices_of(other, elsewhere).items()
    }
    assert chosen(config, store) == chosen(other, elsewhere)
    for name, choice in choices_of(config, store).items():
        trials = choices_of(other, elsewhere)[name].record["trials"]
        means = [trial["delta_area"] for trial in choice.record["trials"]]
        assert [trial["delta_area"] for trial in trials] == pytest.approx(means, abs=1e-4)


def test_what_a_choice_depends_on_makes_another_and_the_others_stay(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    select(config, store)
    before = {name: choice.artifact.key for name, choice in choices_of(config, store).items()}
    shorter = {"attention_rollout": {"discard_threshold": THRESHOLDS[:2]}}
    other, _ = run_of(tmp_path, model, methods=[SMOOTH, shorter, "random"])
    assert select(other, store).computed == 1
    after = {name: choice.artifact.key for name, choice in choices_of(other, store).items()}
    assert (before["smoothgrad"], len({*before.values(), *after.values()})) == (after["smoothgrad"], 3)
    [group] = [group for group in garbage(other, store) if "choices" in group.why]
    assert group.why == "choices of options of other inputs, settings or versions"
    changes = [
        {"select": {**SELECT, "samples": 5}},
        {"select": {**SELECT, "seed": 2}},
        {"perturb": {**RUN["perturb"], "steps": 2}},
        {"perturb": {**RUN["perturb"], "ways": ["delete"]}},
        {"perturb": {**RUN["perturb"], "flip_special": False}},
        {"perturb": {**RUN["perturb"], "explanations": ["contrastive"]}},
        {"seed": 5},
    ]
    for change in changes:
        changed, _ = run_of(tmp_path, model, **change)
        assert choices_of(changed, store)["smoothgrad"].artifact.key != before["smoothgrad"], change
    for change in ({"methods": [ROLLOUT, SMOOTH]}, {"perturb": {**RUN["perturb"], "methods": ["random"]}}):
        changed, _ = run_of(tmp_path, model, **change)
        assert {n: c.artifact.key for n, c in choices_of(changed, store).items()} == before, change


def test_before_a_choice_cells_wait_and_plan_and_status_say_so(tmp_path, model, inline, closelook):
    config, store = run_of(tmp_path, model)
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    plan = make_plan(config, store)
    assert [planned.artifact.method for planned in plan.cells()] == ["random"]
    waits = "attention_rollout on gpt2/sva/float32: one of 3 sets of options is to be chosen; run `closelook select`"
    code, out, _ = closelook("status", "--config", str(path))
    assert (code, waits in out) == (1, True)
    assert "2 choices of options: 0 done, 0 partial, 2 missing" in out
    assert "1 cells: 0 done, 0 partial, 1 missing" in out, "those that wait have no keys yet"
    code, out, _ = closelook("plan", "--config", str(path))
    assert (code, waits in out) == (0, True)
    assert "4 artifacts, 4 missing, device time unknown" in out, "two choices, relevance and curves of random"
    for summary in (attribute(config, store), perturb(config, store)):
        assert any(
            "smoothgrad on gpt2/sva/float32: its options are not chosen: run" in line for line in summary.failures
        )
    select(config, store)
    assert attribute(config, store).complete
    assert perturb(config, store).complete
    code, out, _ = closelook("status", "--config", str(path))
    assert "2 choices of options: 2 done" in out
    assert "3 cells: 3 done" in out
    assert "to be chosen" not in out


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("[{smoothgrad: {sigma: [0.1, 0.2]}}]", "smoothgrad lists values for 'sigma': add `select: {}` to choose one"),
        (
            "[{smoothgrad: {sigma: [0.1]}}]",
            "option 'sigma' must hold two or more different values, not [0.1]",
        ),
        (
            "[{smoothgrad: {sigma: []}}]",
            "option 'sigma' must hold two or more different values, not []",
        ),
        ("[{smoothgrad: {sigma: [1, 1.0]}}]", "option 'sigma' must hold two or more different values"),
        ("[{smoothgrad: {sigma: [0.1, -1]}}]", "smoothgrad: option 'sigma' must be a number at least 0, not -1.0"),
        ("[{smoothgrad: {sigma: [0.1, [0.2]]}}]", "smoothgrad: option 'sigma' must be a number at least 0, not [0.2]"),
        ("[{smoothgrad: {sgma: [0.1, 0.2]}}]", "smoothgrad has no option 'sgma' (did you mean 'sigma'?)"),
    ],
)
def test_a_list_that_leaves_no_choice_or_none_to_make_it_is_one_line(methods, message):
    with pytest.raises(ConfigError) as caught:
        RunConfig.load("smoke", overrides=[f"methods={methods}"])
    assert str(caught.value).startswith("config key 'methods': smoothgrad")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_choice_without_lists_is_none_to_make(tmp_path, model, inline):
    config, store = run_of(tmp_path, model, methods=["random"])
    summary = select(config, store)
    assert (summary.computed, summary.skipped, summary.complete) == (0, 0, True)


def test_a_list_is_one_value_of_an_option_that_takes_lists(monkeypatch):
    option = Option("layers", (0, 1), "which ones")
    assert option.check([2, 3], "m") == (2, 3)
    assert option.alternatives([2, 3], "m") is None
    assert option.alternatives([[2, 3], [4]], "m") == [(2, 3), (4,)]
    with pytest.raises(UserError, match="m: option 'layers' must be a list, not 3"):
        option.check(3, "m")


def test_options_that_a_model_cannot_have_are_not_tried(tmp_path, model, inline):
    config, store = run_of(tmp_path, model, methods=[{"occlusion": {"how": ["zero", "mask", "delete"]}}])
    assert [o["how"] for o in choices_of(config, store)["occlusion"].options] == ["zero", "delete"]
    config, store = run_of(tmp_path, model, methods=[{"occlusion": {"how": ["zero", "mask"]}}])
    assert choices_of(config, store) == {}, "there is one that it can have"
    assert [dict(planned.chosen) for planned in make_plan(config, store).cells()] == [{"how": "zero"}]


def test_a_trial_that_fails_fails_its_choice_and_no_other(tmp_path, model, inline, monkeypatch):
    from closelook.lrp_core.methods import rollout

    def broken(view, batch, requests, *, discard_threshold, lowest):
        raise TypeError(f"no threshold {discard_threshold}")

    monkeypatch.setattr(rollout, "explain_many", broken)
    METHODS["attention_rollout"].__dict__.pop("function", None)
    config, store = run_of(tmp_path, model)
    summary = select(config, store)
    METHODS["attention_rollout"].__dict__.pop("function", None)
    assert summary.failures[0].startswith("model gpt2: attention_rollout failed on trials")
    assert {name: options is None for name, options in chosen(config, store).items()} == {
        "smoothgrad": False,
        "attention_rollout": True,
    }


def test_ties_go_to_the_first_and_trials_that_lost_their_samples_are_not_chosen():
    assert choose([Trial(1.0, 9, 0), Trial(2.0, 9, 0), Trial(2.000001, 9, 0)]) == 1
    assert choose([Trial(1.0, 9, 0), Trial(5.0, 4, 5), Trial(0.5, 9, 0)]) == 0
    assert choose([Trial(float("nan"), 0, 9), Trial(-3.0, 9, 0)]) == 1
    assert choose([Trial(float("nan"), 0, 0), Trial(float("nan"), 0, 0)]) == 0


def test_trials_are_compared_on_the_samples_that_all_have():
    """The second has lost the two samples of which the first thinks worst, and is worse on each that both have."""
    delta = np.array([[1.0, np.nan], [2.0, np.nan], [5.0, 4.5], [6.0, 5.5], [7.0, 6.5]])
    tried = trials_of(np.zeros_like(delta), delta)
    assert [(trial.delta_area, trial.n, trial.left_out) for trial in tried] == [(4.2, 5, 0), (5.5, 3, 2)]
    assert [trial.compared for trial in tried] == [6.0, 5.5]
    assert choose(tried) == 0
    lost = np.full((5, 1), np.nan)
    assert choose(trials_of(np.zeros((5, 3)), np.hstack([lost, delta]))) == 1, "it takes no sample from the others"
    apart = np.array([[1.0, np.nan], [np.nan, 2.0]])
    assert choose(trials_of(np.zeros_like(apart), apart)) == 1


def test_lists_are_written_back_as_they_can_be_read(tmp_path, model):
    config = config_of(tmp_path, model, **RUN)
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert again == config
    assert len(left_open(again.methods[0])) == 4
