"""`make gpu`: checks a GPU against the CPU, then runs benchmarks.

It needs a Python with torch, transformers, accelerate, safetensors and numpy, and installs nothing. Each check prints
its finding, or why it was left out; a new check is a function of the device and a name in CHECKS. Then benchmarks write
their result files into the same folder. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import alti, lrp
from benchmarks.harness import peak_bytes
from closelook.jobs.bench.record import device_name, met
from closelook.jobs.geometries import GEOMETRIES
from closelook.jobs.methods import METHODS, applicable
from closelook.lrp_core import Batch, ModelView, Request, load_model, random_model, view_of
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.verification.samples import random_rows
from closelook.versions import versions

#: The benchmarks that run after the checks; others that need no Ray can be added.
BENCHES = {"lrp": lrp.main, "alti": alti.main}
SHAPES = ("bert-base", "gpt2", "Llama-3.2-1B")  # of the models, which are shrunk
#: The largest difference from the CPU's relevance, relative to the largest relevance.
TOLERANCE = {"float64": 1e-8, "bfloat16": 0.1}
LENGTHS = (9, 14, 23)  # tokens of the samples


class LeftOut(Exception):
    """A check cannot run on this machine; the message says why."""


@dataclass(frozen=True)
class Checked:
    """The outcome of a check, as checks.json has it."""

    name: str
    state: str  # passed | FAILED | left out
    finding: str  # or the reason why it failed or was left out
    seconds: float


def main(arguments: Sequence[str] | None = None) -> list[Checked]:
    """Run all checks, then the benchmarks; see `--help`. Raises SystemExit if one failed."""
    options = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    options.add_argument("--device", default="cuda", help="cuda, or cpu for a rehearsal")
    options.add_argument("--out", type=Path, default=Path("runs/gpu"), help="a folder for results files")
    options.add_argument("--check", action="append", choices=[*CHECKS, *BENCHES], help="only this one; repeat")
    chosen = options.parse_args(arguments)
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        options.exit(2, "error: torch sees no GPU here; DEVICE=cpu rehearses without one\n")
    chosen.out.mkdir(parents=True, exist_ok=True)
    device, packages = device_name(chosen.device), versions()
    print(f"{device}; {', '.join(f'{name} {number}' for name, number in packages.items())}")
    checks = []
    for name in chosen.check or [*CHECKS, *BENCHES]:
        run = partial(_bench, name, chosen.out) if name in BENCHES else CHECKS[name]
        checks.append(_checked(name, run, torch.device(chosen.device)))
        record = {"device": device, "versions": packages, "checks": [asdict(check) for check in checks]}
        (chosen.out / "checks.json").write_text(json.dumps(record, indent=1) + "\n")
    failed = [check.name for check in checks if check.state == "FAILED"]
    print(f"{len(checks) - len(failed)} of {len(checks)} without failure; results are in {chosen.out}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    return checks


def _checked(name: str, check: Callable[[torch.device], str], device: torch.device) -> Checked:
    """Run a check, print its outcome and return it."""
    start = time.monotonic()
    try:
        state, outcome = "passed", check(device)
    except LeftOut as error:
        state, outcome = "left out", str(error)
    except Exception as error:  # a check that fails must not keep the others from running
        state, outcome = "FAILED", f"{type(error).__name__}: {' '.join(str(error).split())}"
    checked = Checked(name, state, outcome, round(time.monotonic() - start, 2))
    print(f"{name}: {state} ({checked.seconds:.1f} s): {outcome}", flush=True)
    return checked


def _bench(name: str, out: Path, device: torch.device) -> str:
    """Run a benchmark, which writes its result file; with --quick in a rehearsal on a CPU."""
    quick = [] if device.type == "cuda" else ["--quick"]
    file = out / f"{name}-{device.type}.json"
    result = BENCHES[name](["--device", str(device), "--json", str(file), *quick])
    reached = sum(map(met, result["ratios"].values()))
    judged = "to which no target applies" if quick else f"{reached} met"
    return f"{len(result['ratios'])} ratios, {judged}; {file}"


# checks: each returns its finding in words, or raises


def kernel(device: torch.device) -> str:
    """Check that ALTI's fused kernel agrees with the chunked path."""
    if device.type != "cuda":
        raise LeftOut("the fused kernel runs on a GPU only: --device cuda")
    from closelook.alti.kernel import fused_on

    if not fused_on(device):
        raise AssertionError("the fused kernel does not run or gives other numbers: see the log")
    return "agrees with the chunked path"


def methods(device: torch.device) -> str:
    """Check that every method gives the CPU's relevance, in float64 and in bfloat16."""
    worst = dict.fromkeys(TOLERANCE, (0.0, ""))
    count = 0
    for shape, (dtype, tolerance) in product(SHAPES, TOLERANCE.items()):
        on_cpu, on_device = _model(shape, dtype, "cpu"), _model(shape, dtype, device)
        for name, options in _asked(on_cpu).items():
            expected = _relevance(name, on_cpu, options)
            scale = expected.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
            error = float((_relevance(name, on_device, options) - expected).abs().max() / scale)
            if not error <= tolerance:
                raise AssertionError(
                    f"{name} on {shape} in {dtype} differs by {error:.2g} from the CPU, more than {tolerance:g}"
                )
            if error > worst[dtype][0]:
                worst[dtype] = error, f"{name} on {shape}"
            count += 1
    largest = [f"{dtype} at worst {error:.1e} ({subject})" for dtype, (error, subject) in worst.items() if subject]
    return f"{count} comparisons; {'; '.join(largest) or 'no difference'}"


