"""The leaderboard: means over models, the best first, and sentences that say what the numbers say."""

from dataclasses import replace

import pytest

from evaluation.report.leaderboard import glossary, leaderboard, sentence, standings
from evaluation.report.results import Place
from evaluation.scoring.metrics import METRICS, lead
from tests.evaluation.report.test_tables import some_results


def test_methods_stand_by_the_mean_of_their_models():
    results = some_results(models=("gpt2", "llama"))
    halved = {
        (place, variant, metric): score._replace(value=score.value / 2) if place.model == "llama" else score
        for (place, variant, metric), score in results.scores.items()
    }
    results = replace(results, scores=halved)
    for task, standing in standings(results).items():
        values = [one.value for one in standing]
        assert values == sorted(values, reverse=True)
        for one in standing:
            own = [
                score.value
                for (place, variant, metric), score in results.scores.items()
                if (place.task, place.method, metric) == (task, one.method, lead())
                and variant == results.defaults[place]
            ]
            assert one.models == len(own) == 2
            assert one.value == pytest.approx(sum(own) / 2)
            assert one.cost == {"attnlrp": 2, "lrp": 2, "random": 1}[one.method], "a forward, and a backward by rules"


def test_a_sentence_says_how_far_from_chance_a_method_is():
    results = some_results()
    said = {one.method: sentence(results, one) for one in standings(results)["sva"]}
    best = next(one for one in standings(results)["sva"] if one.method == "attnlrp")
    assert f"{best.value:.1f} %" in said["attnlrp"]
    assert f"{best.over:.1f} points above random relevance" in said["attnlrp"]
    assert said["random"].endswith("what random relevance gives.")


def test_a_method_at_chance_says_why_that_is_no_fault_where_its_record_does():
    results = some_results()
    low = replace(next(one for one in standings(results)["sva"] if one.method == "lrp"), over=-3.0, clear=False)
    assert sentence(results, low).endswith("3.0 points below random relevance, not clearly on every model.")
    weak = replace(results.methods["lrp"], weak="That is no fault.")
    results = replace(results, methods={**results.methods, "lrp": weak})
    assert sentence(results, low).endswith("on every model. That is no fault.")
    assert sentence(results, replace(low, over=0.0)).endswith("as random relevance does. That is no fault.")
    assert not sentence(results, replace(low, over=30.0, clear=True)).endswith("That is no fault.")


def test_the_table_ranks_within_each_task_and_bolds_the_best():
    table = leaderboard(some_results(models=("gpt2", "llama")))
    for task in ("sva", "qa"):
        ranks = [(row.cells[0].value, row.cells[1].mark) for row in table.rows if row.section == task]
        assert [rank for rank, _ in ranks] == list(range(1, len(ranks) + 1))
        assert [mark for _, mark in ranks] == ["best", *[""] * (len(ranks) - 1)]


def test_a_place_that_is_not_complete_is_in_no_mean():
    lost = Place("gpt2", "sva", "float32", "lrp")
    table = leaderboard(some_results(missing=(lost,)))
    shown = {task: {row.labels[0] for row in table.rows if row.section == task} for task in ("sva", "qa")}
    assert shown["qa"] - shown["sva"] == {"LRP"}


def test_every_word_of_the_first_screen_is_explained():
    results = some_results()
    words = dict(glossary(results))
    assert {metric.label for metric in METRICS.values()} <= set(words)
    assert words["sva"] == "subject-verb agreement"
    assert "PG" in words
