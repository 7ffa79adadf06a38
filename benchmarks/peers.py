"""`closelook bench peers`: the speed of closelook.explain and of other packages on the same texts, on a CPU.

Each package runs in the Python that --captum or --lxt names, which has it installed; without that option it is
left out. Models have random weights, the same in all processes, and the shapes of GPT-2 and of BERT as a classifier of
two labels. Texts are explained by a method that both packages have (gradient x input; with lxt AttnLRP), and relevance
must be equal. Packages take turns. closelook chooses its own batches, and of the other packages the best of a few
batch sizes counts. Each process has one thread, and its processor seconds are counted, because other programs on the
machine hardly change them.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

import closelook
from benchmarks.harness import Bench, Options
from benchmarks.models import alone, drawn, geometry_of, title_of
from closelook.evaluation.benchmark.demo import model_dir
from closelook.jobs.bench.record import summary
from closelook.jobs.geometries import Geometry
from closelook.jobs.methods import METHODS
from closelook.lrp_core import ModelView
from closelook.lrp_core.records.types import UserError

SCRIPT = Path(__file__).with_name("peers_script.py")
#: Geometries, with the labels of a classifier.
SUBJECTS: dict[str, tuple[str, ...]] = {"gpt2": (), "bert-base": ("first", "second")}
BATCHES = (1, 8, 32)  # of other packages
COMPARED = 20  # texts whose relevance is compared
#: Fields of a transformers config in versions 4 and 5 alike; the family names further ones.
_FIELDS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "tie_word_embeddings")


#: Other packages, with the method that both they and we have, the largest difference as a share of the largest
#: relevance, and the geometries that they explain.
PEERS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "captum": ("gradient_x_input", 1e-4, ("gpt2", "bert-base")),
    "lxt": ("attnlrp", 1e-3, ("gpt2", "bert-base")),
}


@dataclass(frozen=True)
class Subject:
    """A model and the texts that are explained; `targets` are ids of tokens, or numbers of labels."""

    geometry: Geometry
    labels: tuple[str, ...]
    view: ModelView
    tokenizer: Any
    texts: list[str]
    targets: list[int]

    def seconds(self, method: str) -> float:
        """Processor seconds in which closelook.explain explains all texts."""
        asked = {"label": [self.labels[target] for target in self.targets]} if self.labels else {"target": self.targets}
        known = {"model": self.view.model, "tokenizer": self.tokenizer, "explanation": "target", "progress": False}
        start = time.process_time()
        explained: Any = closelook.explain(self.texts, method=method, **known, **asked)
        seconds = time.process_time() - start
        if explained.errors:
            raise RuntimeError(f"closelook explained not all texts: {explained.errors}")
        return seconds

    def relevance(self, method: str, index: int) -> torch.Tensor:
        """The relevance [T] of the token embeddings of a text, explained alone."""
        ids = self.tokenizer(self.texts[index])["input_ids"]
        position = 0 if self.labels else len(ids) - 1
        row = {"input_ids": ids, "position": position, "target_id": self.targets[index], "foil_id": None}
        return METHODS[method](self.view, alone(row), explanation="target", embedding="partial").tokens[0]

    def by_peer(self, peer: str, python: str, folder: str, batches: Sequence[int], count: int | None = None) -> Any:
        """The answer of the script in another interpreter. Raises UserError if it fails."""
        order = _described(self.geometry, self.labels) | {"peer": peer, "batches": batches}
        order |= {"weights": f"{folder}/{self.geometry.name}", "tokenizer": str(model_dir(self.geometry.family))}
        order |= {"texts": self.texts[:count], "targets": self.targets[:count]}
        order["pad_token"] = self.tokenizer.pad_token or self.tokenizer.eos_token
        command = [python, "-I", str(SCRIPT)]
        try:
            done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True)
        except OSError as error:
            raise UserError(f"--{peer} {python}: {error.strerror}") from None
        if done.returncode:
            raise UserError(f"--{peer} {python}: {(done.stderr.strip().splitlines() or ['no error printed'])[-1]}")
        return json.loads(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all packages on all shapes; see `--help`. Returns the result as JSON."""
    options = Options("peers", __doc__, SUBJECTS)
    for peer in PEERS:
        options.add_argument(f"--{peer}", metavar="PYTHON", help=f"an interpreter that has {peer} installed")
    options.number("--layers", 4, "of each model, at most", quick=2)
    options.number("--texts", 200, "explained by each", quick=6)
    options.number("--repeats", 3, "of all texts", quick=1)
    options.set_defaults(dtype="float32")
    torch.set_num_threads(1)
    results = options.begin(arguments)
    with tempfile.TemporaryDirectory(prefix="closelook-bench-") as folder:
        for name, peer in itertools.product(results.chosen.parts, PEERS):
            geometry = geometry_of(name, results.quick, results.chosen.layers)
            bench = results.about(geometry=title_of(geometry, results.quick))
            python = getattr(results.chosen, peer)
            if python is None:
                print(f"{bench.title}: {peer} is left out, --{peer} names no interpreter", flush=True)
            elif name in PEERS[peer][2]:
                subject = _subject(geometry, SUBJECTS[name], bench, folder)
                _against(bench, subject, peer, python, folder)
    return results.finish()


