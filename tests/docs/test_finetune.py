"""The script of the page of fine-tuning, on the demo's BERT."""

import json
import random

import closelook
from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.benchmark.demo.lexicon import FEMALE, MALE, NEUTER
from tools import finetune


def test_a_classifier_learns_the_labels_of_a_file_and_is_explained_by_their_names(tmp_path, capsys):
    rows = [
        {"text": f"{determiner} {noun} {adverb} sees .", "label": label}
        for label, nouns in (("person", [*FEMALE, *MALE]), ("other", NEUTER))
        for noun, _ in nouns
        for determiner in ("the", "my", "your")
        for adverb in ("often", "never")
    ]
    random.Random(0).shuffle(rows)
    for name, some in (("train", rows[:-80]), ("test", rows[-80:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    train, test, to = (str(tmp_path / name) for name in ("train.jsonl", "test.jsonl", "tuned"))
    files = ["--train", train, "--test", test, "--to", to]
    finetune.main([str(model_dir("bert")), "--task", "beings", *files, "--epochs", "8", "--rate", "1e-3"])
    accuracy = float(capsys.readouterr().out.split()[-1].removesuffix("%"))
    assert accuracy > 90
    explanation = closelook.explain("the queen often sees .", model=to, label="person", method="attnlrp")
    assert explanation["attnlrp"].any()
