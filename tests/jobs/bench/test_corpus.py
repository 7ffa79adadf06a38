"""The benchmark of the driver's memory by the length of a corpus."""

import json

import pytest

from benchmarks import corpus
from closelook.evaluation.benchmark.demo.grammar import generate
from closelook.jobs.plan import corpus as planned


@pytest.mark.parametrize("characters", [None, 300])
def test_two_corpora_are_read_and_what_the_driver_took_is_told(tmp_path, monkeypatch, capsys, inline, characters):
    if characters is not None:
        monkeypatch.setattr(planned, "UNIT_CHARACTERS", characters)
    peaks = iter((1000, 1030))

    def in_this_process(function, *arguments):
        function(*arguments)
        return next(peaks), 1.0

    monkeypatch.setattr(corpus, "in_own_process", in_this_process)
    monkeypatch.setattr(corpus, "generate", lambda task, count: generate(task, min(count, 50)))
    monkeypatch.setattr(corpus.os, "cpu_count", lambda: 1)
    corpus.main(["--tokens", "400", "--json", str(tmp_path / "corpus.json")])
    result = json.loads((tmp_path / "corpus.json").read_text())
    small, large = result["rows"]
    assert 80 <= small["tokens"] <= 160 < 3 * small["tokens"] <= large["tokens"] <= 600
    out = capsys.readouterr().out
    assert f"what driver, tokens {large['tokens']}, units {large['units']}, peak 0.0 MiB, seconds 1" in out
    if characters is None:
        assert (small["units"], large["units"], result["ratios"]) == (1, 1, {})
        assert "no ratio: the shorter corpus is one unit" in out
    else:
        assert 1 < small["units"] < large["units"]
        [ratio] = result["ratios"].values()
        assert (ratio["value"], ratio["target"], ratio["better"]) == (1.03, 1.05, "lower")