def _subject(geometry: Geometry, labels: tuple[str, ...], bench: Bench, folder: str) -> Subject:
    """A model whose weights are saved for the other packages, with texts in the demo's words."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir(geometry.family))
    view = drawn(geometry, bench.chosen, labels)
    weights = {name: tensor.contiguous().clone() for name, tensor in view.model.state_dict().items()}
    save_file(weights, f"{folder}/{geometry.name}")
    texts = _texts(bench.chosen.texts)
    known = list(range(len(labels)))
    if not labels:
        pieces = [tokenizer.tokenize(word)[0] for word in (" dull", " fine", " boring", " here")]
        known = [tokenizer.vocab[piece] for piece in pieces]
    targets = [known[index % len(known)] for index in range(len(texts))]
    return Subject(geometry, labels, view, tokenizer, texts, targets)


def _texts(count: int) -> list[str]:
    """Different sentences of the demo's language, of several lengths."""
    adjectives = ("old", "tall", "young", "small", "blue", "lucky", "golden", "horrible", "brilliant")
    nouns = ("telescope", "ship", "wolf", "uncle", "waitress", "box", "map", "door")
    ends = ("looked dull today", "was never quite fine", "that followed the clocks looked boring", "was here", "saw")
    every = itertools.product(adjectives, nouns, ends)
    return [f"The {adjective} {noun} {end}" for adjective, noun, end in itertools.islice(every, count)]


def _described(geometry: Geometry, labels: tuple[str, ...]) -> dict[str, Any]:
    """A description of the geometry's model from which transformers 4 and 5 build the same model."""
    config, family = geometry.config(), geometry.model_family
    fields = [*_FIELDS, family.max_length_field, family.feed_forward_field]
    sizes = {name: getattr(config, name) for name in fields}
    kind = family.kind.with_labels if labels else family.kind
    assert kind is not None
    if labels:
        sizes["num_labels"] = len(labels)
    return {"family": family.name, "auto": kind.auto, "sizes": sizes}


def _against(bench: Bench, subject: Subject, peer: str, python: str, folder: str) -> None:
    """Measure the texts a second by us and by another package, and the largest difference of relevance."""
    method, rounding, _ = PEERS[peer]
    answer = subject.by_peer(peer, python, folder, [1], COMPARED)
    worst = 0.0
    for index, other in enumerate(answer["relevance"]):
        relevance = subject.relevance(method, index)
        worst = max(worst, float((relevance - torch.tensor(other)).abs().max() / relevance.abs().max()))
    bench.ratio(f"{method}, difference from {peer}", worst, rounding, "lower")
    subject.seconds(method)  # warms up
    ours: list[float] = []
    theirs: dict[str, list[float]] = {str(size): [] for size in BATCHES}
    for _ in range(bench.chosen.repeats):
        ours.append(subject.seconds(method))
        for size, seconds in subject.by_peer(peer, python, folder, BATCHES)["seconds"].items():
            theirs[size].append(seconds)
    batch, fastest = min(theirs.items(), key=lambda item: sum(item[1]))
    for package, taken in (("closelook", ours), (peer, fastest)):
        rate = len(subject.texts) / summary(taken)["median"]
        bench.row(peer=peer, method=method, package=package, cpu_s=summary(taken), texts_per_s=rate)
    versions = ", ".join(f"{package} {number}" for package, number in answer["versions"].items())
    name = f"{method}, texts a second / {peer}"
    bench.paired(name, (fastest, ours), 1.5, "higher", peer=versions, batch=int(batch))
