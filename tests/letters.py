"""``python -m tests.letters [MODEL]``: how often each method finds the letter that a sound is spelled with.

A small BART spells words to sounds (`models/g2p-bart` under CLOSELOOK_SHARED, or the folder MODEL of another such
model, whose `phonemes` write sounds). The truth is a monotone alignment of
letters and sounds that EM finds over many words, apart from the model's attention: a sound comes from one letter, and
no sound from a letter before its predecessor's. There is no dictionary beside the model, so which of its spellings are
right is read from the alignment too: words are left out whose sounds are the least likely given their letters, 30 % of
them, as many as the model is known to miss. What is explained are the sounds of the rest, each by its logit after the
sounds before it (stress marks, which have no letter, are not asked about).
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.statistics import Comparison, compare
from closelook.lrp_core import METHODS, Batch, ModelView, load_model
from closelook.lrp_core.readers.attention import around_attention
from tests.external import SHARED

MODEL = SHARED / "models" / "g2p-bart"
TEXTS = SHARED / "data" / "wikitext" / "wiki.test.raw"
WORDS, MISSED = 200, 0.3
STRESS = "ˈˌ"
#: Sounds that a letter may stand for before anything is counted are all alike: EM starts from a uniform table.
ROUNDS = 20
CROSS_ATTENTION, FOUND = "cross-attention", "found"


@dataclass(frozen=True)
class Spelled:
    """A word, what the decoder saw and said, and the letter that each of its sounds comes from."""

    word: str
    input_ids: list[int]  # letters between the tokens that begin and end a word
    decoder_ids: list[int]  # start tokens and sounds, without the end token
    sounds: tuple[int, ...]  # positions in `decoder_ids` that are asked about
    letters: tuple[int, ...]  # of each, the place in `input_ids`


def frequent_words(n: int) -> list[str]:
    """The `n` most frequent words of four to nine small letters."""
    counts = Counter(re.findall(r"(?<![\w@])[a-z]{4,9}(?![\w@])", TEXTS.read_text(encoding="utf-8")))
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:n]]


def spelled(view: ModelView, folder: Path = MODEL, n: int = WORDS) -> list[Spelled]:
    """`n` words that the model gets right, by the likelihood of their alignment, in the order of frequency."""
    reader, writer = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder / "phonemes")
    stress = set(writer.convert_tokens_to_ids(list(STRESS)))
    words = frequent_words(2 * n)
    spoken, known = {}, {}
    for word in words:
        ids = reader(word)["input_ids"]
        out = view.model.generate(torch.tensor([ids]), max_length=40, num_beams=1, do_sample=False)[0].tolist()
        spoken[word] = (ids, out[: out.index(view.config.eos_token_id)] if view.config.eos_token_id in out else out)
        positions = [at for at, token in enumerate(spoken[word][1]) if token > 3 and token not in stress]
        if positions:
            known[word] = (positions, [spoken[word][1][at] for at in positions])
    pairs = [(word, sounds) for word, (_, sounds) in known.items()]
    aligned, likelihood = align(pairs)
    least = np.quantile(likelihood, MISSED)
    rows = zip(pairs, aligned, likelihood, strict=True)
    kept = [(word, letters) for (word, _), letters, value in rows if value >= least][:n]
    return [
        Spelled(word, *spoken[word], tuple(known[word][0]), tuple(1 + letter for letter in letters))
        for word, letters in kept
    ]


def align(pairs: list[tuple[str, list[int]]]) -> tuple[list[list[int]], np.ndarray]:
    """The letter of every sound of each (word, sounds), and the log-likelihood of a sound on average.

    A hidden Markov model whose states are letters: it stays, or goes on to any later one, with equal chances, and
    emits a sound by the letter. Expectations are those of forward and backward sums; the best path is Viterbi's.
    """
    table: dict[str, Counter[int]] = {}
    sounds = sorted({sound for _, spoken in pairs for sound in spoken})
    chances = {letter: dict.fromkeys(sounds, 1 / len(sounds)) for word, _ in pairs for letter in word}
    for _ in range(ROUNDS):
        table = {letter: Counter(dict.fromkeys(sounds, 1e-3)) for letter in chances}
        for word, spoken in pairs:
            emitted, moves = _tables(word, spoken, chances)
            forward, backward = _sums(emitted, moves)
            shares = forward * backward
            for sound, row in zip(spoken, shares / shares.sum(-1, keepdims=True), strict=True):
                for letter, share in zip(word, row, strict=True):
                    table[letter][sound] += share
        chances = {letter: {s: c / sum(counts.values()) for s, c in counts.items()} for letter, counts in table.items()}
    paths, likelihood = [], []
    for word, spoken in pairs:
        emitted, moves = _tables(word, spoken, chances)
        paths.append(_best_path(emitted, moves))
        likelihood.append(np.log(_sums(emitted, moves)[0][-1].sum()) / len(spoken))
    return paths, np.array(likelihood)


def _tables(word: str, spoken: list[int], chances: dict[str, dict[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Chances of each sound at each letter [sounds, letters], and of moves from letter to letter."""
    emitted = np.array([[chances[letter][sound] for letter in word] for sound in spoken])
    moves = np.triu(np.ones((len(word), len(word))))
    return emitted, moves / moves.sum(-1, keepdims=True)


