import json

from benchmarks import prune


def test_the_bench_reports_its_promise_its_gains_and_the_hours(tmp_path, capsys):
    file = tmp_path / "prune.json"
    result = prune.main(["--quick", "--geometry", "gpt2", "--layers", "1", "--json", str(file)])
    assert json.loads(file.read_text()) == json.loads(json.dumps(result))
    promise = result["ratios"]["gpt2: sweep / one at a time throughput"]
    assert (promise["target"], promise["better"]) == (3.0, "higher")
    assert {row["of"] for row in result["rows"] if row["part"] == "gain"} >= {"merging curves", "sharing lower layers"}
    (projected,) = [row for row in result["rows"] if row["part"] == "projection"]
    assert projected["points"] == 46 * 145
    assert 0 < projected["sweep_h"] < projected["one_at_a_time_h"]
    shown = capsys.readouterr().out
    assert "gpt2: sweep / one at a time throughput" in shown
    assert "gpt2: gain of merging curves: " in shown
