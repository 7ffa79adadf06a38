"""Cases read from rows by word, and their sheets."""

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.explained.sheet import cases, sheets
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
    read = cases(table)
    assert [case.id for case in read] == [*(f"case {number}" for number in range(60)), "again"]
    assert list(read[0].relevance) == list(METHODS)
    for case in read:
        frame = table.filter(pa.compute.equal(table["id"], case.id)).to_pandas()
        for method, values in case.relevance.items():
            assert values == frame[frame["method"] == method]["relevance"].tolist()


def test_a_sheet_shows_the_words_that_counted_and_no_long_text_whole():
    [case] = cases(table_of(1, methods=("attnlrp",), length=3000))
    page = sheets([case], PROVENANCE)
    assert "The model decided: positive, with a probability of 90.0 %." in page
    values = case.relevance["attnlrp"]
    counted = [at for at, word in enumerate(case.words) if word.is_counted]
    top = max(counted, key=lambda at: values[at])
    assert f"{case.words[top].word} {values[top]:+.2f}" in page
    assert 100 < page.count("padding:2px 1px") < 600
    assert " … " in page
