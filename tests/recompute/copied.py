"""Numbers that a report copies: of papers, benchmarks in its root and files of models; and costs of methods in docs.

These stand in files of the repository, which are read here as data; `Left` tells which numbers cannot follow from data.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.recompute.expected import UNDEFINED, Expected, Left, number
from tests.recompute.facts import NAMES, Facts
from tests.recompute.statistics import Range

Row = Mapping[str, str]
HERE = Path(__file__).parents[2]
GIB = 2**30
MEASURE_NAMES = {
    "ΔA": "delta_area",
    "A MoRF": "area_morf",
    "A LeRF": "area_lerf",
    "IoU": "iou",
    "AOPC": "aopc",
    "Sufficiency": "sufficiency",
    "Accuracy": "accuracy",
    "Sufficiency, accuracy": "sufficiency_accuracy",
    "Pearson r": "pearson",
    "Sufficiency, r": "sufficiency_pearson",
}
EXPLICIT = "AttnLRP explicit"
OTHERS = {EXPLICIT: "attnlrp_explicit", "DecompX": "decompx", "IG": "integrated_gradients"}
METHODS = NAMES | OTHERS
SIZES = {  # of config.json, by the family's own words
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "hidden size": ("hidden_size", "n_embd", "d_model"),
}


@cache
def paper(file: str) -> dict[tuple[str, ...], float]:
    """The numbers of a paper: the last column by the others."""
    with (HERE / "evaluation" / "report" / f"{file}.csv").open(encoding="utf-8", newline="") as lines:
        return {tuple(key): float(value) for *key, value in list(csv.reader(lines))[1:]}


def copied(value: float | None) -> Expected:
    return UNDEFINED if value is None else number(value)


def table8(facts: Facts, row: Row) -> Expected | None:
    """Medians of the last benchmark of a model on a device, or of Close Look."""
    named = "attnlrp" if row["label"] == "speedup" else METHODS[row["label"]]
    if row["source"] != "ours":
        measure = "speedup" if row["label"] == "speedup" else "ms"
        return copied(paper("close_look").get(("8", row["device"], "sva", row["model"], named, measure)))
    model, _, dtype = row["model"].partition(", ")
    frame = facts.root.bench("lrp")
    frame = frame[(frame["part"] == "table_8") & (frame["model"] == model) & (frame["device"] == row["device"])]
    frame = frame[frame["dtype"] == (dtype or "float32")]
    if row["label"] == "speedup":
        frame = frame[frame["measure"] == "speedup"]
    else:
        frame = frame[(frame["method"] == named) & (frame["measure"] == "backward_ms")]
    return copied(float(frame["value"].iloc[-1]) if len(frame) else None)


def texts_by_length(facts: Facts, row: Row) -> Expected | None:
    """Seconds for a text, and how many texts fit: NormXLogit's tables 4 and 5, and the benchmark in the root."""
    method = METHODS.get(row["method"] if "method" in row else row["label"])
    if method is None:
        return None
    tokens = row.get("tokens", "512")
    if row["source"] != "ours":
        measure, scale = {"texts": ("batch", 1), "ms per text": ("batch_seconds", 1000)}.get(
            row["label"], ("seconds", 1)
        )
        value = paper("normxlogit_costs").get((measure, tokens, method))
        return copied(None if value is None else scale * value)
    model, layers, dtype = row["model"].split(", ")
    frame = facts.root.bench("lrp")
    frame = frame[(frame["part"] == "table 4") & (frame["model"] == model) & (frame["device"] == row["device"])]
    frame = frame[(frame["dtype"] == dtype) & (frame["method"] == method) & (frame["length"] == int(tokens))]
    if frame.empty or row["label"] == "ms per text":
        return UNDEFINED
    if row["label"] == "texts":
        peak = frame[frame["measure"] == "peak_bytes"].iloc[-1]
        memory = json.loads(peak["details"])["memory"]
        room = float(memory.removesuffix(" GiB")) * GIB - 4 * bert_base(int(layers.removesuffix(" layers")))
        return number(room // peak["value"])
    timing = frame[frame["measure"] == "median"].iloc[-1]
    interval = (Range.exact(timing["q1"]), Range.exact(timing["q3"]))
    return number(timing["value"], int(timing["n"]), interval)


def bert_base(layers: int) -> int:
    """Parameters of BERT's base model with so many layers and its head for masked words, whose matrix is tied."""
    width, inner, words = 768, 3072, 30522
    norm = 2 * width
    embeddings = (words + 512 + 2) * width + norm
    block = 4 * (width * width + width) + 2 * width * inner + inner + width + 2 * norm
    return embeddings + layers * block + width * width + width + norm + words


@cache
def model_files(facts: Facts, model: str) -> Path | None:
    """The folder of a model's files, where it is on this machine."""
    [name] = [entry["id"] for entry in facts.root.config["models"] if entry["name"] == model]
    demo = HERE / "evaluation" / "benchmark" / "demo" / "models" / name.removeprefix("demo/")
    return next((folder for folder in (demo, Path(name)) if (folder / "config.json").exists()), None)


def size(facts: Facts, row: Row) -> Expected | Left:
    """Millions of parameters, layers, heads and width, from a model's files; tied parameters stand in them once."""
    folder = model_files(facts, row["model"])
    if folder is None:
        return Left("sizes of models whose files are not on this machine")
    if row["label"] != "parameters":
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return number(next(config[name] for name in SIZES[row["label"]] if name in config))
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = json.loads(opened.read(struct.unpack("<Q", opened.read(8))[0]))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return number(total / 1e6) if total else Left("sizes of models whose weights are not in safetensors")


@cache
def costs() -> dict[str, str]:
    """The cost of each method in forwards of a sample of 30 tokens, as the documentation tells it."""
    lines = (HERE / "docs" / "methods.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines if line.startswith("| `")]
    return {cells[1].strip("`"): cells[5] for cells in rows if len(cells) == 9}


def forwards(method: str, explained: int) -> Expected | Left:
    """Forwards of a sample: a pass, and a backward for each of the numbers that are `explained`."""
    match = re.fullmatch(r"([\d.]+)( \+ b)?", costs().get(method.removesuffix("_vit"), ""))
    if match is None or float(match[1]) > 10:
        return Left(
            "forwards of methods whose cost depends on the text's length: the documentation has those of 30 tokens"
        )
    return number(float(match[1]) + (explained if match[2] else 0))


def of_a_paper(row: Row, group: str) -> Expected | None:
    """A column of an overview that a paper's models have: "PAPER: task · model"."""
    name, _, column = group.partition(": ")
    file = {"AttnLRP": "attnlrp", "NormXLogit": "normxlogit"}.get(name)
    if file is None:
        return None
    task, model = column.split(" · ")
    return copied(paper(file).get((task, model, METHODS.get(row["method"], ""), MEASURE_NAMES[row["label"]])))


TABLES = {"table8": table8, "seconds_by_length": texts_by_length, "largest_batches": texts_by_length}
