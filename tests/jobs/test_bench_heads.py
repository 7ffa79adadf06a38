import json
import math

from jobs.bench import heads


def test_the_bench_holds_every_method_of_normxlogit_against_bare_passes(tmp_path):
    file = tmp_path / "heads.json"
    result = heads.main(["--quick", "--json", str(file)])
    assert json.loads(file.read_text()) == json.loads(json.dumps(result))
    targets = {title: (ratio["target"], ratio["better"]) for title, ratio in result["ratios"].items()}
    for subject in ("bert-base", "bert-base, 2 labels", "gpt2", "gpt2, 2 labels"):
        assert targets[f"{subject}: normxlogit, seconds / forward"] == (1.1, "lower")
        assert targets[f"{subject}: normxlogit of every layer, seconds / forward"] == (1.3, "lower")
    assert targets["bert-base: decompx, T=32: seconds / products"] == (1.5, "lower")
    assert targets["gpt2: value_zeroing, times as fast as layer and token one by one"] == (1.8, "higher")
    assert targets["bert-base: globenc, seconds / alti"] == (1.5, "lower")
    assert all(math.isfinite(ratio["value"]) and ratio["value"] > 0 for ratio in result["ratios"].values())
    table = {row["method"]: row for row in result["rows"] if row["part"] == "table 4"}
    assert tuple(table) == heads.TABLE_4
    assert table["normxlogit"]["peak_bytes"] < table["integrated_gradients"]["peak_bytes"]
    assert table["normxlogit"]["fit_in_48_gib"] > table["decompx"]["fit_in_48_gib"]
