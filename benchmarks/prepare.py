"""`closelook bench prepare --data DIR [--rows 70000]`: time and memory of `closelook prepare` on a replica of the data.

DIR is laid out as for the config `real`. The replica repeats published rows with small changes that make them distinct:
1,000 of ra and, as in Close Look, 3 of sva for every 4 of qa. It is prepared at a seventh of its size and at full size,
which shows whether memory grows with the rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import psutil
import yaml
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.parts.harness import SCRATCH, field_of, parser
from closelook.jobs.config.file import CONF_DIR

RA_ROWS = 1000
SMALL_ROWS = 4000  # the fewest rows, enough for `prepare` to use Ray
POLL_S = 0.5  # seconds between two looks at the memory
MEMORY_TARGET = 1.15  # memory of the full replica over that of the small one


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure `prepare` on a small and on the full replica of the data; see `--help`. Returns the result as JSON."""
    options = parser("prepare", __doc__)
    options.add_argument("--data", required=True, type=Path, help="folder with ra/ sva/ qa/, tokenizers in ../models")
    options.number("--rows", 70_000, "rows of the full replica", quick=2 * SMALL_ROWS)
    bench = options.begin(arguments)
    data, full = bench.chosen.data, bench.chosen.rows
    for rows in (max(full // 7, SMALL_ROWS), full):
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
            folder = Path(scratch)
            replicate(data, folder / "data", rows)
            config = _config(data.resolve(), folder)
            bench.row(rows=rows, **measure(["--config", str(config), "--root", str(folder / "root")]))
    small, large = bench.rows
    growth = large["peak_bytes"] / small["peak_bytes"]
    bench.ratio(f"peak memory, {large['rows']} rows against {small['rows']}", growth, MEMORY_TARGET, "lower")
    return bench.finish()


def replicate(data: Path, to: Path, rows: int) -> None:
    """Write a replica of the published files in `data` to the folder `to`, about `rows` rows in all, no two alike.

    It has RA_ROWS rows of ra, three sevenths of the rows of sva, and the rest of qa.
    """
    for task in ("ra", "sva", "qa"):
        (to / task).mkdir(parents=True)
    [ra], [sva], [qa] = (sorted((data / task).iterdir()) for task in ("ra", "sva", "qa"))
    (to / "ra" / ra.name).write_text("".join(islice(ra.open(), RA_ROWS)))
    with (to / "sva" / sva.name).open("w") as out:
        out.writelines(islice(_sentences(sva), rows * 3 // 7))
    with (to / "qa" / qa.name).open("w") as out:
        out.write('{"version": "v2.0", "data": [')
        for number, article in enumerate(_articles(qa, rows * 4 // 7 - RA_ROWS)):
            out.write(", " * bool(number) + json.dumps(article))
        out.write("]}")


def _sentences(file: Path) -> Iterator[str]:
    """Yield the lines of a file of sva, then copies of them that begin with the copy's number, without end."""
    lines = file.read_text().splitlines()
    for copy in count():
        for line in lines:
            attractors, sentence, masked, good, bad = line.split("\t")
            lead = f"in part {copy} , " if copy else ""
            yield "\t".join([attractors, lead + sentence, lead + masked, good, bad]) + "\n"


def _articles(file: Path, questions: int) -> Iterator[dict[str, Any]]:
    """Yield articles of a file of qa, then copies, until they hold so many answerable `questions`.

    Every context ends with the number of the copy, so that answers keep their positions.
    """
    articles = json.loads(file.read_text())["data"]
    for copy in count():
        for article in articles:
            paragraphs = []
            for paragraph in article["paragraphs"]:
                paragraphs.append({"context": f"{paragraph['context']} ({copy})", "qas": paragraph["qas"]})
                questions -= sum(not asked["is_impossible"] for asked in paragraph["qas"])
            yield {"title": f"{article['title']} {copy}", "paragraphs": paragraphs}
            if questions <= 0:
                return


def _config(data: Path, folder: Path) -> Path:
    """Write the config `real` for the replica, with a third tokenizer: GPT-2's with a BOS token before every text."""
    assets = data.parent / "models"
    gpt2 = AutoTokenizer.from_pretrained(assets / "gpt2-bpe", tokenizer_type="gpt2")
    start = [("<|endoftext|>", gpt2.eos_token_id)]
    bos = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=start)
    gpt2.backend_tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos])
    PreTrainedTokenizerFast(tokenizer_object=gpt2.backend_tokenizer).save_pretrained(folder / "third")
    config = yaml.safe_load((CONF_DIR / "real.yaml").read_text())
    config |= {"data": str(folder / "data"), "assets": str(assets), "shard_rows": 1024}
    config["models"].append({"name": "third", "id": "random/gpt2-medium", "tokenizer": str(folder / "third")})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Run `closelook prepare` with these arguments: its wall seconds, the peak memory of its processes, and its report.

    Memory, in bytes, is the sum of the processes' own pages; the shared pages of Ray's object store count once.
    """
    start, peak, shared = time.perf_counter(), 0, 0
    process = subprocess.Popen(
        [sys.executable, "-m", "closelook", "prepare", *arguments], stdout=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):  # a process has ended meanwhile
            family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
            held = [_memory(pid) for pid in family]
            peak = max(peak, sum(anonymous for anonymous, _ in held))
            shared = max(shared, *(pages for _, pages in held))
        time.sleep(POLL_S)
    assert process.stdout is not None
    report = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"prepare ended with {process.returncode}: {report}")
    wall_s = round(time.perf_counter() - start, 1)
    memory = {"peak_bytes": peak + shared, "shared_bytes": shared}
    return {"wall_s": wall_s, **memory, "report": report.splitlines()}


def _memory(pid: int) -> tuple[int, int]:
    """(bytes of a process's own pages, bytes of its shared pages); zeros if it has ended."""
    status = Path(f"/proc/{pid}/status")
    kib = [field_of(status, name) or "0" for name in ("RssAnon", "RssShmem")]
    anonymous, shared = (1024 * int(size.split()[0]) for size in kib)
    return anonymous, shared
