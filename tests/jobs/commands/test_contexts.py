"""`closelook examples`: as docs/neurons.md shows it, and what it says of bad input."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("CLOSELOOK_SHARED", ROOT.parent / "shared"))
MODEL = SHARED / "models" / "babyllama-char"


@pytest.mark.skipif(not MODEL.exists(), reason=f"needs the trained model {MODEL}")
def test_five_neurons_answer_to_what_their_page_says(closelook, tmp_path):
    page = (ROOT / "docs" / "neurons.md").read_text()
    (stories,) = re.findall(r"^```text stories.txt\n(.*?)^```", page, re.S | re.M)
    (tmp_path / "stories.txt").write_text(stories)
    shown = re.findall(
        r"closelook examples (\S+) --model \S+ --corpus stories.txt --top (\d)\n```\n\n```text\n(.*?)\n```", page, re.S
    )
    assert len(shown) == 5
    for neuron, top, expected in shown:
        arguments = ("--corpus", str(tmp_path / "stories.txt"), "--top", top)
        code, out, _ = closelook("examples", neuron, "--model", str(MODEL), *arguments)
        assert code == 0
        assert [line.rstrip() for line in out.splitlines()[1 : int(top) + 1]] == expected.splitlines()


def test_lines_without_text_are_counted_and_bad_input_is_one_line(closelook, model, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"w5 w7\n\n\xff\xfe\nw9 w4 w8\nw1\x00w2\n")
    asked = ("--model", str(model), "--corpus", str(corpus), "--top", "2")
    code, out, _ = closelook("examples", "0.3", *asked)
    assert code == 0
    assert "3 lines hold no text; the first of them is corpus.txt:2: empty" in out
    assert "in 2 lines of corpus.txt" in out
    for neuron, message in (
        (
            "0",
            "the name of a neuron must be LAYER.NEURON, as 2.17 (LAYER.EXPERT.NEURON in a mixture of experts), not '0'",
        ),
        ("7.0", "there is no layer 7: the model's"),
    ):
        code, _, err = closelook("examples", neuron, *asked)
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1
    corpus.write_text("\n")
    assert "holds no text" in closelook("examples", "0.3", *asked)[2]
    assert "give --corpus FILE with --model M, or --root DIR" in closelook("examples", "0.3", *asked[:2])[2]
    assert "no model is given to read the corpus" in closelook("examples", "0.3", *asked[2:])[2]
    of_images = closelook("examples", "0.3", "--model", "demo/vit", *asked[2:])[2]
    assert of_images == "error: demo/vit reads images: `closelook examples` reads texts\n"
