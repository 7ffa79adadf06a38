"""`closelook bench corpus`: the driver's largest memory while it finds max-activating examples in a corpus, with Ray.

The corpus has sentences of the demo's grammar; the demo's gpt2 reads it on every core. A corpus is compared with one of
a quarter of its length. The driver merges the units that workers commit one after the other, and keeps a fixed number
of examples of each neuron, so its memory should not grow with the corpus. The ratio needs at least two units of the
shorter corpus: with one unit nothing is merged.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.parts.harness import SCRATCH, in_own_process, parser
from benchmarks.parts.runs import small_run
from closelook.evaluation.benchmark.demo.grammar import generate
from closelook.jobs.stages.run import run
from closelook.jobs.store import Ledger, Store

CHARACTERS = 5  # about as many as a token has
SENTENCES = 4  # in a text
GROWTH_TARGET = 1.05


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure both corpora; see `--help`. Returns the result as JSON."""
    options = parser("corpus", __doc__)
    options.number("--tokens", 4_000_000, "of the longer corpus, about", quick=8_000)
    bench = options.begin(arguments)
    most = bench.chosen.tokens
    for about in (most // 4, most):
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
            corpus, root = Path(scratch) / "corpus.txt", f"{scratch}/root"
            write(corpus, about)
            peak, seconds = in_own_process(read, str(corpus), root)
            [(_, record)] = Ledger(Store(root)).records("contexts")
        tokens, units = record["tokens"], record["corpus"]["survey"]["units"]
        bench.row(what="driver", tokens=tokens, units=units, peak_bytes=peak, seconds=seconds)
    small, large = bench.rows
    if small["units"] > 1:
        growth = large["peak_bytes"] / small["peak_bytes"]
        name = "largest memory of the driver, of four times as many tokens"
        bench.ratio(name, growth, GROWTH_TARGET, "lower", tokens=large["tokens"])
    else:
        print("no ratio: the shorter corpus is one unit, so nothing is merged; give more --tokens")
    return bench.finish()


def write(file: Path, tokens: int) -> None:
    """Write a corpus with one text a line, of about `tokens` tokens in all."""
    sentences, draw, size = [row["text"] for row in generate("sva", 2000)], random.Random(0), 0
    with file.open("w", encoding="utf-8") as out:
        while size < CHARACTERS * tokens:
            text = ". ".join(draw.choices(sentences, k=SENTENCES))
            size += out.write(f"{text}\n")


def read(file: str, root: str) -> None:
    """Run the stages that find the max-activating examples of all neurons in a corpus file."""
    cores = os.cpu_count() or 1
    corpus = {"source": "text", "path": file, "explain": None}
    model = {"name": "gpt2", "id": "demo/gpt2", "workers": [cores, cores]}
    neurons = {"tasks": {}, "knockout": None, "corpus": corpus}
    config = small_run(root, {"sva": 4}, [model], ["attnlrp"], neurons=neurons)
    store = Store(config.root)
    store.create()
    for summary in run(config, store, ("prepare", "neurons")):
        if not summary.complete:
            raise RuntimeError(f"the benchmark's {summary.stage} failed: {'; '.join(summary.failures)}")