def out_of_memory(device: torch.device) -> str:
    """Check that a batch too large for the GPU's memory is halved until it fits, and that all rows are computed."""
    if device.type != "cuda":
        raise LeftOut("it fills the memory of a GPU, and this is none: --device cuda")
    try:
        from closelook.jobs.products.explaining import Explainer
        from closelook.jobs.runner.rows import compute_alone
    except ImportError as error:
        raise LeftOut(f"packages that jobs need are not installed ({error})") from None
    view = _model("gpt2", "float32", device)
    explainer = Explainer(view, (Request("attnlrp", "target", "full"),))
    rows = [{**row, "sample_id": str(index)} for index, row in enumerate(random_rows(view, LENGTHS[-1:] * 64))]
    peak = peak_bytes(partial(explainer.batch, rows), device)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved(device) + peak // 3
    torch.cuda.set_per_process_memory_fraction(limit / total, device)
    try:
        batches, outcome = compute_alone(explainer.batch, rows)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    explained = sum(len(batch.rows) for batch in batches)
    if not outcome.splits or explained != len(rows) or outcome.rejects:
        rejects = len(outcome.rejects)
        raise AssertionError(f"{outcome.splits} halvings, {explained} of {len(rows)} rows, {rejects} rejects")
    return f"{outcome.splits} halvings, all {explained} rows"


def offload(device: torch.device) -> str:
    """Check that a model that is offloaded, for lack of memory, gives the numbers of one that is not.

    Not its bits on a GPU: the kernels of matrix products are chosen by the addresses of weights, too.
    """
    whole = _model("Llama-3.2-1B", "float32", device)
    size = sum(parameter.nbytes for parameter in whole.model.parameters())
    limits: dict[int | str, Any] = {"cpu": size // 2}
    if device.type == "cuda":
        limits = {device.index or 0: size // 2, "cpu": size // 4}
    with tempfile.TemporaryDirectory() as folder:
        whole.model.save_pretrained(Path(folder, "model"))
        view = load_model(Path(folder, "model"), max_memory=limits, offload_dir=Path(folder, "disk"))
        for name in ("attnlrp", "lrp", "gradient_x_input"):
            expected = _relevance(name, whole, {"checkpoint": True})
            error = (_relevance(name, view, {"checkpoint": True}) - expected).abs().max() / expected.abs().max()
            if not error <= 1e-6:
                raise AssertionError(f"{name} differs by {float(error):.2g} from that of the resident model")
    return f"equal within 1e-6 with {size // 2} of {size} bytes"


def checkpointing(device: torch.device) -> str:
    """Check that checkpointing gives the same bits."""
    view = _model("gpt2", "float32", device)
    expected = _relevance("attnlrp", view, {})
    _require_equal(_relevance("attnlrp", view, {"checkpoint": True}), expected, "the relevance without it")
    return "bit-equal"


def _require_equal(relevance: Tensor, expected: Tensor, subject: str) -> None:
    """Raise AssertionError unless two relevances are bit-equal; `subject` names the expected one."""
    if not torch.equal(relevance, expected):
        raise AssertionError(f"differs by {float((relevance - expected).abs().max()):.2g} from {subject}")


_ALL = (kernel, methods, out_of_memory, offload, checkpointing)
CHECKS: Mapping[str, Callable[[torch.device], str]] = {check.__name__: check for check in _ALL}


def _model(shape: str, dtype: str, device: torch.device | str) -> ModelView:
    """A small model with random weights, of the family of a shape; the same weights on every device."""
    drawn = random_model(GEOMETRIES[shape].shrunk().config(), 0, dtype)  # a GPU draws other numbers from the seed
    moved: Any = drawn.model  # transformers' `to` is typed for models alone
    return view_of(moved.to(device))


def _relevance(name: str, view: ModelView, options: Mapping[str, Any]) -> Tensor:
    """The relevance of the samples' tokens [B, T] by a method, on the CPU, in float64."""
    batch = Batch.collate(random_rows(view, LENGTHS), pad_id=0)
    return METHODS[name](view, batch, **options).tokens.detach().cpu().double()


def _asked(view: ModelView) -> dict[str, dict[str, Any]]:
    """The methods that apply to a model, with their options: few samples or steps, so that all are fast.

    Methods that fail with a UserError, or whose package is not installed, are left out.
    """
    few = {"samples": 4, "steps": 4}
    asked = {}
    for method in applicable(view.family.capabilities):
        name = method.name
        options: dict[str, Any] = {option.name: few[option.name] for option in method.options if option.name in few}
        try:
            _relevance(name, view, options)
            asked[name] = options
        except (ImportError, UserError) as error:
            print(f"  {name} is left out: {' '.join(str(error).split())}")
    return asked


if __name__ == "__main__":
    main()
