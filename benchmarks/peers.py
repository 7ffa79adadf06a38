"""`closelook bench peers`: the speed of closelook.explain and of other packages on the same texts, on a CPU.

Each package runs in the Python that --captum, --inseq or --lxt names, which has it installed; without that option it is
left out. Models have random weights, the same in all processes, and the shapes of GPT-2 and of BERT as a classifier of
two labels. Texts are explained by a method that both packages have (gradient x input; with lxt AttnLRP), and relevance
must be equal. Packages take turns. closelook chooses its own batches, and of the other packages the best of a few
batch sizes counts. Each process has one thread, and its processor seconds are counted, because other programs on the
machine hardly change them. A bare forward and backward of the model over the tokens of these texts, in the batches that
closelook chooses, shows the time that a gradient method takes at least.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import closelook
from benchmarks.parts.context_variants import bare
from benchmarks.parts.harness import SCRATCH, Bench, parser
from benchmarks.parts.peers.interpreter import Interpreter, described
from benchmarks.parts.samples import drawn, geometry_of, title_of
from closelook.evaluation.benchmark.demo import model_dir
from closelook.jobs.bench.record import summary
from closelook.jobs.commands.questions.many import batch_size
from closelook.jobs.geometries import Geometry
from closelook.jobs.methods import METHODS
from closelook.lrp_core import Batch, ModelView
from closelook.lrp_core.records.types import UserError

SCRIPT = Path(__file__).parent / "parts" / "peers" / "script.py"
#: Geometries, with the labels of a classifier.
SUBJECTS: dict[str, tuple[str, ...]] = {"gpt2": (), "bert-base": ("first", "second")}
BATCHES = (1, 8, 32)  # of other packages
TARGET = 1.5  # texts a second over those of the other package at its best batch size
BESIDE_BARE = 1.1  # target: closelook's processor seconds over those of a bare forward and backward
_OURS = "closelook"
COMPARED = 20  # texts whose relevance is compared


@dataclass(frozen=True)
class Peer:
    """Another package, and the method that both it and we have."""

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
    """A model and the texts that are explained; `targets` are ids of tokens, or numbers of labels."""

    name: str
    geometry: Geometry
    view: ModelView
    tokenizer: Any
    folder: Path
    texts: list[str]
    targets: list[int]

    def seconds(self, method: str, count: int | None = None) -> float:
        """Processor seconds in which closelook.explain explains all texts, or the first `count`."""
        asked: dict[str, Any] = {"model": self.view.model, "tokenizer": self.tokenizer}
        asked |= {"method": method, "explanation": "target", "progress": False}
        if self.view.kind.labels:
            asked["label"] = [SUBJECTS[self.name][target] for target in self.targets[:count]]
        else:
            asked["target"] = self.targets[:count]
        start = time.process_time()
        explained = closelook.explain(self.texts[:count], **asked)
        seconds = time.process_time() - start
        assert isinstance(explained, closelook.Explanations)
        assert not explained.errors
        return seconds

    def bare_seconds(self) -> float:
        """Processor seconds of a forward and backward without rules over all texts, in the batches of closelook."""
        rows = sorted(self._rows(len(self.texts)), key=lambda row: -len(row["input_ids"]))
        taken = 0.0
        while rows:
            size = batch_size([len(row["input_ids"]) for row in rows])
            batch = Batch.collate(rows[:size], pad_id=0)
            start = time.process_time()
            bare(self.view, batch)
            taken += time.process_time() - start
            rows = rows[size:]
        return taken

    def relevance(self, method: str, count: int) -> list[torch.Tensor]:
        """The relevance [T] of the token embeddings of the first `count` texts, each explained alone."""
        batches = [Batch.collate([row], pad_id=0) for row in self._rows(count)]
        explain = partial(METHODS[method], self.view, explanation="target", embedding="partial")
        return [explain(batch).tokens[0] for batch in batches]

    def _rows(self, count: int) -> Iterator[dict[str, Any]]:
        """The first `count` texts as rows of a batch, with the target's id or the label's number."""
        for text, target in zip(self.texts[:count], self.targets, strict=False):
            ids = self.tokenizer(text)["input_ids"]
            position = 0 if self.view.kind.labels else len(ids) - 1
            yield {"input_ids": ids, "position": position, "target_id": target, "foil_id": None}


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run all packages on all shapes; see `--help`. Returns the result as JSON."""
    options = parser("peers", __doc__)
    for peer in PEERS:
        options.add_argument(f"--{peer.name}", metavar="PYTHON", help=f"an interpreter that has {peer.name} installed")
    options.layers()
    options.number("--texts", 200, "explained by each", quick=6)
    options.number("--repeats", 3, "of all texts", quick=1)
    options.set_defaults(device="cpu", dtype="float32")
    torch.set_num_threads(1)
    results = options.begin(arguments)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
        for name, labels in SUBJECTS.items():
            geometry = geometry_of(name, results.quick, results.chosen.layers)
            bench = results.about(geometry=title_of(name, geometry, results.quick) + " shrunk" * results.quick)
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
    """A model with random weights, which are saved for the other packages, and the demo's tokenizer of its family."""
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
    """Ids of tokens that are a whole word after `text`, so that Inseq, which gets words, explains the same target."""
    before = tokenizer(text)["input_ids"]
    words = []
    for token in range(len(tokenizer)):
        word = tokenizer.decode([token])
        if word[:1] == " " and word[1:].isalpha() and tokenizer(text + word)["input_ids"] == [*before, token]:
            words.append(token)
    return words


