"""What the demo's encoder-decoder reads and answers."""

import pytest
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import generate, lexicon, model_dir
from closelook.evaluation.benchmark.views import tokenise
from closelook.lrp_core import load_model
from tests.evaluation.benchmark.demo.right import UNSEEN_SEED


@pytest.fixture(scope="module")
def shipped():
    folder = model_dir("t5")
    return load_model(str(folder)), AutoTokenizer.from_pretrained(folder)


def test_an_answer_is_the_same_token_in_the_passage_and_by_itself(shipped):
    view, tokenizer = shipped
    rows = list(generate("qa", 200, seed=UNSEEN_SEED))
    views, rejects = tokenise(rows, tokenizer, kind=view.kind, max_length=view.max_length)
    assert not rejects
    for row, tokens in zip(rows, views, strict=True):
        [(start, end)] = row["evidence"]
        pieces = [token for token, chosen in zip(tokens["input_ids"], tokens["evidence_mask"], strict=True) if chosen]
        assert pieces == [tokens["target_id"]]
        assert tokenizer.decode(pieces) == row["text"][start:end] == row["target"]
        assert tokens["decoder_input_ids"] == []


def test_every_answer_is_one_token_and_other_english_can_be_read(shipped):
    _, tokenizer = shipped
    assert all(len(tokenizer.tokenize(word)) == 1 for words in lexicon.kinds().values() for word in words)
    assert tokenizer.unk_token_id not in tokenizer("Quixotic zebras, unheard of!")["input_ids"]
