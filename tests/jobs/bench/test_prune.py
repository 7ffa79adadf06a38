import json

from benchmarks import prune


def test_the_bench_reports_its_promise(tmp_path, capsys):
    file = tmp_path / "prune.json"
    result = prune.main(["--quick", "--geometry", "gpt2", "--layers", "1", "--json", str(file)])
    assert json.loads(file.read_text()) == json.loads(json.dumps(result))
    promise = result["ratios"]["gpt2: sweep / one at a time throughput"]
    assert (promise["target"], promise["better"]) == (3.0, "higher")
    assert [row["way"] for row in result["rows"]] == ["one at a time", "lower layers shared"]
    assert "gpt2: sweep / one at a time throughput" in capsys.readouterr().out
