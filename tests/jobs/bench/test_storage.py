"""Results of any benchmark become rows of one schema, in a file of their own."""

import json
from hashlib import sha256

import pytest

from benchmarks.harness import Bench, Options
from closelook.evaluation.schema import BENCH
from closelook.jobs.bench.storage import numbers, save, write
from closelook.jobs.store import Store, StoreError, Written


def a_bench():
    bench = Bench("lrp", "CPU (2 cores)", "closelook bench lrp")
    spread = {"median": 2.0, "q1": 1.0, "q3": 3.0, "n": 5}
    bench.row(part="speed", geometry="gpt2", method="ours", length=8, wall_s=spread, peak_bytes=7, batch=64, task=None)
    bench.row(what="overhead", run="bare", **spread, unit="s")
    bench.about(geometry="gpt2").ratio("ours / theirs", 0.5, 1.0, "lower", q1=0.4, q3=0.6, n=5, cores=2)
    return bench


def test_floats_summaries_and_bytes_are_measured_and_the_rest_says_of_what():
    wall, peak, bare, ratio = numbers(a_bench().result())
    assert wall == {
        "bench": "lrp", "device": "CPU (2 cores)", "part": "speed", "model": "random/gpt2", "task": None, "dtype": None,
        "method": "ours", "length": 8, "measure": "wall_s", "value": 2.0, "unit": "s", "q1": 1.0, "q3": 3.0, "n": 5,
        "details": '{"batch": 64}',
    }  # fmt: skip
    assert (peak["measure"], peak["value"], peak["unit"], peak["q1"]) == ("peak_bytes", 7, "bytes", None)
    assert (bare["part"], bare["method"], bare["measure"], bare["unit"]) == ("overhead", "bare", "median", "s")
    assert (ratio["part"], ratio["model"], ratio["measure"]) == ("ratio", "random/gpt2", "ours / theirs")
    assert (ratio["value"], ratio["target"], ratio["better"], ratio["n"]) == (0.5, 1.0, "lower", 5)
    assert json.loads(ratio["details"]) == {"cores": 2}


def test_a_file_holds_them_with_time_command_and_versions(tmp_path):
    result, store = a_bench().result(), Store(str(tmp_path))
    path, written = write(result, store)
    assert written == Written(len(store.read_bytes(path)), sha256(store.read_bytes(path)).hexdigest(), rows=4)
    assert path == store.files("bench/lrp")[0]
    assert path.startswith("bench/lrp/CPU-2-cores-20")
    table = store.read(path, BENCH)
    assert table["value"].to_pylist() == [2.0, 7.0, 2.0, 0.5]
    metadata = table.schema.metadata
    assert metadata[b"closelook.written"].decode() == result["written"]
    assert metadata[b"closelook.command"] == b"closelook bench lrp"
    assert json.loads(metadata[b"closelook.versions"]) == result["versions"]


def test_results_stand_side_by_side_and_are_read_together(tmp_path):
    saved = {save(a_bench().result(), str(tmp_path)) for _ in range(2)}
    store = Store(str(tmp_path))
    assert {store.url(path) for path in store.files("bench/lrp")} == saved
    assert store.read("bench/lrp", BENCH).num_rows == 8


def test_a_root_that_cannot_be_written_is_an_error_of_one_line():
    with pytest.raises(StoreError, match="cannot write to the root"):
        save(a_bench().result(), "/dev/null/root")


def test_the_command_names_no_place_of_the_machine():
    options = Options("peers", "", ["gpt2"])
    options.add_argument("--lxt")
    words = ["--quick", "--json=/home/me/x", "--root", "/tmp/y", "--lxt", "/tmp/z"]
    assert options.begin(words).command == "closelook bench peers --quick"


def test_wrong_options_are_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as end:
        Options("lrp", "", ["table_8"]).begin(["--quik"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: unrecognized arguments: --quik (see `closelook bench lrp --help`)\n"
