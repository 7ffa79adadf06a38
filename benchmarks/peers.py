"""`closelook bench peers`: the same texts through closelook.explain and through other packages' calls, on a CPU.

Each peer runs in the interpreter that --captum, --inseq or --lxt names, which has it installed; without one it is left
out by name. Models have random weights of GPT-2 and of BERT as a classifier of two labels, the same in all processes.
Texts are explained by the method that both have (gradient x input, or AttnLRP of lxt), whose relevance must be equal;
a process takes turns with ours, and each has its best batch size of a few.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import closelook
from benchmarks.harness import SCRATCH, Bench, parser
from benchmarks.parts.peer import Interpreter, described
from benchmarks.parts.samples import drawn, geometry_of
from evaluation.benchmark.demo import model_dir
from jobs.bench.record import summary
from jobs.geometries import Geometry
from jobs.methods import METHODS
from lrp_core import Batch, ModelView
from lrp_core.records.types import UserError

SCRIPT = Path(__file__).parent / "parts" / "peers_script.py"
SUBJECTS: dict[str, tuple[str, ...]] = {
    "gpt2": (),
    "bert-base": ("first", "second"),
}  # geometries, with the labels of a classifier
BATCHES = (1, 8, 32)
TARGET = 1.5  # texts a second, of the peer's at its best batch size
COMPARED = 20  # texts whose relevance is compared


@dataclass(frozen=True)
class Peer:
    """A package, and which of our methods is the same as its own."""

    name: str
    method: str
    rounding: float  # the largest difference, as a share of the largest relevance
    geometries: tuple[str, ...] = tuple(SUBJECTS)


PEERS = (
    Peer("captum", "gradient_x_input", 1e-4),
    Peer("inseq", "gradient_x_input", 1e-4, ("gpt2",)),
    Peer("lxt", "attnlrp", 1e-3),
)


@dataclass(frozen=True)
class Subject:
    """A model and the texts that are explained; `targets` are numbers of tokens or labels."""

    name: str
    geometry: Geometry
    view: ModelView
    tokenizer: Any
    folder: Path
    texts: list[str]
    targets: list[int]

    def ours(self, method: str, size: int) -> closelook.Explanations:
        """closelook.explain of all texts, in batches of so many."""
        asked: dict[str, Any] = {"model": self.view.model, "tokenizer": self.tokenizer, "batch": size}
        asked |= {"method": method, "explanation": "target", "progress": False}
        if self.view.kind.labels:
            asked["label"] = [SUBJECTS[self.name][target] for target in self.targets]
        else:
            asked["target"] = self.targets
        explained = closelook.explain(self.texts, **asked)
        assert isinstance(explained, closelook.Explanations)
        return explained

    def relevance(self, method: str, count: int) -> list[torch.Tensor]:
        """Relevance of the token embeddings of the first texts, each alone."""
        told = []
        for text, target in zip(self.texts[:count], self.targets, strict=False):
            ids = self.tokenizer(text)["input_ids"]
            position = 0 if self.view.kind.labels else len(ids) - 1
            row = {"input_ids": ids, "position": position, "target_id": target, "foil_id": None}
            batch = Batch.collate([row], pad_id=0)
            told.append(METHODS[method](self.view, batch, explanation="target", embedding="partial").tokens[0])
        return told


def main(arguments: Sequence[str] | None = None) -> dict:
    """Runs every peer on every geometry; see `--help`. Returns the JSON."""
    options = parser("peers", __doc__)
    for peer in PEERS:
        options.add_argument(f"--{peer.name}", metavar="PYTHON", help=f"an interpreter that has {peer.name} installed")
    options.layers()
    options.number("--texts", 200, "explained by each", quick=6)
    options.number("--repeats", 3, "of all texts", quick=1)
    options.set_defaults(device="cpu", dtype="float32")
    results = options.begin(arguments)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
        for name, labels in SUBJECTS.items():
            geometry = geometry_of(name, results.quick, results.chosen.layers)
            whole = geometry_of(name, results.quick)
            some = f", {geometry.layers} of {whole.layers} layers" if geometry.layers < whole.layers else ""
            bench = results.about(geometry=f"{name}{' shrunk' * results.quick}{some}")
            subject = _subject(name, geometry, labels, bench, Path(folder))
            for peer in PEERS:
                python = getattr(results.chosen, peer.name)
                if python is None:
                    print(f"{bench.title}: {peer.name} is left out, --{peer.name} names no interpreter", flush=True)
                elif name not in peer.geometries:
                    print(f"{bench.title}: {peer.name} is left out, it does not explain such a model", flush=True)
                else:
                    _against(bench, subject, peer, python)
    return results.finish()


def _subject(name: str, geometry: Geometry, labels: Sequence[str], bench: Bench, folder: Path) -> Subject:
    """A model of random weights, which are saved for the peers, with the demo's tokenizer of its family."""
    from transformers import AutoTokenizer

    view = drawn(geometry, bench.chosen, labels=labels)
    tokenizer = AutoTokenizer.from_pretrained(model_dir(geometry.family))
    weights = {key: value.contiguous().clone() for key, value in view.model.state_dict().items()}
    save_file(weights, folder / f"{name}.safetensors")
    texts = _texts(bench.chosen.texts)
    source = random.Random(0)
    choices = range(len(labels)) if labels else _words(tokenizer, texts[0])
    targets = [source.choice(choices) for _ in texts]
    return Subject(name, geometry, view, tokenizer, folder, texts, targets)


