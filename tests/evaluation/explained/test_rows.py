"""Explained texts as tidy rows, against rows that are written by hand and by slow loops."""

import numpy as np
import pytest

from closelook.evaluation.explained.rows import ExplainedText, MethodRelevance, TokenLocation, tables
from closelook.evaluation.schema import TOKENS, WORDS

PAIR = ExplainedText(
    sides={"text": "Don't go!", "second": "Ok"},
    tokens=["[CLS]", "don", "'", "t", " go", "!", "[SEP]", "o", "k", "[SEP]", "‹start›", " yes"],
    special=[True, *[False] * 5, True, False, False, True, True, False],
    locations=[
        TokenLocation("text"),
        *(TokenLocation("text", *span) for span in ((0, 3), (3, 4), (4, 5), (6, 8), (8, 9))),
        TokenLocation("text"),
        TokenLocation("second", 0, 1),
        TokenLocation("second", 1, 2),
        TokenLocation("second"),
        TokenLocation("decoder"),
        TokenLocation("decoder"),
    ],
    decision="yes",
    against=None,
    probability=0.75,
    by_method=[
        MethodRelevance("sums", "target", "full", 5.0, np.arange(12.0), conserves=True),
        MethodRelevance("means", "none", "none", 5.0, np.arange(10.0), conserves=False),
    ],
)
WORDS_OF_PAIR = [  # side, at, start, end, word, special, tokens, the sum and the mean of 0, 1, 2, ... over its tokens
    ("text", 0, None, None, "[CLS]", True, 1, 0, 0),
    ("text", 1, 0, 5, "Don't", False, 3, 6, 2),
    ("text", 2, 6, 8, "go", False, 1, 4, 4),
    ("text", 3, 8, 9, "!", False, 1, 5, 5),
    ("text", 4, None, None, "[SEP]", True, 1, 6, 6),
    ("second", 0, 0, 2, "Ok", False, 2, 15, 7.5),
    ("second", 1, None, None, "[SEP]", True, 1, 9, 9),
    ("decoder", 0, None, None, "‹start›", True, 1, 10, 10),
    ("decoder", 1, None, None, "yes", False, 1, 11, 11),
]
COLUMNS = ("side", "at", "start", "end", "word", "special", "tokens")


def rows(table, **picked):
    return [row for row in table.to_pylist() if all(row[name] == value for name, value in picked.items())]


def test_words_are_sums_or_means_of_their_tokens_and_the_text_as_written():
    words, _ = tables([("a", PAIR)], "model", "task")
    assert words.schema == WORDS
    for method, of_method in (("sums", WORDS_OF_PAIR), ("means", WORDS_OF_PAIR[:7])):
        selected = rows(words, method=method)
        assert [tuple(row[name] for name in COLUMNS) for row in selected] == [row[:7] for row in of_method]
        value = 7 if method == "sums" else 8
        assert [row["relevance"] for row in selected] == [row[value] for row in of_method]
        assert {row["summed"] for row in selected} == {method == "sums"}


def test_every_row_tells_what_is_explained():
    for table in tables([("a", PAIR)], "model", "task"):
        assert {tuple(row[name] for name in ("id", "model", "task")) for row in table.to_pylist()} == {
            ("a", "model", "task")
        }
        facts = {"decision": "yes", "against": None, "probability": 0.75, "explained": 5.0}
        assert len(rows(table, **facts)) == len(table)
        assert len(rows(table, method="means", explanation="none", embedding="none")) > 0


def test_tokens_name_the_word_that_they_are_part_of_and_add_up_to_it():
    words, tokens = tables([("a", PAIR), ("b", PAIR)], "model")
    assert tokens.schema == TOKENS
    for name in ("a", "b"):
        for method, reduce in (("sums", sum), ("means", np.mean)):
            of_text = rows(tokens, id=name, method=method)
            assert [row["token"] for row in of_text] == list(PAIR.tokens[: len(of_text)])
            for word in rows(words, id=name, method=method):
                parts = [t["relevance"] for t in of_text if (t["side"], t["word_at"]) == (word["side"], word["at"])]
                assert (len(parts), reduce(parts)) == (word["tokens"], word["relevance"])
    assert [row["at"] for row in rows(tokens, id="a", method="sums", side="second")] == [0, 1, 2]


@pytest.mark.parametrize("texts", [[], [("a", PAIR)]])
def test_no_texts_are_no_rows_of_the_same_schema(texts):
    words, tokens = tables(texts, "model")
    assert (len(words), len(tokens)) == ((16, 22) if texts else (0, 0))
    assert (words.schema, tokens.schema) == (WORDS, TOKENS)
