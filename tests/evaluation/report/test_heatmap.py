"""Tokens are coloured around zero, on one scale a line, whoever draws them."""

import io

import pytest
from rich.console import Console

from closelook.evaluation.report.heatmaps import tokens as heatmap
from closelook.evaluation.report.heatmaps.tokens import Line, beyond_noise, colour, data, disagreement, scale, terminal


def ansi(text):
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=200).print(text, end="")
    return out.getvalue()


@pytest.mark.parametrize("share", [-1, -0.5, 0, 0.5, 1])
def test_black_text_is_legible_on_every_colour(share):
    channels = [int(colour(share)[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert (luminance + 0.05) / 0.05 > 7, "WCAG AAA"


def test_relevance_that_may_be_rounding_is_shown_and_says_so():
    def shown(peak):
        return beyond_noise(Line("LRP", [0.0, -4 * peak]), [4.0, 1.0])

    assert shown(1e-5) == Line("LRP", [0.0, 0.0])
    assert shown(2e-5) == Line("LRP (near noise)", [0.0, -8e-5])
    assert shown(2e-4) == Line("LRP", [0.0, -8e-4])
    assert beyond_noise(Line("LRP", [float("nan"), 0.0]), [4.0]).label == "LRP"


def test_special_tokens_do_not_set_the_scale():
    assert scale([9.0, -2.0, 1.0], [True, False, False]) == 2.0
    assert scale([9.0, 0.0], [True, False]) == 9.0
    assert scale([0.0, 0.0], [False, False]) == 1.0


def test_terminal_paints_relevance_and_dims_special_tokens():
    text = ansi(terminal(["[CLS]", " The", " key", "s"], [5.0, 0.0, 1.0, -1.0], [1, 0, 0, 0]))
    assert "\x1b[2m[CLS]" in text
    assert " The " in text, "relevance of zero is not painted, and spaces are not either"
    assert "\x1b[30;48;2;{};{};{}mkey".format(*heatmap.POSITIVE) in text
    assert "\x1b[30;48;2;{};{};{}ms".format(*heatmap.NEGATIVE) in text


def test_terminal_text_is_never_markup():
    assert "[red]x" in terminal(["[red]x"], [1.0]).plain
    assert terminal(["a\nb"], [1.0]).plain == "a⏎b"


def test_data_holds_tokens_once_and_a_row_a_line():
    lines = [Line("AttnLRP", [9.0, 0.12345678, -1.0], "contrastive"), Line("Random", [0.0, 1.0, 2.0])]
    entry = data(["[CLS]", " a", " b"], lines, [False, True, False], [True, False, False], text="a b", foil="is")
    assert entry["tokens"] == ["[CLS]", " a", " b"]
    assert entry["rows"][0] == {
        "label": "AttnLRP", "explanation": "contrastive", "scale": 1.0, "values": [9.0, 0.1235, -1.0], "hit": 1
    }  # fmt: skip
    assert entry["rows"][1]["hit"] == 0
    assert (entry["evidence"], entry["special"], entry["foil"], entry["task"]) == ([0, 1, 0], [1, 0, 0], "is", None)


def test_data_points_inside_the_scope():
    entry = data(["a", "b"], [Line("m", [2.0, 1.0])], [False, True], scope=[False, True])
    assert entry["rows"][0]["hit"] == 1


def test_disagreement_is_the_share_of_pairs_that_point_elsewhere():
    lines = [Line("a", [1, 0]), Line("b", [1, 0]), Line("c", [0, 1]), Line("a", [0, 1], "target")]
    assert disagreement(lines, [True, True]) == pytest.approx(2 / 3)
    assert disagreement(lines[:1], [True, True]) == 0