def _sums(emitted: np.ndarray, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    forward, backward = np.zeros_like(emitted), np.ones_like(emitted)
    forward[0] = emitted[0] / emitted.shape[1]
    for at in range(1, len(emitted)):
        forward[at] = (forward[at - 1] @ moves) * emitted[at]
    for at in range(len(emitted) - 2, -1, -1):
        backward[at] = moves @ (emitted[at + 1] * backward[at + 1])
    return forward, backward


def _best_path(emitted: np.ndarray, moves: np.ndarray) -> list[int]:
    score, back = np.log(emitted[0] / emitted.shape[1]), []
    with np.errstate(divide="ignore"):
        steps = np.log(moves)
    for row in emitted[1:]:
        reached = score[:, None] + steps
        back.append(reached.argmax(0))
        score = reached.max(0) + np.log(row)
    path = [int(score.argmax())]
    for pointers in reversed(back):
        path.append(int(pointers[path[-1]]))
    return path[::-1]


def batches(words: list[Spelled]) -> Iterator[tuple[Spelled, Batch]]:
    """For each word a batch with a row for each of its sounds, which the decoder says after those before it."""
    for word in words:
        rows = [
            {
                "input_ids": word.input_ids,
                "decoder_input_ids": word.decoder_ids[:at],
                "position": at - 1,
                "target_id": word.decoder_ids[at],
            }
            for at in word.sounds
        ]
        yield word, Batch.collate(rows, 0)


def compared(view: ModelView, words: list[Spelled], names: list[str]) -> Comparison:
    """The share of sounds whose most relevant letter is their own, by method and by the largest cross-attention.

    The sounds of a word are a cluster: words are resampled for intervals, and tests flip signs word by word.
    """
    right: dict[str, list[bool]] = defaultdict(list)
    clusters: list[int] = []
    for number, (word, batch) in enumerate(batches(words)):
        letters = torch.tensor(word.letters)
        inside = slice(1, len(word.input_ids) - 1)
        result = {CROSS_ATTENTION: _attended(view, batch)}
        result |= {name: METHODS[name](view, batch, explanation=_explanation(name)).tokens for name in names}
        for name, relevance in result.items():
            right[name] += (relevance[:, inside].argmax(-1) + 1 == letters).tolist()
        clusters += [number] * len(letters)
    hits = np.array(list(right.values()), float).T[:, :, None]  # [sounds, methods, 1]
    comparison = compare(hits, tuple(right), (FOUND,), Resampling(2000, clusters=np.array(clusters)), shares=True)
    assert comparison is not None
    return comparison


def _explanation(name: str) -> str:
    return "target" if "target" in METHODS[name].explanations else METHODS[name].explanations[0]


@torch.no_grad()
def _attended(view: ModelView, batch: Batch) -> torch.Tensor:
    """The last cross-attention's weights of the predicting token, mean over heads [B, T]."""
    kept = {}

    def attend(kernel, module, *tensors, **options):
        context, kept["weights"] = kernel(module, *tensors, **options)
        return context, kept["weights"]

    with around_attention(view, {view.attentions[-1].attention: attend}, stock="eager"):
        view.all_logits(batch)
    return kept["weights"].mean(1)[torch.arange(len(batch)), batch.position]


def applicable(view: ModelView) -> list[str]:
    return [name for name, method in METHODS.items() if not method.missing(view.family.capabilities)]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL
    view = load_model(folder)
    words = spelled(view, folder)
    result = compared(view, words, applicable(view))
    print(f"{len(words)} words, {result.n} sounds\n\n| group | method | letter found, % |\n|---|---|---|")
    for number, group in enumerate(result.groups(FOUND), start=1):
        for name in group:
            at = result.methods.index(name), 0
            shown = name if name == CROSS_ATTENTION else f"`{name}`"
            print(f"| {number} | {shown} | {result.mean[at]:.1f} ({result.low[at]:.1f} to {result.high[at]:.1f}) |")


if __name__ == "__main__":
    main()