def _words(tokenizer: Any, text: str) -> Sequence[int]:
    """Tokens that are read as one where their word stands behind the text, so that Inseq is asked for the same."""
    before = tokenizer(text)["input_ids"]
    words = []
    for token in range(len(tokenizer)):
        word = tokenizer.decode([token])
        if word[:1] == " " and word[1:].isalpha() and tokenizer(text + word)["input_ids"] == [*before, token]:
            words.append(token)
    return words


def _texts(count: int) -> list[str]:
    """Different sentences of the demo's words."""
    adjectives = ("famous", "lucky", "golden", "horrible", "brilliant")
    nouns = ("telescope", "ship", "wolf", "uncle", "waitress", "box", "map", "door")
    ends = ("looked dull today", "was never quite fine", "that followed the clocks looked boring", "was here", "saw")
    every = itertools.product(adjectives, nouns, ends)
    return [f"The {adjective} {noun} {end}" for adjective, noun, end in itertools.islice(every, count)]


def _against(bench: Bench, subject: Subject, peer: Peer, python: str) -> None:
    """Texts a second by ours and by the peer, and the largest difference of their relevance."""
    seconds: dict[tuple[str, int], list[float]] = {}
    kind, labels = subject.geometry.model_family.kind, len(SUBJECTS[subject.name])
    order = described(subject.geometry) | {"peer": peer.name, "labels": labels}
    if labels:
        assert kind.with_labels is not None
        order |= {"auto": kind.with_labels.auto, "sizes": order["sizes"] | {"num_labels": labels}}
    order["weights"] = str(subject.folder / f"{subject.name}.safetensors")
    order |= {"tokenizer": str(model_dir(subject.geometry.family)), "pad_token": _pad(subject.tokenizer)}
    asked: dict[str, list[Any]] = {"texts": subject.texts, "targets": subject.targets}
    with Interpreter(f"--{peer.name}", python, SCRIPT, order) as other:
        some = {name: values[:COMPARED] for name, values in asked.items()}
        theirs = other.ask({**some, "batch": 1})["relevance"]
        _compare(bench, subject, peer, theirs)
        for _ in range(bench.chosen.repeats):
            for size in BATCHES:
                timed = bench.timed({peer.method: partial(subject.ours, peer.method, size)}, 1, {"batch": size})
                seconds.setdefault(("closelook", size), []).append(timed[peer.method][0])
                seconds.setdefault((peer.name, size), []).append(other.ask({**asked, "batch": size})["seconds"])
    best = {}
    for who in ("closelook", peer.name):
        best[who] = min((taken for (name, _), taken in seconds.items() if name == who), key=sum)
    count = len(subject.texts)
    for who, taken in best.items():
        rate = count / min(taken)
        bench.row(peer=peer.name, method=peer.method, package=who, wall_s=summary(taken), texts_per_s=rate)
        print(f"{bench.title}: {peer.method}, {who:9} {rate:8.1f} texts/s", flush=True)
    versions = ", ".join(f"{package} {number}" for package, number in other.versions.items())
    ratio = min(best[peer.name]) / min(best["closelook"])
    bench.ratio(f"{peer.method}, texts a second / {peer.name}", ratio, TARGET, "higher", peer=versions)


def _pad(tokenizer: Any) -> str:
    """A token to pad with; what it is plays no part, since it is masked."""
    return tokenizer.pad_token or tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)


def _compare(bench: Bench, subject: Subject, peer: Peer, theirs: Sequence[Sequence[float]]) -> None:
    """Record the largest difference. Raises UserError for relevance of other tokens."""
    ours = subject.relevance(peer.method, len(theirs))
    worst = 0.0
    for own, other in zip(ours, theirs, strict=True):
        if len(own) != len(other):
            raise UserError(f"{peer.name} tells of {len(other)} tokens where there are {len(own)}: nothing is compared")
        difference = (own - torch.tensor(other)).abs().max() / own.abs().max()
        worst = max(worst, float(difference))
    bench.ratio(f"{peer.method}, difference from {peer.name}", worst, peer.rounding, "lower")
