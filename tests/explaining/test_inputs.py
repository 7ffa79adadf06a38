"""`closelook.explain` reads containers by the column or key that holds texts, pictures in memory, or refuses them."""

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import closelook

TEXTS = ["The keys", "A girl"]
RED_IS_LEFT = np.zeros((8, 16, 3), np.uint8)
RED_IS_LEFT[:, :8, 0] = 255
TURNED = 6  # EXIF: the stored rows are the columns of the picture
ORIENTATION = 0x0112  # the tag of EXIF


@pytest.fixture(scope="module")
def gpt2():
    return closelook.open_model("demo/gpt2")


@pytest.mark.parametrize(
    "container",
    [
        pd.DataFrame({"text": TEXTS, "label": [1, 0]}),
        pd.Series(TEXTS, index=[7, 3]),
        datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0]}),
        {"text": TEXTS, "label": [1, 0]},
        [{"text": TEXTS[0]}, {"text": TEXTS[1], "label": 0}],
        np.array(TEXTS),
        iter(TEXTS),
    ],
    ids=["data frame", "series", "data set", "columns", "rows", "array", "iterator"],
)
def test_texts_are_read_from_the_column_or_key_of_their_name(gpt2, container):
    explained = closelook.explain(container, model=gpt2, method="random")
    assert [entry.text for entry in explained] == TEXTS


def test_the_second_text_of_a_pair_is_read_beside_the_first():
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    expected = closelook.explain(TEXTS[0], second=TEXTS[1], model="demo/bert-score", method="lrp")
    for given in (pair, [pair], pd.DataFrame([pair])):
        read = closelook.explain(given, model="demo/bert-score", method="lrp")
        [read] = [read] if isinstance(given, dict) else read
        assert torch.equal(read["lrp"], expected["lrp"])
    with pytest.raises(closelook.UserError, match="the text comes with a 'text_pair': leave `second` out"):
        closelook.explain(pair, second="A boy", model="demo/bert-score")


def test_one_message_is_a_chat(gpt2):
    with pytest.raises(closelook.UserError, match="the tokenizer has no chat template"):
        closelook.explain({"role": "user", "content": "The keys"}, model=gpt2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": pd.DataFrame({"title": TEXTS})}, "`text` is a DataFrame with title: give its texts, or name"),
        ({"text": {"title": TEXTS[0]}}, "`text` is a dict with title: give its texts, or name them 'text'"),
        ({"text": datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": TEXTS}))}, "DatasetDict with train"),
        ({"text": {"text": 3}}, "'text' must be a string or a list of strings, not 3"),
        ({"text": set(TEXTS)}, "`text` is a set, whose entries have no order: give a list"),
        ({"text": b"The keys"}, "a picture, or a list of these, not b'The keys'"),
        ({"text": [[True, False]]}, "token ids must be integers, not True"),
        ({"text": TEXTS, "target": {" are": 1, " is": 2}}, "`target` is a dict: give one value for all texts, or a l"),
        ({"text": TEXTS, "target": {"are", "is"}}, "`target` is a set: give one value for all texts, or a list"),
        ({"text": TEXTS, "target": pd.DataFrame({"a": TEXTS})}, "`target` is a DataFrame: give one value"),
        ({"text": "The keys", "target": b"are"}, "`target` must be a word or a token id, not b'are'"),
    ],
)
def test_containers_without_such_a_name_are_refused_in_one_line(gpt2, given, message):
    with pytest.raises(closelook.UserError) as caught:
        closelook.explain(**given, model=gpt2, method="random")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_without_a_text_fails_alone(gpt2):
    explained = closelook.explain([{"title": TEXTS[0]}, {"text": TEXTS[1]}], model=gpt2, method="random")
    assert "`text` is a dict with title: give its texts, or name them 'text'" in str(explained.errors[0])
    assert explained[1].text == TEXTS[1]


def test_pictures_in_memory_are_explained_as_their_files(tmp_path):
    vit = closelook.open_model("demo/vit")
    stored = Image.fromarray(RED_IS_LEFT)
    turned = Image.Exif()
    turned[ORIENTATION] = TURNED
    stored.save(tmp_path / "plain.png")
    stored.save(tmp_path / "turned.png", exif=turned)
    batch = np.stack([RED_IS_LEFT, RED_IS_LEFT])
    plain = closelook.explain(str(tmp_path / "plain.png"), model=vit)["attnlrp"]
    pictures = [stored, RED_IS_LEFT, torch.from_numpy(RED_IS_LEFT)]
    alone = [closelook.explain(picture, model=vit) for picture in pictures]
    assert all(torch.equal(entry["attnlrp"], plain) for entry in [*alone, *closelook.explain(batch, model=vit)])
    by_path = closelook.explain(str(tmp_path / "turned.png"), model=vit)["attnlrp"]
    in_memory = closelook.explain(Image.open(tmp_path / "turned.png"), model=vit)["attnlrp"]
    assert torch.equal(by_path, in_memory)
    assert not torch.equal(by_path, plain), "EXIF says that it is turned"
    several = closelook.explain([stored, RED_IS_LEFT[..., 0] / 255], model=vit)
    assert "of type uint8, with 1, 3 or 4 channels, not [8, 16] of type float64" in str(several.errors[1])
    several.save(tmp_path / "explained.json")
    with pytest.raises(closelook.UserError, match="demo/gpt2 reads texts, not pictures"):
        closelook.explain(stored, model="demo/gpt2")
