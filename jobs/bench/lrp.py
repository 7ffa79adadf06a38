"""`closelook bench lrp`: what gradient-family explanations cost, after Close Look's table 8, against what is promised.

Random weights of real geometries; sample lengths follow the sva task. Runs without Ray, on a CPU or a GPU.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from jobs.bench.harness import Bench, device_name, interleave, paired_ratio, parser, summary, synchronise
from jobs.geometries import GEOMETRIES, Geometry
from lrp_core import METHODS, Batch, ModelView, Request, random_model
from lrp_core.explicit import EPSILON, relevance_flow
from lrp_core.gradients import READINGS, attribution, explain_many, objective
from lrp_core.memory import peak_memory
from lrp_core.scope import rules_on

#: Deciles of the lengths of the first 1000 sva samples: prefixes under GPT-2's tokenizer, whole sentences.
LENGTHS = {"causal": (4, 5, 6, 7, 8, 9, 10, 12, 16, 26), "masked": (14, 18, 21, 24, 27, 31, 34, 39, 44, 54)}
#: On a CPU, models of more parameters get fewer samples by default and skip the parts that compare batchings.
_LARGE = 1_000_000_000


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every part on every geometry; see `--help`. Returns the JSON."""
    options = parser(__doc__ or "")
    options.add_argument("--samples", type=int, help="samples of batch size 1 (default 40; large models 10; quick 3)")
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help="repeat for several")
    options.add_argument("--dtype", default="float32")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.parse_args(arguments)
    names = chosen.geometry or ["bert-base", "gpt2", "Llama-3.2-1B"]
    bench = Bench("lrp", device_name(chosen.device))
    for name in names:
        geometry = GEOMETRIES[name].shrunk() if chosen.quick else GEOMETRIES[name]
        view = _model(geometry, chosen.dtype, chosen.device)
        large = geometry.parameters > _LARGE and not chosen.device.startswith("cuda")
        samples = chosen.samples or (3 if chosen.quick else 10 if large else 40)
        batches = [batch.to(chosen.device) for batch in sva_like(view, samples)]
        table_8(bench, name, view, batches, chosen.device)
        memory(bench, name, view, chosen.device, length=32 if chosen.quick else 512)
        if not large:
            sharing(bench, name, view, batches[: max(2, samples // 8)], chosen.device)
            batching(bench, name, view, 16 if chosen.quick else 64, chosen.device)
        del view
    return bench.finish(chosen.json)


# what is measured


def table_8(bench: Bench, name: str, view: ModelView, batches: Sequence[Batch], device: str) -> None:
    """Backward pass and aggregation at batch size 1: plain gradient x input, lrp, attnlrp, explicit attnlrp."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    methods = ("gradient_x_input", "lrp", "attnlrp", "attnlrp_explicit")
    for method in methods:
        _once(view, batches[0], method, device)  # warm up
    for batch in batches:
        for method in methods:
            seconds.setdefault(method, []).append(_once(view, batch, method, device))
    backward = {method: [after for _, after in pairs] for method, pairs in seconds.items()}
    whole = {method: [before + after for before, after in pairs] for method, pairs in seconds.items()}
    for method, values in backward.items():
        milliseconds = {key: value * 1e3 if key != "n" else value for key, value in summary(values).items()}
        forward_s = summary([before for before, _ in seconds[method]])["median"]
        bench.row(part="table_8", geometry=name, method=method, **milliseconds, unit="ms", forward_s=forward_s)
    plain = backward["gradient_x_input"]
    for method, target in (("attnlrp", 1.05), ("lrp", 0.95)):
        ratio = paired_ratio(backward[method], plain)
        bench.ratio(f"{name}: {method} backward / plain", ratio.pop("median"), target, "lower", **ratio)
    ratio = paired_ratio(backward["attnlrp_explicit"], backward["attnlrp"])
    target = 1.6 if device.startswith("cuda") else 1.15
    bench.ratio(f"{name}: explicit / attnlrp backward", ratio.pop("median"), target, "higher", **ratio)
    total = paired_ratio(whole["attnlrp"], whole["gradient_x_input"])
    bench.row(part="forward and backward", geometry=name, method="attnlrp / plain", **total, unit="ratio")


def sharing(bench: Bench, name: str, view: ModelView, batches: Sequence[Batch], device: str) -> None:
    """Five methods, target and foil, both embeddings: together, and one run per explanation."""
    requests = [
        Request(method, explanation, embedding)
        for method in READINGS
        for explanation in METHODS[method].explanations
        for embedding in METHODS[method].embeddings
    ]

    def together(batch: Batch) -> None:
        explain_many(view, batch, requests)

    def separately(batch: Batch) -> None:
        for request in requests:
            explain_many(view, batch, [request])

    together_s, separately_s = [], []
    for batch in batches:
        runs = {"together": partial(together, batch), "separately": partial(separately, batch)}
        seconds = interleave(runs, repeats=1, warmup=0, device=device)
        together_s += seconds["together"]
        separately_s += seconds["separately"]
    ratio = paired_ratio(together_s, separately_s)
    bench.row(part="sharing", geometry=name, explanations=len(requests), **summary(together_s), unit="s")
    bench.ratio(f"{name}: all explanations together / apart", ratio.pop("median"), 0.5, "lower", **ratio)


def batching(bench: Bench, name: str, view: ModelView, size: int, device: str) -> None:
    """Samples per second of attnlrp in length-bucketed batches of `size`, against batch size 1."""
    rows = _rows(view, 4 * size)
    by_length = sorted(rows, key=lambda row: len(row["input_ids"]))
    buckets = [Batch.collate(by_length[i : i + size], 0) for i in range(0, len(rows), size)]
    alone = [Batch.collate([row], 0) for row in random.Random(0).sample(rows, size // 2)]

    def run(batches: Sequence[Batch]) -> float:
        synchronise(device)
        start = time.perf_counter()
        for batch in batches:
            explain_many(view, batch, [Request("attnlrp")])
        synchronise(device)
        return (time.perf_counter() - start) / sum(len(batch) for batch in batches)

    seconds = interleave({"one": lambda: run(alone), "bucketed": lambda: run(buckets)}, repeats=3, device=device)
    ratio = paired_ratio(seconds["one"], seconds["bucketed"])
    target = 20.0 if device.startswith("cuda") else 2.5
    bench.row(part="batching", geometry=name, batch=size, samples_per_s=1 / summary(seconds["bucketed"])["median"])
    bench.ratio(f"{name}: bucketed / batch 1 throughput", ratio.pop("median"), target, "higher", **ratio)


def memory(bench: Bench, name: str, view: ModelView, device: str, length: int) -> None:
    """Most bytes held beyond weights and inputs while one sample of `length` tokens is explained."""
    batch = _batch([_row(view, length, random.Random(0))]).to(device)
    peaks = {}
    for method in ("gradient_x_input", "lrp", "attnlrp"):
        with peak_memory(device) as peak:
            _once(view, batch, method, device)
        peaks[method] = peak.peak_bytes
        bench.row(part="memory", geometry=name, method=method, length=length, peak_bytes=peaks[method])
    bench.ratio(f"{name}: attnlrp peak bytes / plain", peaks["attnlrp"] / peaks["gradient_x_input"], 1.1, "lower")


# how it is measured


def _once(view: ModelView, batch: Batch, method: str, device: str) -> tuple[float, float]:
    """Seconds of the forward pass and of backward plus aggregation, contrastive, full embeddings.

    Plain gradient x input is the stock model, without any rule of ours.
    """
    if method == "attnlrp_explicit":
        return _explicit_once(view, batch, device)
    rules: AbstractContextManager = (
        nullcontext() if method == "gradient_x_input" else rules_on(view, [READINGS[method].composite])
    )
    with torch.enable_grad(), rules:
        token, full = view.embed(batch)
        return _timed(view, batch, token.detach().requires_grad_(), full.detach(), device)


def _timed(view: ModelView, batch: Batch, token: torch.Tensor, full: torch.Tensor, device: str) -> tuple[float, float]:
    synchronise(device)
    start = time.perf_counter()
    explained = objective(view.logits(view.hidden(batch, token), batch), "contrastive")
    synchronise(device)
    middle = time.perf_counter()
    (gradient,) = torch.autograd.grad(explained.sum(), token)
    attribution(gradient, full, batch.attention_mask, READINGS["attnlrp"].measure)
    synchronise(device)
    return middle - start, time.perf_counter() - middle


def _explicit_once(view: ModelView, batch: Batch, device: str) -> tuple[float, float]:
    with torch.enable_grad():
        token = view.embed(batch)[0].detach().requires_grad_()
        synchronise(device)
        start = time.perf_counter()
        with relevance_flow(view, EPSILON):
            state = view.prediction(view.hidden(batch, token), batch)
        explained = objective(view.unembed(final := state.detach().requires_grad_(), batch), "contrastive")
        synchronise(device)
        middle = time.perf_counter()
        (gradient,) = torch.autograd.grad(explained.sum(), final)
        (relevance,) = torch.autograd.grad(state, token, final.detach() * gradient)
        relevance.sum(-1).masked_fill(batch.attention_mask == 0, 0)
        synchronise(device)
        return middle - start, time.perf_counter() - middle


# what it is measured on


def sva_like(view: ModelView, count: int) -> list[Batch]:
    """Single samples whose lengths follow the sva task."""
    return [_batch([row]) for row in _rows(view, count)]


def _rows(view: ModelView, count: int) -> list[dict]:
    source = random.Random(0)
    lengths = LENGTHS["masked" if view.is_masked_lm else "causal"]
    drawn = [lengths[i % len(lengths)] for i in range(count)]
    source.shuffle(drawn)
    return [_row(view, length, source) for length in drawn]


def _row(view: ModelView, length: int, source: random.Random) -> dict:
    ids = [source.randrange(view.vocab) for _ in range(length)]
    position = length // 2 if view.is_masked_lm else length - 1
    target, foil = source.sample(range(view.vocab), 2)
    return {"input_ids": ids, "position": position, "target_id": target, "foil_id": foil}


def _batch(rows: list[dict]) -> Batch:
    return Batch.collate(rows, pad_id=0)


def _model(geometry: Geometry, dtype: str, device: str) -> ModelView:
    return random_model(geometry.config(), dtype=dtype, device=device)


if __name__ == "__main__":
    main()
