import json

import pytest

from benchmarks import perturb


@pytest.mark.nightly
def test_the_bench_reports_rows_a_second_and_memory(tmp_path):
    file = tmp_path / "perturb.json"
    result = perturb.main(["--quick", "--json", str(file)])
    assert json.loads(file.read_text()) == json.loads(json.dumps(result))
    ratios = result["ratios"]
    for name in ("gpt2", "bert-base"):
        speed, memory = (ratios[f"{name}: T=64: {quantity} flipped / bare"] for quantity in ("rows/s", "peak bytes"))
        assert (speed["target"], speed["better"]) == (0.9, "higher")
        assert memory["value"] > 0.5
        methods = {title.partition(" T=64: ")[2]: ratio for title, ratio in ratios.items() if name in title}
        assert methods["integrated_gradients, seconds / 50 forward-backwards"]["target"] == 1.05
        assert methods["integrated_gradients, peak bytes / bare"]["value"] > 0.5
        assert methods["atman, times as fast as a forward a token"]["better"] == "higher"
        assert methods["atman, peak bytes / bare"]["value"] > 0.5
