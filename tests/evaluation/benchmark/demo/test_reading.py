"""The demo's model that answers from one of several passages answers unseen questions, and its training runs."""

from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import model_dir
from closelook.lrp_core import load_model
from tools.demo_models.reading import ReadingRecipe, accuracy, train

UNSEEN_SEED = 77  # neither the training's nor the card's


def test_the_shipped_model_says_every_token_of_the_answer_to_unseen_questions():
    folder = model_dir("sources")
    view, tokenizer = load_model(str(folder)), AutoTokenizer.from_pretrained(folder)
    assert accuracy(view, tokenizer, n=200, seed=UNSEEN_SEED) >= 0.95


def test_training_runs_and_writes_a_model_that_loads(tmp_path):
    scores = train("sources", tmp_path, ReadingRecipe(steps=2, batch=4, pool=50, evaluated=20))
    view, tokenizer = load_model(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert accuracy(view, tokenizer, n=20, seed=1) == scores["sources"]
    assert "--models sources --steps 2 --seed 0" in (tmp_path / "README.md").read_text()
