"""What cannot be explained is refused in one line that says what to do."""

import datasets
import pandas as pd
import pytest

import closelook

TEXT, PAIR = "The keys to the cabinet", {"target": "are", "foil": "is"}
TEXTS = ["The keys", "A girl"]
PROMPT, ANSWER = "The keys to the", "cabinet are old. The girl sees the dogs."
OF_WORDS = [
    ({"method": "lpr"}, "unknown method 'lpr' (did you mean 'lrp'?)"),
    ({"method": {"lrp": {"stepss": 3}}}, "stepss"),
    (
        {"method": "contextcite"},
        "contextcite gives no relevance of tokens: it is computed from the `ablations` of a run",
    ),
    ({"method": ["lrp", "lrp"]}, "several methods have the same name (lrp, lrp)"),
    ({"words": "all"}, "one of single, first_difference, each, not 'all'; a whole answer is explained by `answer`"),
    ({"target": 10**6, "foil": None, "text": TEXT}, "`target`: give token ids from 0 to "),
    ({"target": "are", "foil": 7}, "both words or both token ids"),
    ({"target": 7, "foil": 7, "text": TEXT}, "target equals foil"),
    ({"text": [5, 6, 7], "foil": "are"}, "target equals foil"),
    (
        {"text": TEXT, "model": "demo/bert-sentiment", "target": None, "label": "positive", "foil": "1"},
        "target equals foil",
    ),
    ({"text": f"{TEXT} \udce9"}, "has half of a character (a surrogate), which no tokenizer reads"),
    (
        {"text": "caf\udce9.png", "model": "demo/vit", "target": None, "foil": None},
        "path of an image, rename the file",
    ),
    ({"target": "are\udce9"}, "(a surrogate), which no tokenizer reads"),
    (
        {"text": "The [MASK] are old", "model": "demo/bert", "target": None, "foil": None},
        "demo/bert predicts at the token [MASK]: mark its place by ___ instead",
    ),
    ({"target": ["are"] * 2}, "`target` has 2 entries for 1 texts"),
    ({"method": []}, "`method` names no method"),
    ({"text": 3}, "or a picture, or a list of these, not 3"),
    ({"text": [None]}, "a text must be a string, not None"),
    ({"target": 1.5}, "`target` must be a word or a token id, not 1.5"),
    ({"generate": "2"}, "at least 1, not '2'"),
    ({"generate": True}, "at least 1, not True"),
    ({"second": 3}, "`second` must be a string, not 3"),
    ({"label": 1.5, "target": None, "foil": None}, "`label` must be the name or number of a label, not 1.5"),
    ({"label": True, "target": None, "foil": None}, "`label` must be the name or number of a label, not True"),
    ({"model": 3}, "`model` must be a hub id, a folder, or a model, pipeline or ModelView in memory, not 3"),
]
OF_CONTAINERS = [
    ({"text": pd.DataFrame({"text": TEXTS})}, "`text` is a DataFrame: give a list of texts"),
    ({"text": {"text": TEXTS}}, "`text` is a dict: give a list of texts"),
    ({"text": datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": TEXTS}))}, "`text` is a DatasetDict"),
    ({"text": set(TEXTS)}, "`text` is a set: give a list of texts"),
    ({"text": [{"text": TEXTS[0]}]}, "message 1 needs a role and a content"),
    ({"text": b"The keys"}, "a picture, or a list of these, not b'The keys'"),
    ({"text": [[True, False]]}, "token ids must be integers, not True"),
    ({"text": TEXTS, "target": {" are": 1, " is": 2}}, "`target` is a dict: give one value for all texts, or a l"),
    ({"text": TEXTS, "target": {"are", "is"}}, "`target` is a set: give one value for all texts, or a list"),
    ({"text": TEXTS, "target": pd.DataFrame({"a": TEXTS})}, "`target` is a DataFrame: give one value"),
    ({"text": "The keys", "target": b"are"}, "`target` must be a word or a token id, not b'are'"),
]
OF_ANSWERS = [
    ({"answer": ""}, "the answer is empty: give at least one word"),
    ({"answer": 3}, "`answer` must be a text or token ids, not 3"),
    ({"answer": [10**6]}, "`answer`: give token ids from 0 to "),
    ({"answer": ["are", "old"]}, "`answer` must be a text or token ids, not ('are', 'old')"),
    ({"answer": "cabinet " * 200}, "128 are the most: `truncate` reads a part of it"),
    ({"spans": "word"}, "`spans` must be 'sentence', 'token' or a list of (start, end), not 'word'"),
    ({"spans": [3]}, "or a list of (start, end), not [3]"),
    ({"spans": []}, "`spans` is empty: name at least one part"),
    ({"spans": [(0, 99)]}, "(0, 99) is no part of the answer, which has 40 characters"),
    ({"spans": [(4, 4)]}, "(4, 4) is no part of the answer"),
    ({"spans": [(0, 7), (5, 9)]}, "`spans` overlap: (0, 7) and (5, 9)"),
    ({"spans": [(7, 8), (8, 11)]}, "no token of the answer belongs to ' ': widen (7, 8)"),
    ({"target": "are"}, "an answer takes the place of `target`: leave `target` out"),
    ({"generate": 5}, "`answer` and `generate` exclude each other"),
    ({"answer": None, "spans": "token"}, "`spans` need an answer: give `answer`, or in `generate`"),
    (
        {"explanation": "contrastive"},
        "a contrastive explanation needs a foil: give `explanation` target",
    ),
    ({"text": [464, 318], "spans": [3]}, "or a list of (start, end), not [3]"),
    ({"model": "demo/bert-sentiment"}, "predicts labels: leave `generate` and `answer` out"),
    ({"model": "demo/bert"}, "predicts a word inside a text and does not continue one: give a target"),
    ({"model": "demo/t5", "answer": "on {Thursday}"}, "the tokenizer turns "),
]
CASES = [({"text": [TEXT], **PAIR} | settings, message) for settings, message in OF_WORDS]
CASES += OF_CONTAINERS
CASES += [({"text": PROMPT, "answer": ANSWER} | settings, message) for settings, message in OF_ANSWERS]


@pytest.fixture(scope="module")
def gpt2():
    return closelook.open_model("demo/gpt2")


@pytest.mark.parametrize(("asked", "message"), CASES)
def test_what_cannot_be_explained_is_one_line(gpt2, asked, message):
    with pytest.raises(closelook.UserError) as caught:
        closelook.explain(**{"model": gpt2} | asked)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
