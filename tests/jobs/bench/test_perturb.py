import json

import pytest

from benchmarks import perturb


@pytest.mark.nightly
def test_the_bench_reports_rows_a_second_forwards_and_memory(tmp_path, capsys):
    file = tmp_path / "perturb.json"
    result = perturb.main(["--quick", "--json", str(file)])
    assert json.loads(file.read_text()) == json.loads(json.dumps(result))
    ratios = result["ratios"]
    for name in ("gpt2", "bert-base"):
        speed, memory = (ratios[f"{name}: T=64: {what} flipped / bare"] for what in ("rows/s", "peak bytes"))
        assert (speed["target"], speed["better"]) == (0.9, "higher")
        assert memory["value"] > 0.5
        assert ratios[f"{name}: forwards / distinct states"]["value"] == 1.0
        assert ratios[f"{name}: packed - one at a time, largest difference"]["value"] < 1e-3
        methods = {title.partition(" T=64: ")[2]: ratio for title, ratio in ratios.items() if name in title}
        assert methods["integrated_gradients, seconds / 50 forward-backwards"]["target"] == 1.05
        assert methods["integrated_gradients, seconds / captum's"]["target"] == 1.0
        assert methods["integrated_gradients, peak bytes / bare"]["value"] > 0.5
        assert methods["atman, times as fast as a forward a token"]["better"] == "higher"
        assert methods["atman, peak bytes / bare"]["value"] > 0.5
    peers = [row for row in result["rows"] if row["part"] == "peer"]
    assert len(peers) == 2
    assert all(row["largest_difference"] < 1e-3 for row in peers), "captum computes the same"
    (counted, _) = [row for row in result["rows"] if row["part"] == "forwards"]
    assert counted["asked"] == 6 * 2 * 65
    assert counted["computed"] == counted["distinct"] < counted["asked"]
    assert f"{counted['computed']} forwards for 780 points" in capsys.readouterr().out
