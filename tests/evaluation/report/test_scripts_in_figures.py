"""Figures of texts in other scripts: fonts that the user names, and words from right to left."""

import matplotlib
import pytest

from closelook.evaluation.report.heatmaps.layout import line_starts
from closelook.evaluation.report.heatmaps.plotted import plotted, saved
from closelook.evaluation.report.heatmaps.tokens import Line, data


def test_letters_that_matplotlib_lacks_are_drawn_with_the_fonts_that_the_user_names(tmp_path):
    entry = data(["the", " 猫"], [Line("lrp", [1.0, 1.0])], target="target", model="m")
    with matplotlib.rc_context({"font.family": ["A font of cats"]}):
        figure = plotted([entry], "title")
    [text] = [text for text in figure.axes[0].texts if text.get_text() == "猫"]
    assert text.get_fontfamily()[1:] == ["A font of cats"]
    with pytest.warns(UserWarning, match="Glyph 29483 .* missing from font"):
        saved(plotted([entry], "title"), tmp_path / "figure.png")


def test_neighbouring_words_from_right_to_left_stand_so():
    tokens = ["see", " مرحبا", " 12", " عالم", " end"]
    starts, lines = line_starts(tokens, 80)
    assert lines == 1
    at = [letter for _, letter in starts]
    assert at[0] < at[3] < at[2] < at[1] < at[4]
    assert at == [0, 12, 9, 4, 18]


def test_lines_from_right_to_left_break_as_others_do():
    starts, lines = line_starts([" مرحبا", " عالم", " بيت"], 10)
    assert lines == 2
    assert [line for line, _ in starts] == [0, 0, 1]
    assert starts[0][1] > starts[1][1]
    assert starts[2] == (1, 0)
