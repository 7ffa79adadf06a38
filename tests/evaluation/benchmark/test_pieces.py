"""The texts of tokens, and the words that they make up."""

from itertools import pairwise

import pytest
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.benchmark.encoding import Pieces, Word, pieces, words, words_of
from closelook.lrp_core.records.types import UserError


class WordPieces:
    """Joins like BERT's: pieces that go on a word start with ##."""

    words = ("[CLS]", "key", "##s", "are")

    def decode(self, ids):
        return " ".join(self.words[at] for at in ids).replace(" ##", "")


class Bytes:
    """Joins like GPT-2's, whose tokens may be parts of a character."""

    parts = (b"The", b" caf", b"\xc3", b"\xa9")

    def decode(self, ids, clean_up_tokenization_spaces=None):
        return b"".join(self.parts[at] for at in ids).decode(errors="replace")


def test_pieces_show_where_words_start_whatever_the_tokenizer():
    assert pieces(WordPieces(), [0, 1, 2, 3]) == ["[CLS]", " key", "s", " are"]
    assert pieces(Bytes(), [0, 1]) == ["The", " caf"]
    assert pieces(Bytes(), [1, 2, 3]) == [" caf", "�", "�"]
    assert pieces(Bytes(), []) == []


def by_pairs(tokenizer, ids):
    """Each token behind the one before it, by a decoding of both."""
    texts = [tokenizer.decode([token]) for token in ids]
    for at, pair in enumerate(pairwise(ids), start=1):
        together, before = tokenizer.decode(list(pair)), tokenizer.decode([pair[0]])
        if together.startswith(before):
            texts[at] = together[len(before) :]
    return texts


TEXTS = (
    "The keys to the cabinet are old.",
    "the The keys",
    "A naïve café, don't (they) say; 日本 🙂🙂 10,000.5!",
    " two  spaces \n and a line",
    "cabinet",
)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_what_was_decoded_before_changes_no_piece(name):
    tokenizer = AutoTokenizer.from_pretrained(model_dir(name))
    remembering = Pieces(tokenizer)
    rows = [tokenizer(text)["input_ids"] for text in TEXTS]
    rows += [list(reversed(row)) for row in rows]
    for row in (*rows, *rows):
        assert remembering.of(row) == by_pairs(tokenizer, row)


def test_a_token_that_has_a_space_behind_some_tokens_alone_is_told_apart():
    remembering = Pieces(WordPieces())
    assert remembering.of([1, 3]) == ["key", " are"]
    assert remembering.of([1, 2, 3]) == ["key", "s", " are"]
    characters = Pieces(Bytes())
    assert characters.of([0, 2]) == ["The", "�"]
    assert characters.of([0, 2, 3]) == ["The", "�", "�"]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", " key", "s", " are", "[SEP]"], ["[CLS]", " keys", " are", "[SEP]"]),
        (["dull", ".", " (", "fine", ")", ","], ["dull", ".", " (", "fine", "),"]),
        (["don", "'", "t", " 10", ",", "5", "!", "!"], ["don't", " 10,5", "!!"]),
        ([" caf", "�", "�", "."], [" caf��", "."]),
        (["the", " ", "gi", "rl", " ", "("], ["the", " girl", " ("]),
        (["...", " -", "-"], ["...", " --"]),
        ([" हिन्द", "ी", " cafe", "\u0301", "."], [" हिन्दी", " cafe\u0301", "."]),
        (["\u2764", "\ufe0f", "!"], ["\u2764\ufe0f!"]),
        ([" girl", "", "."], [" girl", "."]),
    ],
)
def test_punctuation_around_a_word_is_apart_from_it(tokens, expected):
    special = [token.startswith("[") for token in tokens]
    assert [word.text for word in words(tokens, special)] == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["我", "喜欢", "猫", "。", "很好"], ["我", "喜欢", "猫", "。", "很好"]),
        ([" use", "手机", "2", " app"], [" use", "手机", "2", " app"]),
        (["ไป", "ด", "ี", "กว่า"], ["ไป", "ดี", "กว่า"]),
    ],
)
def test_scripts_without_spaces_are_split_into_pieces_and_marks_stay_with_their_letter(tokens, expected):
    assert [word.text for word in words(tokens, [False] * len(tokens))] == expected


def test_a_segmenter_says_where_words_of_scripts_without_spaces_end():
    tokens = [" 我", "喜", "欢", "猫", " cats"]
    found = words(tokens, [False] * 5, segmenter=lambda text: ["我", "喜欢", "猫"])
    assert [word.text for word in found] == [" 我", "喜欢", "猫", " cats"]
    with pytest.raises(UserError, match="must return parts that join to the text"):
        words(tokens, [False] * 5, segmenter=lambda text: ["我", "猫"])


def test_tokens_that_spell_a_character_together_are_in_one_word_which_has_it():
    found = words_of(Bytes(), [0, 1, 2, 3], ["The", " caf", "�", ""], [False] * 4)
    assert found == [Word([0], "The"), Word([1, 2, 3], " café")]
