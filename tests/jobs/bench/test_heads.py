import json
import math

import pytest

from benchmarks import heads


def test_the_bench_holds_every_method_of_normxlogit_against_bare_passes(tmp_path):
    file = tmp_path / "heads.json"
    result = heads.main(["--quick", "--json", str(file)])
    assert json.loads(file.read_text()) == json.loads(json.dumps(result))
    targets = {title: (ratio["target"], ratio["better"]) for title, ratio in result["ratios"].items()}
    for subject in ("bert-base", "bert-base, 2 labels", "gpt2", "gpt2, 2 labels"):
        assert targets[f"{subject}: normxlogit, seconds / forward"] == (1.1, "lower")
        assert targets[f"{subject}: normxlogit of every layer, seconds / forward"] == (1.3, "lower")
    assert targets["bert-base: decompx, T=32: seconds / products"] == (1.5, "lower")
    assert targets["bert-base: globenc, seconds / alti"] == (1.5, "lower")
    assert all(math.isfinite(ratio["value"]) and ratio["value"] > 0 for ratio in result["ratios"].values())
    table = {row["method"]: row for row in result["rows"] if row["part"] == "table 4"}
    assert tuple(table) == heads.TABLE_4
    assert table["normxlogit"]["peak_bytes"] < table["integrated_gradients"]["peak_bytes"]
    assert table["normxlogit"]["fit"] > table["decompx"]["fit"]
    assert {row["memory"] for row in table.values()} == {"48 GiB"}


def test_table_4_takes_the_methods_of_a_run_with_their_options(capsys):
    more = "{name: ig9, method: integrated_gradients, steps: 9}"
    more += ", {name: plural, method: logat, word: plural}"  # random weights have no tokenizer
    methods = f"methods=[lrp, alti_logit, {{integrated_gradients: {{steps: 2}}}}, {more}]"
    options = ["--config", "smoke", "--set", methods, "--set", "models=[{name: m, id: demo/bert}]"]
    rows = {
        row["method"]: row for row in heads.main(["--quick", "--repeats", "1", "--parts", "table_4", *options])["rows"]
    }
    assert set(rows) == {"lrp", "integrated_gradients", "ig9"}, "alti_logit is not of this model"
    assert (
        "left out: plural: 'plural' cannot be tokenised: the model was opened without a tokenizer"
        in capsys.readouterr().out
    )
    assert rows["ig9"]["peak_bytes"] > rows["integrated_gradients"]["peak_bytes"]
    assert rows["lrp"]["fit"] < 48 * 2**30 / rows["lrp"]["peak_bytes"]


def test_a_part_that_there_is_not_is_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        heads.main(["--quick", "--parts", "reading", "map"])
    assert end.value.code == 2
    assert "invalid choice: 'map' (choose from" in capsys.readouterr().err
