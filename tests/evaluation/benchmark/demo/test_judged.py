"""Sentences that are judged, by construction, and the shipped models that learnt to judge them."""

from itertools import islice

import pytest
import torch
from transformers import AutoTokenizer

from closelook.evaluation.benchmark.demo import HEADS, generate, lexicon, model_dir
from closelook.evaluation.benchmark.demo.labelled import JUDGED, LABELS, judged
from closelook.evaluation.tasks import TASKS
from closelook.lrp_core import Batch, load_model
from tests.evaluation.benchmark.demo.right import judged_right
from tools.demo_models import head_logits

N = 400
NEGATIONS = {word for links in lexicon.LINKING for _, words in links for word in words}


def words(draw):
    return [draw.text[start:end] for start, end in draw.evidence]


def drawn(task, n=N, seed=3, split="test"):
    return list(islice(judged(task, seed, split), n))


@pytest.mark.parametrize("task", JUDGED)
def test_draws_are_the_same_every_time_and_none_comes_twice(task):
    draws = drawn(task)
    assert draws == drawn(task) != drawn(task, seed=4)
    assert len({draw.content for draw in draws}) == N
    assert not {draw.content.lower() for draw in draws} & {draw.content.lower() for draw in drawn(task, split="train")}


def test_a_label_follows_from_the_last_opinion_and_the_negation_that_is_marked_with_it():
    opinions = {word: praise for praise, side in enumerate(lexicon.OPINIONS) for word in side}
    seen, draws = set(), drawn("sentiment")
    for draw in draws:
        *negation, opinion = words(draw)
        assert len(negation) == draw.meta["negated"] <= 1
        assert set(negation) <= NEGATIONS
        assert draw.label == LABELS[opinions[opinion] != bool(negation)]
        every = [word for word in draw.text.strip(".").split() if word in opinions]
        assert every[-1] == opinion  # others are said of something else, before it
        seen.add((opinions[opinion], bool(negation), any(opinions[word] != opinions[opinion] for word in every)))
    assert len(seen) == 8  # each with misleading words of the other side, and without
    assert 0.4 < sum(draw.label == "positive" for draw in draws) / N < 0.6


def test_a_score_counts_the_same_subject_verb_and_object():
    nouns = {form for pair in lexicon.ANIMATE + lexicon.THINGS for form in pair}
    scores = set()
    for draw in drawn("similarity"):
        plain = draw.second.strip(".").split()
        [at] = [i for i, word in enumerate(plain) if word in lexicon.REFLEXIVE_VERBS]
        [subject], [patient] = ([word for word in side if word in nouns] for side in (plain[:at], plain[at:]))
        same = zip((2, 1, 2), words(draw), (subject, plain[at], patient), strict=True)
        assert draw.score == sum(points for points, first, second in same if first == second)
        scores.add(draw.score)
    assert scores == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("task", JUDGED)
def test_a_sample_has_its_label_or_score_and_of_an_opinion_the_evidence(task):
    rows, draws = list(generate(task, 20, 3)), [draw for draw in drawn(task) if draw.evidence][:20]
    for row, draw in zip(rows, draws, strict=True):
        assert (row["text"], row["second"], row["score"]) == (draw.text, draw.second, draw.score)
        assert row["label"] == draw.label
        assert [tuple(span) for span in row["evidence"]] == ([] if draw.second else list(draw.evidence))


@pytest.fixture(scope="module", params=HEADS)
def shipped(request):
    folder = model_dir(request.param)
    return request.param, load_model(str(folder)), AutoTokenizer.from_pretrained(folder)


def test_shipped_models_judge_unseen_draws(shipped):
    name, view, tokenizer = shipped
    assert judged_right(view, tokenizer, HEADS[name], 400) >= (0.9 if name == "bert-score" else 0.95)


def test_shipped_models_are_read_as_the_stock_model_reads_them_pairs_in_two_segments(shipped):
    name, view, tokenizer = shipped
    task = HEADS[name]
    draws, rows = drawn(task, 8), []
    for draw in draws:
        encoding = tokenizer(*([draw.text] if draw.second is None else [draw.text, draw.second]))
        ids = encoding["input_ids"]
        asked = {"target_id": 0, "foil_id": 1} if TASKS[task].labels else {"target_id": 0}
        segments = {"token_type_ids": encoding["token_type_ids"]} if "token_type_ids" in encoding else {}
        position = len(ids) - 1 if view.kind.reads == "last" else 0
        rows.append({"input_ids": ids, "position": position, **asked, **segments})
    with torch.no_grad():
        stock = head_logits(view.model, tokenizer, draws)  # [B, labels]
    ours = view.logits(Batch.collate(rows, tokenizer.pad_token_id))
    for row, logits, expected in zip(rows, ours, stock, strict=True):
        torch.testing.assert_close(logits, expected[[row[name] for name in ("target_id", "foil_id") if name in row]])
    if labels := TASKS[task].labels:
        assert view.config.label2id == {label: index for index, label in enumerate(labels)}
    else:
        assert view.config.num_labels == 1
        assert max(rows[0]["token_type_ids"]) == 1


def test_every_word_that_decides_a_label_is_one_token(shipped):
    name, _, tokenizer = shipped
    decisive = {
        "sentiment": lexicon.judging(),
        "similarity": lexicon.REFLEXIVE_VERBS[:8],
        "brackets": list("()[]"),
        "triggers": [*lexicon.judging(), *lexicon.TRIGGERS],
    }[HEADS[name]]
    assert all(len(tokenizer.tokenize(f" {word}")) == 1 for word in decisive)
