"""The benchmark of long answers runs, and measures what it promises."""

from benchmarks import answers


def test_quick_bench_holds_answers_and_long_texts_against_bare_passes_and_counts_memory():
    result = answers.main(["--quick", "--geometry", "gpt2", "--device", "cpu"])
    targets = {name: (ratio["target"], ratio["better"]) for name, ratio in result["ratios"].items()}
    for subject in ("T=32", "answer of 32 tokens"):
        name = f"gpt2 shrunk: {subject}: attnlrp, seconds / bare forward and backward"
        assert targets[name] == (1.15, "lower")
    assert targets["gpt2 shrunk: peak bytes with checkpointing, exponent in tokens"] == (1.1, "lower")
    peaks = {(row["length"], row["checkpoint"]): row["peak_bytes"] for row in result["rows"] if "peak_bytes" in row}
    assert peaks[64, True] < peaks[64, False]
