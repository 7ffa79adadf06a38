"""The demo's model that answers from one of several passages answers unseen questions."""

from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import model_dir
from closelook.lrp_core import load_model
from tests.evaluation.benchmark.demo.right import accuracy


def test_the_shipped_model_says_every_token_of_the_answer_to_unseen_questions():
    folder = model_dir("sources")
    view, tokenizer = load_model(str(folder)), AutoTokenizer.from_pretrained(folder)
    assert accuracy(view, tokenizer, "sources", n=200) >= 0.95
