"""Statements about all decisions together, recomputed from the rows by word with pandas and scipy alone."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from closelook.evaluation.explained.cases import FEWEST, Group, Importances, Variant, cases, disagreements
from closelook.evaluation.explained.pages import overview, sheet
from closelook.evaluation.report.page import Provenance
from closelook.evaluation.schema import WORDS

VOCABULARY = ["Good", "bad", "the", "film", "plot", "never", "Seen", "again", "dull", "bright"]
METHODS = ("attnlrp", "lrp", "gradient_l2")
PROVENANCE = Provenance("reviews", "", {"closelook": "0"})


def rows_of(number, rng, methods=METHODS, length=8, decision=None):
    """Rows of one text: words of VOCABULARY between two special tokens, a full stop before the last."""
    words = [VOCABULARY[at] for at in rng.integers(0, len(VOCABULARY), length)]
    decision = decision or ("positive", "negative")[number % 2]
    shared = {"id": f"case {number}", "row": number + 1, "model": "m", "task": None, "embedding": "none"}
    shared |= {"decision": decision, "against": "other", "probability": 0.9, "explained": 1.0, "explanation": "target"}
    for method in methods:
        end = 0
        for at, word in enumerate(["[CLS]", *words, ".", "[SEP]"]):
            special = word[0] == "["
            start, end = (None, end) if special else (end, end + len(word))
            span = {"side": "text", "at": at, "start": start, "end": None if special else end, "word": word}
            facts = {"special": special, "tokens": 1, "summed": True, "relevance": float(rng.standard_normal())}
            yield shared | {"method": method} | span | facts
            end += 1


def table_of(count, seed=0, **settings):
    rng = np.random.default_rng(seed)
    rows = [row for number in range(count) for row in rows_of(number, rng, **settings)]
    return pa.Table.from_pylist(rows, WORDS)


@pytest.fixture(scope="module")
def table():
    """Sixty texts, the first of them once more under another id."""
    once = table_of(60)
    first = once.filter(pa.compute.equal(once["row"], 1))
    again = first.set_column(0, WORDS.field("id"), pa.array(["again"] * len(first)))
    again = again.set_column(1, WORDS.field("row"), pa.array([61] * len(first), WORDS.field("row").type))
    return pa.concat_tables([once, again])


def test_cases_are_the_texts_of_the_rows_with_every_method(table):
    read = list(cases(table))
    assert [case.name.id for case in read] == [*(f"case {number}" for number in range(60)), "again"]
    assert read[0].content == read[-1].content != read[1].content
    assert list(read[0].by_method) == list(METHODS)
    for case in read:
        frame = table.filter(pa.compute.equal(table["id"], case.name.id)).to_pandas()
        for method, values in case.by_method.items():
            assert values.tolist() == frame[frame["method"] == method]["relevance"].tolist()


def test_importance_is_the_mean_over_texts_of_different_content_with_intervals_that_hold_together(table):
    importances = Importances()
    for case in cases(table):
        importances.add(case)
    frame = table.to_pandas()
    frame = frame[~frame["special"] & frame["word"].str.isalnum() & (frame["id"] != "again")]
    frame = frame.assign(word=frame["word"].str.lower())
    for decision in ("positive", "negative"):
        group = Group("m", None, Variant("lrp", "target", "none"), decision)
        assert importances.texts[group] == 30
        of_group = frame[(frame["decision"] == decision) & (frame["method"] == "lrp")]
        by_text = of_group.groupby(["word", "id"])["relevance"].mean()
        compared = (by_text.groupby("word").size() >= FEWEST).sum()
        ranked = importances.of(group)
        assert sorted(importance.word for importance in ranked) == sorted(set(of_group["word"]))
        assert [importance.mean for importance in ranked] == sorted(
            (importance.mean for importance in ranked), reverse=True
        )
        for importance in ranked:
            values = by_text[importance.word].to_numpy()
            assert (importance.texts, importance.mean) == (len(values), pytest.approx(values.mean()))
            level = 1 - 0.05 / compared
            low, high = stats.t.interval(level, len(values) - 1, values.mean(), stats.sem(values))
            assert (importance.low, importance.high) == (pytest.approx(low), pytest.approx(high))


def test_words_of_few_texts_have_no_interval():
    importances = Importances()
    for case in cases(table_of(2 * FEWEST - 2)):
        importances.add(case)
    for group in importances.texts:
        assert all((importance.low is None) == (importance.texts < FEWEST) for importance in importances.of(group))


def test_disagreement_is_spearmans_correlation_over_the_texts_own_words(table):
    by_pair = {
        (disagreement.id, disagreement.first, disagreement.second): disagreement
        for disagreement in disagreements(cases(table))
    }
    frame = table.to_pandas()
    frame = frame[~frame["special"] & frame["word"].str.isalnum()]
    assert len(by_pair) == 61 * 3
    for (name, first, second), disagreement in by_pair.items():
        both = [frame[(frame["id"] == name) & (frame["method"] == method)] for method in (first, second)]
        expected = stats.spearmanr(both[0]["relevance"], both[1]["relevance"]).statistic
        assert disagreement.correlation == pytest.approx(expected)
        tops = [of_method.loc[of_method["relevance"].idxmax(), "word"] for of_method in both]
        assert [disagreement.first_word, disagreement.second_word] == tops


def test_a_sheet_shows_the_words_that_counted_and_no_long_text_whole():
    [case] = cases(table_of(1, methods=("attnlrp",), length=3000))
    page = sheet(case, PROVENANCE)
    assert "The model decided: positive, with a probability of 90.0 %." in page
    values = case.by_method["attnlrp"]
    counted = [at for at, word in enumerate(case.words) if word.is_counted]
    top = max(counted, key=lambda at: values[at])
    assert f"{case.words[top].word} {values[top]:+.2f}" in page
    assert 100 < page.count("padding:2px 1px") < 600
    assert " … " in page


def test_a_page_of_ten_thousand_cases_stays_below_a_megabyte():
    every = list(cases(table_of(10_000, methods=("attnlrp",))))
    importances = Importances()
    for case in every:
        importances.add(case)
    page = overview(every, importances, [], PROVENANCE)
    assert "10,000 cases" in page
    assert "One method explains these texts" in page
    assert len(page.encode()) < 1_000_000


def test_a_page_of_many_decisions_shows_the_most_frequent_and_stays_below_a_megabyte():
    rng = np.random.default_rng(1)
    methods = [f"method {at}" for at in range(20)]
    rows = [row for at in range(600) for row in rows_of(at, rng, methods, decision=f"word {at % 40}")]
    every = list(cases(pa.Table.from_pylist(rows, WORDS)))
    importances = Importances()
    for case in every:
        importances.add(case)
    page = overview(every, importances, [], PROVENANCE)
    assert "Of 40 decisions the 12 of most texts are shown" in page
    assert len(page.encode()) < 1_000_000
