"""Explanations in notebooks, files and terminals: figures, words, scales, digits and short reprs."""

import json
import re

import pandas as pd
import pytest
import torch
from PIL import Image

import closelook
from closelook.evaluation.report.heatmaps.tokens import Line, data, in_digits, least, share_of
from closelook.explaining.heatmap import lines_of

TEXT, PAIR = "The keys to the cabinet", {"target": "are", "foil": "is"}


@pytest.fixture(scope="module")
def gpt2():
    return closelook.open_model("demo/gpt2")


@pytest.fixture(scope="module")
def generated(gpt2):
    return closelook.explain(TEXT, generate=4, model=gpt2, method=["attnlrp", "lrp"])


def test_spans_are_shown_with_their_shares(gpt2, capsys):
    explanation = closelook.explain(TEXT, answer="are old. The girl sees.", spans="sentence", model=gpt2)
    explanation.show()
    lines = capsys.readouterr().out.splitlines()
    frame = explanation.shares()
    assert lines[0].startswith("demo/gpt2: why are old. (sum of 3 logits ")
    shares = frame[frame["answer"] == 0]
    expected = " · ".join(f"{part} {share:.0%}" for part, share in zip(shares["part"], shares["share"], strict=True))
    assert lines[1] == f"attnlrp  {expected}"
    assert "Explanation of 'are old. The girl sees.'" in repr(explanation)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("suffix", ["pdf", "svg", "png", "html", "json"])
