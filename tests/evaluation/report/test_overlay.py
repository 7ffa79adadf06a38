"""Overlays of pictures, their colours as people see them, and what the pages are given of an image."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from closelook.evaluation.benchmark.pictures import Preprocessing
from closelook.evaluation.report.heatmaps.overlay import (
    overlay,
    patch_names,
    with_picture,
)
from closelook.evaluation.report.heatmaps.plotted import plotted, saved
from closelook.evaluation.report.heatmaps.tokens import Line, data, rgb

#: Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(rgb: np.ndarray) -> np.ndarray:
    share = rgb / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("kind", BLINDNESS)
def test_towards_and_against_differ_with_any_colour_vision(kind):
    sides = (np.array([rgb(sign * share) for share in np.linspace(0, 1, 9)]) for sign in (1, -1))  # [9, 3]
    towards, against = (linear(side) @ np.array(BLINDNESS[kind]).T for side in sides)
    apart = np.linalg.norm(towards - against, axis=1)
    assert apart[-1] > 0.4
    assert (np.diff(apart) > 0).all()


def test_overlay_is_on_the_scale_of_its_largest_and_zero_is_the_middle():
    shown = np.asarray(Image.open(io.BytesIO(overlay(np.array([[0.0, -2.0], [1.0, np.nan]])))).convert("RGB"))
    assert shown.tolist() == [[list(rgb(0)), list(rgb(-1))], [list(rgb(0.5)), list(rgb(0))]]
    assert overlay(np.zeros((2, 2))) != overlay(np.ones((2, 2)))


def entry():
    preprocessing = Preprocessing.of({}, {"image_size": 8, "patch_size": 4})
    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    lines = [Line("<b>A</b>", [0.1, 0.0, -1.0, 3.0, 0.5]), Line("B", [0.0, 2.0, 0.0, 0.0, 0.0])]
    shown = data(
        patch_names(preprocessing), lines, [False, False, False, False, True], [True] + [False] * 4, task="t", model="m"
    )
    return with_picture(shown, pixels, preprocessing, [np.linspace(-1, 1, 64).tolist(), None], "x.png")


def image_of(uri: str) -> Image.Image:
    head, text = uri.split(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(text)))


def test_entry_has_the_picture_and_an_overlay_and_words_for_each_line():
    shown = entry()
    assert shown["tokens"] == ["class token", "patch 1, 1", "patch 1, 2", "patch 2, 1", "patch 2, 2"]
    assert image_of(shown["image"]["source"]).size == (8, 8)
    assert [image_of(row["overlay"]).size for row in shown["rows"]] == [(8, 8), (2, 2)]  # pixels; patches
    assert [row["alt"] for row in shown["rows"]] == [
        "relevance by <b>A</b>: most in the patch of row 2, column 1, not on evidence",
        "relevance by B: most in the patch of row 1, column 1, not on evidence",
    ]


@pytest.mark.parametrize("wrong", [{"values": [0.0, np.nan, 0.0, 0.0, 0.0]}, {"pixels": [0.0] * 63 + [np.inf]}])
def test_relevance_of_pictures_that_is_not_finite_is_said_and_has_no_maximum(wrong):
    preprocessing = Preprocessing.of({}, {"image_size": 8, "patch_size": 4})
    line = Line("A", [0.0, 2.0, 0.0, 0.0, 0.0], pixels=[0.0] * 64)._replace(**wrong)
    shown = data(patch_names(preprocessing), [line], [False] * 4 + [True], [True] + [False] * 4)
    [row] = with_picture(shown, np.zeros((8, 8, 3), np.uint8), preprocessing, [line.pixels], "x.png")["rows"]
    assert (row["label"], row["alt"], row["hit"]) == ("A (not finite)", "relevance by A (not finite)", 0)


def test_rows_of_pictures_show_every_method_and_escape_its_name(tmp_path):
    saved(plotted([entry()], "Title"), tmp_path / "one.svg")
    drawn = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert drawn.count("<image ") == 3
    assert "&lt;b&gt;A&lt;/b&gt;" in drawn
    assert drawn.count("stroke-dasharray") == 3, "evidence is outlined in each"
