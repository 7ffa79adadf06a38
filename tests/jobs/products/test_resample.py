"""Tokens resampled by a task's own bigrams, through the whole job: curves against one forward a state and draw."""

from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.schema import CURVES, RELEVANCE, VIEW
from closelook.evaluation.scoring.faithfulness.flips import Flips, tie_order
from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.plan.cells import make_plan, validate
from closelook.jobs.products import curves as stage
from closelook.jobs.products.curves import curves_of
from closelook.jobs.store import Ledger
from closelook.lrp_core import load_model
from closelook.lrp_core.records.types import UserError
from tests.evaluation.scoring.test_flipping import alone
from tests.jobs.products.test_select import RUN, choices_of
from tests.jobs.small import config_of, prepared, rows_of, save_model
from tests.oracles import faithfulness as oracle
from tests.stages import attribute, perturb, select

SPECIAL = 3  # the mask token of the small tokenizer
ROWS = rows_of(9)
for _row in ROWS:  # few different tokens, so that bigrams repeat; the first is the template's, and some are special
    _row["input_ids"] = [1, 4, *(3 + token % 7 for token in _row["input_ids"][2:])]
    _row["special_mask"] = [at == 0 for at in range(_row["length"])]
TEXTS = [(row["input_ids"], row["special_mask"]) for row in ROWS]
SETTINGS = {"ways": ["resample", "zero"], "draws": 2, "explanations": ["target"], "embeddings": ["full"]}


@pytest.fixture(scope="module", params=["gpt2", "bert"])
def any_model(request, tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / request.param, request.param)


def rows_for(model):
    """The samples as this model reads them: a masked one predicts inside, at its mask token."""
    if model.name == "gpt2":
        return ROWS
    return [{**row, "position": 1, "input_ids": [1, SPECIAL, *row["input_ids"][2:]]} for row in ROWS]


def run_of(root, model, rows=ROWS, **changes):
    config = config_of(root, model, **{"perturb": SETTINGS, **changes})
    return config, prepared(config, rows)


def nodes_of(config, store):
    [model] = make_plan(config, store).models
    return {node.artifact.method: node for node in curves_of(config, config.perturb, model)}


def drawn_of(config, store, way="resample"):
    """Rows of curves by method, sample, variant, score and order."""
    names = ("sample_id", "explanation", "embedding", "score", "order")
    return {
        (method, *(row[name] for name in names)): row
        for method, node in nodes_of(config, store).items()
        for row in Ledger(store).read(node.artifact, CURVES).to_pylist()
        if row["perturbation"] == way
    }


def changed(config, **changes):
    return config.model_copy(update={"perturb": config.perturb.model_copy(update=changes)})


def drawn(config, store):
    assert attribute(config, store).complete
    assert perturb(config, store).complete
    return drawn_of(config, store)


def test_every_curve_is_the_mean_of_one_forward_for_each_state_and_draw(tmp_path, any_model, inline, monkeypatch):
    monkeypatch.setattr(stage, "UNIT_TOKENS", 900)
    rows = rows_for(any_model)
    config, store = run_of(tmp_path, any_model, rows)
    curves = drawn(config, store)
    texts = [(row["input_ids"], row["special_mask"]) for row in rows]
    view, by_name = load_model(str(any_model), dtype="float64"), {row["sample_id"]: row for row in rows}
    relevance = {}
    for planned in make_plan(config, store).cells():
        for row in Ledger(store).read(planned.artifact, RELEVANCE).to_pylist():
            key = planned.artifact.method, row["sample_id"], row["explanation"], row["embedding"]
            relevance[key] = row["relevance"]
    assert len(Ledger(store).files(nodes_of(config, store)["attnlrp"].artifact)) > 1, "several units"

    @cache  # orders, scores and methods share states
    def numbers_of(sample, read):
        return alone(view, {**by_name[sample], "input_ids": list(read)}, set(), "none")

    forwards = 0
    for (method, sample, explanation, embedding, score, order), curve in curves.items():
        row = by_name[sample]
        ids = row["input_ids"]
        replaced = oracle.replacements(texts, (SPECIAL,), ids, row["special_mask"], 2, config.seed)
        chosen = [not mask and token != SPECIAL for token, mask in zip(ids, row["special_mask"], strict=True)]
        ties = tie_order(ids, config.seed)
        turn = getattr(oracle, order)(relevance[method, sample, explanation, embedding], ties, chosen)
        assert curve["removed"] == list(range(len(turn) + 1))
        for count, logit, probability, correct in zip(
            *(curve[name] for name in ("removed", "logit", "probability", "correct")), strict=True
        ):
            numbers = []
            for tokens in replaced:
                read = [tokens[at] if at in turn[:count] else token for at, token in enumerate(ids)]
                numbers.append(numbers_of(sample, tuple(read)))
            expected = oracle.mean_over_draws(numbers)
            followed = expected[0] - (expected[3] if score == "contrast" else 0)
            assert logit == pytest.approx(followed, abs=1e-5)
            assert probability == pytest.approx(np.exp(expected[1]), abs=1e-6)
            assert correct == bool(expected[2])
            forwards += len(numbers)
        assert curve["area"] == pytest.approx(oracle.area(curve["logit"]), abs=1e-5)
    assert forwards > 500


