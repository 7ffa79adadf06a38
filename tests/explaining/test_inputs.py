"""`closelook.explain` reads lists of texts in any form, pictures in memory, and refuses containers with names."""

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
    "texts",
    [
        pd.DataFrame({"text": TEXTS})["text"],
        pd.Series(TEXTS, index=[7, 3]),
        datasets.Dataset.from_dict({"text": TEXTS})["text"],
        np.array(TEXTS),
        iter(TEXTS),
    ],
    ids=["column", "series", "column of a data set", "array", "iterator"],
)
def test_texts_are_read_in_their_order(gpt2, texts):
    explained = closelook.explain(texts, model=gpt2, method="random")
    assert [entry.text for entry in explained] == TEXTS


def test_one_message_is_a_chat(gpt2):
    with pytest.raises(closelook.UserError, match="the tokenizer has no chat template"):
        closelook.explain([{"role": "user", "content": "The keys"}], model=gpt2)


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