@pytest.mark.parametrize("kind", ["one", "generated", "answer", "decoder", "picture"])
def test_explanations_are_saved_as_their_suffix_says(gpt2, generated, kind, suffix, tmp_path):
    made = {
        "one": lambda: closelook.explain("The key_s & <b> 100%", **PAIR, model=gpt2, method=["lrp", "gradient_l2"]),
        "generated": lambda: generated,
        "answer": lambda: closelook.explain(TEXT, answer="are old.", spans="sentence", model=gpt2),
        "decoder": lambda: closelook.explain("where did the clerk go ?", generate=2, model="demo/t5"),
        "picture": lambda: of_a_picture(tmp_path),
    }
    explanation = made[kind]()
    file = tmp_path / f"saved.{suffix}"
    explanation.save(str(file))
    content = file.read_bytes()
    explanation.save(file)
    if suffix != "html":
        assert file.read_bytes() == content, "equal explanations are equal files"
    starts = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype", "json": b"{"}
    assert content.startswith(starts[suffix])
    if suffix == "svg" and kind == "generated":
        words = lines_of(explanation.answers[-1], by_word=True).texts
        assert all(f">{word.strip()}<" in content.decode() for word in words)
    if suffix == "json":
        assert json.loads(content) == explanation.to_dict()


def test_words_are_saved_in_place_of_their_pieces(gpt2, tmp_path):
    explanation = closelook.explain("The unfathomable keys", **PAIR, model=gpt2, method=["lrp", "gradient_l2"])
    words = lines_of(explanation.answers[0], by_word=True).texts
    assert len(words) < len(explanation.tokens), "a word has pieces, else the test sees nothing"
    for suffix in ("svg", "html"):
        explanation.save(tmp_path / f"words.{suffix}", by_word=True)
        explanation.save(tmp_path / f"tokens.{suffix}", by_word=False)
        by_word, by_token = ((tmp_path / f"{name}.{suffix}").read_text() for name in ("words", "tokens"))
        assert "unfathomable" in by_word
        assert "gradient_l2 (means)" in by_word
        assert "(means)" not in by_token
    explanation.save(tmp_path / "words.json", by_word=True)
    assert json.loads((tmp_path / "words.json").read_text()) == explanation.to_dict()


def test_rows_by_word_have_the_sum_of_their_tokens_or_the_mean_where_sums_mean_nothing(gpt2):
    explanation = closelook.explain("The unfathomable keys", **PAIR, model=gpt2, method=["lrp", "gradient_l2"])
    frame = explanation.to_frame(by="word").set_index(["method", "word"])
    assert list(frame.loc["lrp"].index) == ["The", "unfathomable", "keys"]
    pieces = slice(*(at for at, token in enumerate(explanation.tokens) if token.startswith(" ")))
    assert len(explanation["lrp"][pieces]) > 1, "a word has pieces, else the test sees nothing"
    of_word = frame["relevance"].unstack(level=0).loc["unfathomable"]
    assert of_word["lrp"] == pytest.approx(float(explanation["lrp"][pieces].sum()), rel=1e-5)
    assert of_word["gradient_l2"] == pytest.approx(float(explanation["gradient_l2"][pieces].mean()), rel=1e-5)
    assert frame["summed"].groupby(level=0).first().to_dict() == {"lrp": True, "gradient_l2": False}
    with pytest.raises(closelook.UserError, match="`by` is 'token' or 'word', not 'letter'"):
        explanation.to_frame(by="letter")


def test_rows_by_word_of_a_decoder_and_none_of_a_picture(tmp_path):
    explanation = closelook.explain("where did the clerk go ?", generate=2, model="demo/t5")
    by_token, by_word = (
        explanation.to_frame(by=by).groupby(["answer", "side"])["relevance"] for by in ("token", "word")
    )
    assert by_word.sum().to_dict() == pytest.approx(by_token.sum().to_dict(), abs=1e-5)
    with pytest.raises(closelook.UserError, match="an image has no words"):
        of_a_picture(tmp_path).to_frame(by="word")


@pytest.mark.parametrize("suffix", ["pdf", "html", "json", "csv"])
def test_a_list_is_saved_as_its_suffix_says(gpt2, suffix, tmp_path):
    texts = [TEXT, "", "The unfathomable girl"]
    explained = closelook.explain(texts, **PAIR, model=gpt2, method="lrp")
    file = tmp_path / f"saved.{suffix}"
    explained.save(file, by_word=True)
    content = file.read_bytes()
    if suffix == "pdf":
        assert len(re.findall(rb"/Type /Page\b", content)) == 2, "a sheet for each explained text"
        explained.save(file, by_word=True)
        assert file.read_bytes() == content, "equal explanations are equal files"
    elif suffix == "json":
        assert json.loads(content) == explained.to_dict()
    elif suffix == "csv":
        frame = pd.read_csv(file)
        assert set(frame["text"]) == {0, 2}
        assert "unfathomable" in set(frame["word"])
    else:
        assert all(word in content.decode() for word in ("cabinet", "unfathomable"))


def test_what_cannot_be_saved_of_a_list_is_one_line(gpt2, tmp_path):
    explained = closelook.explain([TEXT], **PAIR, model=gpt2, method="lrp")
    with pytest.raises(
        closelook.UserError, match=r"end in one of .pdf, .html, .json, .csv for several texts, not 'a.png'"
    ):
        explained.save(tmp_path / "a.png")
    with pytest.raises(closelook.UserError, match=r"cannot write .*: No such file or directory"):
        explained.save(tmp_path / "none" / "a.html")
    with pytest.raises(closelook.UserError, match="no text could be explained: nothing to save"):
        closelook.Explanations(explained[:0]).save(tmp_path / "a.html")


def of_a_picture(folder):
    Image.effect_noise((32, 32), 60).convert("RGB").save(folder / "noise.png")
    return closelook.explain(str(folder / "noise.png"), model="demo/vit")


def test_a_figure_is_one_of_matplotlib_that_notebooks_show(gpt2):
    figure = closelook.explain("The keys", model=gpt2, method="lrp").plot()
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_what_cannot_be_saved_is_one_line(gpt2, tmp_path):
    explanation = closelook.explain(TEXT, **PAIR, model=gpt2, method="lrp")
    with pytest.raises(closelook.UserError, match=r"end in one of .pdf, .svg, .png, .html, .json, not 'a.jpg'"):
        explanation.save(tmp_path / "a.jpg")
    for name in ("a.pdf", "a.html"):
        with pytest.raises(closelook.UserError, match=r"cannot write .*: No such file or directory"):
            explanation.save(tmp_path / "none" / name)


def test_maps_of_one_sign_show_their_differences():
    plain = [False] * 3
    assert least([1.0, 0.9, 0.8], plain) == 0.8
    assert least([-1.0, -0.9, -0.8], plain) == 0.8
    assert least([1.0, -0.9, 0.8], plain) == least([1.0, 0.0, 0.8], plain) == least([1.0, 1.0, 1.0], plain) == 0
    assert least([1.0, 0.9, 0.01], plain) == 0, "white that is almost 0 is 0"
    assert least([5.0, 1.0, 0.5], [True, False, False]) == 0.5
    assert [share_of(value, 1.0, 0.8) for value in (1.0, 0.9, 0.8, -0.9)] == pytest.approx([1, 0.5, 0, -0.5])
    row = data(["a", "b", "c"], [Line("norms", [1.0, 0.9, 0.8])])["rows"][0]
    assert (row["low"], row["scale"]) == (0.8, 1.0)
    assert "low" not in data(["a", "b"], [Line("lrp", [1.0, -0.5])])["rows"][0]


def test_a_notebook_says_what_white_is(gpt2):
    explanation = closelook.explain(TEXT, **PAIR, model=gpt2, method=["embedding_norm", "lrp"])
    norms = explanation["embedding_norm"]
    html = explanation._repr_html_()
    assert f"embedding_norm (white is {float(norms.min()):.3g})" in html
    assert "lrp (white" not in html


def test_numbers_have_as_many_digits_as_tell_them_apart(gpt2, capsys):
    assert in_digits([0.0, 0.0]) == ["+0.00", "+0.00"]
    assert in_digits([12.3, -0.001]) == ["+12.30", "-0.00"]
    assert in_digits([120.0, 0.003, -0.002]) == ["+120.000", "+0.003", "-0.002"], "not two of three as 0.00"
    assert in_digits([12.3, 1e-8, -1e-9]) == ["+12.30", "+0.00", "-0.00"], "nothing but rounding beside it"
    assert in_digits([0.0123, 0.004]) == ["+0.012", "+0.004"]
    assert in_digits([3e-9, -1e-9]) == ["+3.0e-09", "-1.0e-09"]
    tiny = closelook.Method(
        "tiny",
        version=1,
        label="Tiny",
        explain=lambda view, batch, requests: {request: small(view, batch) for request in requests},
        embeddings=("full",),
        conserves=False,
    )
    closelook.explain(TEXT, **PAIR, model=gpt2, method=tiny).show()
    assert "key +0.00012" in capsys.readouterr().out


def small(view, batch):
    from closelook.lrp_core.records.explained import without_sum

    return without_sum(torch.full(batch.input_ids.shape, 1.2e-4), view.logits(batch).detach())


def test_reprs_are_short(gpt2):
    shown = [repr(closelook.METHODS), repr(closelook.METHODS["attnlrp"]), repr(gpt2), repr(gpt2.view)]
    assert shown[0].startswith(f"<{len(closelook.METHODS)} methods: ")
    assert shown[1] == f"<Method attnlrp: {closelook.METHODS['attnlrp'].about}>"
    assert shown[2] == "<demo/gpt2: gpt2 models, float32 on cpu>"
    assert shown[3] == "<ModelView of GPT2LMHeadModel: torch.float32 on cpu>"
    for name in ("t5", "vit"):
        assert len(repr(closelook.open_model(f"demo/{name}").view)) < 100
    long = closelook.explain("The", generate=40, model=gpt2, method="lrp")
    assert max(map(len, [*shown[1:], repr(long)])) < 200
    assert len(long._repr_html_().partition("</caption>")[0]) < 300


def test_notebooks_show_errors_in_one_line(gpt2):
    for error in (closelook.UserError("say which"), closelook.UnsupportedMethod("no")):
        assert error._render_traceback_() == [f"{type(error).__name__}: {error}"]


def test_figures_have_whole_words_unless_tokens_are_asked_for(gpt2):
    explanation = closelook.explain(TEXT, **PAIR, model=gpt2, method="lrp")
    by_word, by_token = (
        [text.get_text() for text in explanation.plot(*asked).axes[0].texts] for asked in ((), (False,))
    )
    assert "keys" in by_word
    assert "keys" not in by_token


def test_a_segmenter_splits_the_words_of_scripts_without_spaces():
    text = "我们喜欢 keys"
    pieces, words = (
        closelook.explain(text, model=closelook.open_model("demo/gpt2", segmenter=segmenter), method="lrp")
        for segmenter in (None, lambda part: [part[:2], part[2:]] if len(part) == 4 else [part])
    )
    assert list(words.to_frame(by="word")["word"])[:2] == ["我们", "喜欢"]
    assert list(pieces.to_frame(by="word")["word"])[:2] != ["我们", "喜欢"]