def _texts(count: int) -> list[str]:
    """`count` different sentences of words that the demo's tokenizers know."""
    adjectives = ("famous", "lucky", "golden", "horrible", "brilliant")
    nouns = ("telescope", "ship", "wolf", "uncle", "waitress", "box", "map", "door")
    ends = ("looked dull today", "was never quite fine", "that followed the clocks looked boring", "was here", "saw")
    every = itertools.product(adjectives, nouns, ends)
    return [f"The {adjective} {noun} {end}" for adjective, noun, end in itertools.islice(every, count)]


def _against(bench: Bench, subject: Subject, peer: Peer, python: str) -> None:
    """Measure the texts a second by us and by another package, and the largest difference of relevance."""
    ours: list[float] = []
    bare_s: list[float] = []
    theirs: dict[int, list[float]] = {size: [] for size in BATCHES}
    asked: dict[str, list[Any]] = {"texts": subject.texts, "targets": subject.targets}
    with Interpreter(f"--{peer.name}", python, SCRIPT, _order(subject, peer)) as other:
        some = {name: values[:COMPARED] for name, values in asked.items()}
        _compare(bench, subject, peer, other.ask({**some, "batch": 1})["relevance"])
        subject.seconds(peer.method, COMPARED)  # warms up
        for _ in range(bench.chosen.repeats):
            ours.append(subject.seconds(peer.method))
            bare_s.append(subject.bare_seconds())
            for size, seconds in theirs.items():
                seconds.append(other.ask({**asked, "batch": size})["seconds"])
    best_size, fastest = min(theirs.items(), key=lambda item: sum(item[1]))
    facts = {"peer": peer.name, "method": peer.method}
    for who, batch, taken in ((_OURS, None, ours), (peer.name, best_size, fastest)):
        cpu_s = summary(taken)
        rate = len(subject.texts) / cpu_s["median"]
        bench.row(**facts, package=who, batch=batch, cpu_s=cpu_s, texts_per_s=rate)
    versions = ", ".join(f"{package} {number}" for package, number in other.versions.items())
    name = f"{peer.method}, texts a second / {peer.name}"
    bench.paired(name, (fastest, ours), TARGET, "higher", peer=versions, batch=best_size)
    beside_bare = f"{peer.method} beside {peer.name}, processor seconds / bare forward and backward"
    bench.paired(beside_bare, (ours, bare_s), BESIDE_BARE)


def _order(subject: Subject, peer: Peer) -> dict[str, Any]:
    """The description of the model and the tokenizer from which the other package's script builds them."""
    kind, labels = subject.geometry.model_family.kind, len(SUBJECTS[subject.name])
    order = described(subject.geometry) | {"peer": peer.name, "labels": labels}
    if labels:
        assert kind.with_labels is not None
        order |= {"auto": kind.with_labels.auto, "sizes": order["sizes"] | {"num_labels": labels}}
    order["weights"] = str(subject.folder / f"{subject.name}.safetensors")
    return order | {"tokenizer": str(model_dir(subject.geometry.family)), "pad_token": _pad(subject.tokenizer)}


def _pad(tokenizer: Any) -> str:
    """A token to pad with; any token will do, since padding is masked."""
    return tokenizer.pad_token or tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)


def _compare(bench: Bench, subject: Subject, peer: Peer, theirs: Sequence[Sequence[float]]) -> None:
    """Add the largest difference of relevance as a ratio. Raises UserError if the numbers of tokens differ."""
    ours = subject.relevance(peer.method, len(theirs))
    worst = 0.0
    for relevance, other in zip(ours, theirs, strict=True):
        if len(relevance) != len(other):
            raise UserError(
                f"{peer.name} gives relevance of {len(other)} tokens for a text of {len(relevance)}: they cannot be "
                "compared"
            )
        difference = (relevance - torch.tensor(other)).abs().max() / relevance.abs().max()
        worst = max(worst, float(difference))
    bench.ratio(f"{peer.method}, difference from {peer.name}", worst, peer.rounding, "lower")