def test_methods_have_the_same_replacements_together_and_alone_and_whatever_the_batch(tmp_path, model, inline):
    """Of relevance that is alike, curves are alike, in runs of other methods, samples and budgets too."""
    twins = [{"name": "first", "method": "random"}, {"name": "second", "method": "random"}, "gradient_x_input"]
    config, store = run_of(tmp_path / "all", model, methods=twins)
    together = drawn(config, store)
    of = {name: {key[1:]: row for key, row in together.items() if key[0] == name} for name in ("first", "second")}
    assert len(of["first"]) == len(ROWS) * 4
    for key, row in of["first"].items():
        assert row["logit"] == of["second"][key]["logit"]
    for at, options in enumerate(
        ({"methods": twins[:1]}, {"token_budget": 12}, {"methods": twins[1:], "shard_rows": 2})
    ):
        config, store = run_of(tmp_path / str(at), model, **options | {"methods": options.get("methods", twins)})
        for key, row in drawn(config, store).items():
            np.testing.assert_allclose(row["logit"], together[key]["logit"], rtol=0, atol=1e-6)
    config, store = run_of(tmp_path / "few", model, perturb=SETTINGS | {"samples": 3}, methods=twins)
    few = drawn(config, store)
    assert len({key[1] for key in few}) == 3
    for key, row in few.items():
        np.testing.assert_allclose(row["logit"], together[key]["logit"], rtol=0, atol=1e-6)


def test_the_way_beside_it_is_as_without_it(tmp_path, model, inline):
    config, store = run_of(tmp_path / "both", model)
    drawn(config, store)
    alone_config, alone_store = run_of(tmp_path / "zero", model, perturb=SETTINGS | {"ways": ["zero"]})
    drawn(alone_config, alone_store)
    both, zero = drawn_of(config, store, "zero"), drawn_of(alone_config, alone_store, "zero")
    resampled = drawn_of(config, store)
    assert both.keys() == zero.keys()
    for key, row in both.items():
        assert row["logit"] == zero[key]["logit"]
        assert len(row["removed"]) > len(resampled[key]["removed"]), "special tokens are zeroed"


def test_keys_of_other_ways_know_nothing_of_replacements_and_those_of_this_way_all(tmp_path, model):
    config, store = run_of(tmp_path, model)
    zero = changed(config, ways=("zero",))
    plain = nodes_of(zero, store)["random"]
    assert "proposal" not in plain.key_fields
    assert not {"draws", "kept_ids"} & plain.key_fields["flips"][0].keys()
    assert nodes_of(changed(zero, draws=7), store)["random"].artifact.key == plain.artifact.key
    resampled = nodes_of(config, store)["random"]
    flips, other = resampled.key_fields["flips"]
    assert other == plain.key_fields["flips"][0]
    assert (flips["draws"], tuple(flips["kept_ids"]), flips["flip_special"]) == (2, (SPECIAL,), False)
    assert nodes_of(changed(config, draws=7), store)["random"].artifact.key != resampled.artifact.key
    assert resampled.key_fields["proposal"] == resampled.texts.proposal(store).digest
    assert Flips("zero", 9, True, 0, draws=5).key() == Flips("zero", 9, True, 0).key()


def test_the_proposal_is_of_all_samples_of_the_task_not_of_those_that_have_curves(tmp_path, model):
    config, store = run_of(tmp_path, model)
    few = changed(config, samples=2)
    [every], [some] = ({node.texts.digest for node in nodes_of(variant, store).values()} for variant in (config, few))
    assert every == some


