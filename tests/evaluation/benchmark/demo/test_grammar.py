import json
from itertools import islice

import pytest

from closelook.evaluation.benchmark.demo import TASKS, generate, lexicon
from closelook.evaluation.benchmark.demo.grammar import draws

N = 400
NOUNS = {form: number for pair in [*lexicon.ANIMATE, *lexicon.THINGS] for number, form in enumerate(pair)}
FORMS = {
    form: number for forms, _ in [*lexicon.PREDICATES, *lexicon.ANIMATE_PREDICATES] for number, form in enumerate(forms)
}
REFLEXIVES = {reflexive: 0 for _, reflexive in lexicon.GENDERS} | {"themselves": 1}
NAMES = {name: 0 for names in lexicon.PERSONS.values() for name in names}


def evidence(row):
    [(start, end)] = row["evidence"]
    return row["text"][start:end]


@pytest.mark.parametrize("task", TASKS)
def test_generation_is_deterministic_without_duplicates(task):
    rows = list(generate(task, N, seed=3))
    assert rows == list(generate(task, N, seed=3))
    assert len({row["sample_id"] for row in rows}) == len(rows) == N
    assert rows != list(generate(task, N, seed=4))


@pytest.mark.parametrize(("task", "forms"), [("sva", FORMS), ("ra", REFLEXIVES)])
def test_evidence_is_the_head_that_agrees_with_the_target_and_not_with_the_foil(task, forms):
    for row in generate(task, N):
        number = (NOUNS | NAMES)[evidence(row)]
        assert forms[row["target"]] == number != forms[row["foil"]]
        assert row["scope"] is None


@pytest.mark.parametrize("task", ["sva", "ra"])
def test_attractors_are_the_nouns_of_the_other_number_between_head_and_slot(task):
    seen = set()
    for row in generate(task, N):
        between = row["text"][row["evidence"][0][1] : row["slot"]].split()
        number = (NOUNS | NAMES)[evidence(row)]
        numbers = [NOUNS[word] for word in between if word in NOUNS]
        meta = json.loads(row["meta"])
        assert meta["attractors"] == sum(other != number for other in numbers)
        assert meta["intervening"] == len(numbers)
        seen.add(meta["attractors"])
    assert seen == {0, 1, 2}


def test_reflexives_agree_with_their_antecedent_in_gender():
    genders = {form: reflexive for nouns, reflexive in lexicon.GENDERS for pair in nouns for form in pair}
    genders |= {name: reflexive for reflexive, names in lexicon.PERSONS.items() for name in names}
    for row in generate("ra", N):
        assert genders[evidence(row)] in (row["target"], row["foil"])
        assert row["slot"] == len(row["text"])


def test_an_answer_stands_once_in_its_passage_and_its_foil_never():
    for row in generate("qa", N):
        [(start, end)] = row["scope"]
        passage = row["text"][start:end]
        kind = lexicon.kinds()[json.loads(row["meta"])["kind"]]
        assert evidence(row) == row["target"]
        assert passage.count(row["target"]) == 1
        assert row["foil"] in kind
        assert row["foil"] not in passage
        assert [word for word in kind if word in passage] == [row["target"]]
        assert row["text"] == f"Context: {passage} Question:{row['text'][end:].removeprefix(' Question:')}"
        assert row["text"].endswith("? Answer:")


@pytest.mark.parametrize("task", TASKS)
def test_training_and_evaluation_draws_share_no_text_before_the_answer(task):
    trained = {draw.key for draw in islice(draws(task, 0, "train"), 4000)}
    evaluated = {draw.key for draw in islice(draws(task, 0, "test"), N)}
    assert not trained & evaluated


def test_an_exhausted_language_says_how_much_there_is(monkeypatch):
    monkeypatch.setattr(lexicon, "PERSONS", {"himself": ["Adam"], "herself": ["Alice"]})
    monkeypatch.setattr(lexicon, "PLACES", ["Athens", "Rome"])
    monkeypatch.setattr(lexicon, "EVENTS", lexicon.EVENTS[:1])
    monkeypatch.setattr(lexicon, "THINGS", lexicon.THINGS[:1])
    monkeypatch.setattr(lexicon, "DETERMINERS", ["the"])
    monkeypatch.setattr(lexicon, "PREDICATES", [(("is", "are"), ["old"])])
    monkeypatch.setattr(lexicon, "TIMES", {"at": ["noon", "dusk"]})
    monkeypatch.setattr("closelook.evaluation.benchmark.demo.split._MAX_MISSES", 200)
    with pytest.raises(ValueError, match=r"has only \d+ qa samples, not 100000; ask for fewer"):
        list(generate("qa", 100_000))