def test_views_that_are_others_than_when_the_run_was_planned_end_it(tmp_path, model, inline):
    config, store = run_of(tmp_path, model)
    assert attribute(config, store).complete
    texts = nodes_of(config, store)["random"].texts
    store.delete(texts.paths[0])
    rows = [{**row, "input_ids": [1] * row["length"]} for row in ROWS]
    store.write_shard(texts.paths[0], pa.Table.from_pylist(rows, schema=VIEW), VIEW)
    with pytest.raises(UserError, match="the views of task sva changed while the run went on"):
        texts.proposal(store)


def test_a_task_of_a_single_token_is_refused_before_anything_runs(tmp_path, model, inline):
    rows = [{**row, "input_ids": [1] + [5] * (row["length"] - 1)} for row in ROWS]
    config, store = run_of(tmp_path, model, rows)
    assert attribute(config, store).complete
    with pytest.raises(UserError, match="task sva on gpt2: all tokens of the task's texts are equal"):
        perturb(config, store)


def test_images_do_not_know_it_and_the_papers_shares_take_what_it_keeps(tmp_path, model):
    images = {"tasks": {"shapes": {"source": "demo", "limit": 2}}, "methods": ["attnlrp"]}
    pictures = config_of(tmp_path, models=[{"name": "vit", "id": "demo/vit"}], perturb={"ways": ["resample"]}, **images)
    with pytest.raises(UserError, match="model vit knows no perturbation 'resample'; add 'zero' or 'black'"):
        validate(pictures)
    validate(config_of(tmp_path, model, perturb={"ways": ["resample"]}))
    with pytest.raises(ConfigError, match=r"'perturb\.paper': it removes special tokens, which 'resample' never"):
        RunConfig.load("smoke", overrides=["perturb={ways: [resample], paper: true}"])
    with pytest.raises(ConfigError, match=r"perturb\.draws"):
        RunConfig.load("smoke", overrides=["perturb={draws: 0}"])


def test_options_are_chosen_by_the_curves_that_perturb_draws(tmp_path, model, inline):
    ways = {"perturb": RUN["perturb"] | {"ways": ["resample"], "draws": 2}}
    config = config_of(tmp_path / "chosen", model, **RUN | ways)
    store = prepared(config, ROWS)
    assert select(config, store).complete
    choice = choices_of(config, store)["smoothgrad"]
    assert choice.key_fields["proposal"] == choice.texts.digest
    methods = [
        {"name": f"smooth{at}", "method": "smoothgrad", "samples": 2, **options}
        for at, options in enumerate(choice.options)
    ]
    other = config_of(tmp_path / "each", model, **RUN | ways | {"methods": methods, "select": None})
    other_store = prepared(other, ROWS)
    curves = drawn(other, other_store)
    samples = [ROWS[at]["sample_id"] for at in choice.rows]
    for at, trial in enumerate(choice.record["trials"]):
        area = {key[1:]: row["area"] for key, row in curves.items() if key[0] == f"smooth{at}"}
        most = {key: value for key, value in area.items() if key[-1] == "morf" and key[0] in samples}
        deltas = [area[(*key[:-1], "lerf")] - value for key, value in most.items()]
        assert len(deltas) == trial["n"] == len(samples) - trial["left_out"] > 3
        assert trial["delta_area"] == pytest.approx(np.mean(deltas), abs=1e-6)


def test_a_sample_of_special_tokens_is_a_reject_in_every_way(tmp_path, model, inline):
    rows = [*ROWS[1:], {**ROWS[0], "input_ids": [1] + [SPECIAL] * (ROWS[0]["length"] - 1)}]
    config, store = run_of(tmp_path, model, rows)
    curves = drawn(config, store)
    for way in ("zero", "resample"):
        assert {key[1] for key in drawn_of(config, store, way)} == {row["sample_id"] for row in ROWS[1:]}
    assert curves
    record = Ledger(store).record(nodes_of(config, store)["random"].artifact)
    assert record["rejects"] == {"nothing_to_flip": 1}


def test_special_tokens_are_none_that_may_go():
    flips = Flips("resample", 9, False, 0, draws=2, kept_ids=(SPECIAL,))
    row = {"input_ids": [1, 3, 5, 6], "special_mask": [True, False, False, False], "scope_mask": None, "position": 3}
    assert flips.chosen(row, slot=False).tolist() == [False, False, True, True]
    assert flips.chosen(row, slot=True).tolist() == [False, False, True, False]
    with pytest.raises(UserError, match="no token may be removed"):
        replace(flips, kept_ids=(3, 5, 6)).chosen(row, slot=False)
