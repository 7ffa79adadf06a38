"""What `closelook explain` is asked, and the row that a model reads for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from evaluation.benchmark.encoding import encode, has_spaces
from evaluation.benchmark.pictures import picture, view_of
from evaluation.benchmark.samples import Filled, Malformed, Prompt, Row, Words, sample, with_evidence
from evaluation.benchmark.slots import NOT_ONE_TOKEN, tail_behind
from evaluation.benchmark.views import tokenise
from jobs.plan.models import ResolvedModel
from lrp_core.explained import EXPLAINED, TARGET, needs_foil
from lrp_core.kinds import Kind
from lrp_core.types import UserError, nearest

MARKER = "___"
_Words = Literal["single", "first_difference", "each"]


@dataclass(frozen=True)
class Question:
    """What is to be explained; without a target, what the model itself predicts."""

    sentence: str  # `___` marks the target's place, else the target follows; for a model of images, a file's path
    target: str | int | None = None  # a word, or the number of a token
    foil: str | int | None = None  # a word, the number of a token or, of a classifier, a label
    label: str | None = None  # of a classifier
    second: str | None = None  # the other text of a pair
    explanation: str | None = None  # contrastive | target | log_prob; default: the first with a foil
    generate: int = 1  # tokens that are explained, each after the ones before it
    words: _Words = "single"  # what of words that are several tokens is explained
    prefix: str | None = None  # of an encoder-decoder, the answer so far

    def __post_init__(self) -> None:
        if not isinstance(self.sentence, str):
            raise UserError(f"a text is a string, not {self.sentence!r}")
        for name, word in (("target", self.target), ("foil", self.foil)):
            if isinstance(word, bool) or not isinstance(word, str | int | None):
                raise UserError(f"{name} is a word or the number of a token, not {word!r}")
        for name, text in (("second", self.second), ("label", self.label), ("prefix", self.prefix)):
            if not isinstance(text, str | None):
                raise UserError(f"{name} is a string, not {text!r}")
        if isinstance(self.generate, bool) or not isinstance(self.generate, int) or self.generate < 1:
            raise UserError(f"generate is a number of tokens, at least 1, not {self.generate!r}")
        if (times := self.sentence.count(MARKER)) > 1:
            raise UserError(f"{MARKER} marks the one place of the target, and the text has it {times} times")
        if self.generate > 1 and self.target is not None:
            raise UserError("--generate explains what the model itself predicts: leave --target and --foil out")
        if self.label is not None and self.target is not None:
            raise UserError("--target is a word for a language model, --label is for a classifier: give one of them")
        if self.foil is not None and self.target is None and self.label is None:
            raise UserError("a foil is what a target is contrasted with: give --target too, or --label")
        if self.words not in get_args(_Words):
            raise UserError(f"words is one of {', '.join(get_args(_Words))}, not {self.words!r}")
        if isinstance(self.foil, int) != isinstance(self.target, int) and None not in (self.foil, self.target):
            raise UserError("target and foil are both words or both numbers of tokens")
        if self.words == "each" and (not isinstance(self.target, str) or self.foil is not None):
            raise UserError('words="each" explains one token of a target after the other: it needs a word and no foil')

    @property
    def before(self) -> str:
        return self.sentence.partition(MARKER)[0]

    @property
    def text(self) -> str:
        return self.sentence.replace(MARKER, "")


def prompt_of(question: Question, tokenizer: Any) -> Prompt:
    """What a causal model or an encoder reads of the question."""
    return Prompt.of(question.before, has_spaces(tokenizer))


def text_read(question: Question, tokenizer: Any, kind: Kind) -> str:
    """The characters that a model of words tokenises."""
    if kind.slot:
        return Filled.of(question.text, len(question.before), tokenizer.mask_token).text
    return prompt_of(question, tokenizer).text


def space_told(question: Question, tokenizer: Any, kind: Kind, decoder_tokenizer: Any = None) -> str:
    """What a user must know of the space before the target, behind a comma; "" where there is nothing to tell."""
    if kind.labels:
        return ""
    before, prompt = question.before, prompt_of(question, tokenizer)
    taken, told = prompt.text != before, ""
    if kind.slot:
        return ", with a space before it" if prompt.space and not taken else ""
    if kind.decoder:
        told = ", the text without its last space" if taken else ""
        before = question.prefix or ""
        prompt = Prompt.of(before, has_spaces(decoder_tokenizer or tokenizer))
        taken = prompt.text != before
    belongs = taken or (prompt.space and isinstance(question.target, str))
    return f"{', with the space before it' if belongs else ''}{told}"


def read(question: Question, tokenizer: Any, resolved: ResolvedModel, decoder_tokenizer: Any = None) -> Row:
    """The row of the view schema; its target is None where the model is asked what it predicts.

    `decoder_tokenizer` writes what an encoder-decoder says, where it is not `tokenizer`.
    """
    kind = resolved.kind
    if kind.images:
        return _picture(question, resolved)
    if kind.labels:
        return _whole(question, tokenizer, resolved)
    if question.label is not None or question.second is not None:
        raise UserError(f"{resolved.config.id} predicts words: --label and --second are for models that predict labels")
    if question.foil is None and needs_foil(question.explanation or TARGET.name):
        free = " or ".join(explained.name for explained in EXPLAINED.values() if not explained.needs_foil)
        raise UserError(f"a {question.explanation} explanation is against a foil: give one, or ask for {free}")
    if question.prefix is not None and not kind.decoder:
        raise UserError(f"{resolved.config.id} has no decoder of its own that --prefix could be said by: leave it out")
    if kind.decoder:
        return _answered(question, tokenizer, resolved, decoder_tokenizer or tokenizer)
    if question.words == "each" and kind.slot:
        raise UserError(f"{resolved.config.id} fills a place in a text and does not go on with one: leave words out")
    if isinstance(question.target, str) and question.words != "each":
        return _view(_sample(question, question.target), tokenizer, resolved, question.words)
    if kind.slot and question.generate > 1:
        raise UserError(f"{resolved.config.id} fills a place in a text and does not go on with one: --generate is 1")
    (encoding,) = encode(tokenizer, [text_read(question, tokenizer, kind)])
    encoding = encoding if kind.slot else encoding.open_ended()
    if not len(encoding) or encoding.special.all():
        raise UserError("this sentence cannot be explained: no text before the place of the target")
    steps = len(tokens_of(question, tokenizer)) if question.words == "each" else question.generate
    if len(encoding) + steps - 1 > resolved.max_length:
        raise UserError(f"{len(encoding)} tokens and {steps} more: {resolved.max_length} are the most")
    ids = encoding.ids
    position = ids.index(tokenizer.mask_token_id) if kind.slot else len(ids) - 1
    special = encoding.special.tolist()
    target, foil = (_token_id(number, tokenizer) for number in (question.target, question.foil))
    return {"input_ids": ids, "position": position, "target_id": target, "foil_id": foil, "special_mask": special}


def _answered(question: Question, tokenizer: Any, resolved: ResolvedModel, writer: Any) -> Row:
    """The row of an encoder-decoder: the encoder reads the text, the decoder, whose tokenizer is `writer`, has said
    `prefix`."""
    if isinstance(question.target, str) and question.words != "each" and question.prefix is None:
        return _view(_sample(question, question.target), tokenizer, resolved, question.words, writer)
    (encoding,) = encode(tokenizer, [text_read(question, tokenizer, resolved.kind)])
    if not len(encoding) or encoding.special.all():
        raise UserError("this sentence cannot be explained: no text to read")
    said: list[int] = []
    if question.prefix is not None:
        said = _said(question, writer)
        if writer.eos_token_id in said:
            raise UserError(f"--prefix ends the sequence: nothing follows {writer.eos_token!r}")
    target, foil = (_word_id(word, question, writer) for word in (question.target, question.foil))
    return {
        "input_ids": encoding.ids,
        "position": len(said),
        "target_id": target,
        "foil_id": foil,
        "special_mask": encoding.special.tolist(),
        "decoder_input_ids": said,
    }


def _word_id(word: str | int | None, question: Question, tokenizer: Any) -> int | None:
    """The token that a word, or the number of a token, stands for behind what the decoder has said."""
    if not isinstance(word, str) or question.words == "each":
        return None if isinstance(word, str) else _token_id(word, tokenizer)
    prefix, said = Prompt.of(question.prefix or "", has_spaces(tokenizer)), _said(question, tokenizer)
    (joint,) = encode(tokenizer, [prefix.with_target(word.strip())], template=False)
    if joint.ids[: len(said)] != said or len(joint) != len(said) + 1:
        raise UserError(f"this sentence cannot be explained: {word!r} is not one token behind {prefix.text!r}")
    return joint.ids[-1]


def _said(question: Question, tokenizer: Any) -> list[int]:
    """The tokens of `prefix`."""
    prefix = Prompt.of(question.prefix or "", has_spaces(tokenizer))
    return encode(tokenizer, [prefix.text], template=False)[0].ids


def tokens_of(question: Question, tokenizer: Any, decoder: bool = False) -> list[int]:
    """The tokens of a target that follows the text, or that a `decoder` says, one after the other.

    Raises UserError where it has none.
    """
    if decoder:
        ids = encode(tokenizer, [str(question.target).strip()], template=False)[0].ids
        if not ids:
            raise UserError(f"this sentence cannot be explained: {question.target!r} has no tokens")
        return ids
    prompt, word = prompt_of(question, tokenizer), str(question.target).strip()
    context, joint = (one.open_ended() for one in encode(tokenizer, [prompt.text, prompt.with_target(word)]))
    try:
        return tail_behind(prompt, word, context, joint, tokenizer).ids
    except Malformed as error:
        raise UserError(f"this sentence cannot be explained: {error}") from None


def _token_id(number: str | int | None, tokenizer: Any) -> int | None:
    if not isinstance(number, int):
        return None
    if not 0 <= number < len(tokenizer):
        raise UserError(f"there is no token {number}: the tokenizer has {len(tokenizer):,}, from 0")
    return number


def _whole(question: Question, tokenizer: Any, resolved: ResolvedModel) -> Row:
    """The row of a text, or of a pair, whose label or score is explained."""
    model = resolved.config.id
    if question.target is not None or question.generate > 1:
        raise UserError(f"{model} predicts {resolved.output}s: leave --target and --generate out")
    if question.label is not None and resolved.output == "score":
        raise UserError(f"{model} predicts a score: it has no labels")
    try:
        row = sample("terminal", question.sentence, None, None, None, second=question.second)
    except Malformed as error:
        raise UserError(f"this sentence cannot be explained: {error}") from None
    view = _view(row, tokenizer, resolved)
    named = {"target_id": question.label, "foil_id": question.foil}
    return view | {at: _label_id(name, resolved) for at, name in named.items() if name is not None}


def _picture(question: Question, resolved: ResolvedModel) -> Row:
    """The row of the image in the file that the question names, with what the model computes with as `pixel_values`."""
    model, path = resolved.config.id, Path(question.sentence).expanduser()
    if question.target is not None or question.second is not None or question.generate > 1:
        raise UserError(f"{model} predicts labels of images: leave --target, --second and --generate out")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{model} reads images, and {path} is no file of one: {error.strerror}") from None
    images = resolved.preprocessing
    assert images is not None
    try:
        view = view_of(picture("terminal", path.name, data, label=None), images)
    except Malformed as error:
        raise UserError(f"{path} cannot be explained: {error}") from None
    [taken] = resolved.taken([view])
    named = {"target_id": question.label, "foil_id": question.foil}
    ids = {at: _label_id(name, resolved) for at, name in named.items() if name is not None}
    return {**taken, "pixels": view["pixels"], **ids}


def _label_id(name: str | int, resolved: ResolvedModel) -> int:
    number = resolved.label_id(str(name))
    if number is None:
        raise UserError(f"{resolved.config.id} has no label {name!r}{nearest(str(name), resolved.labels)}")
    return number


def _view(
    row: Row, tokenizer: Any, resolved: ResolvedModel, words: Words = "single", decoder_tokenizer: Any = None
) -> Row:
    longest, own = resolved.max_length, decoder_tokenizer
    views, rejects = tokenise(
        [row], tokenizer, kind=resolved.kind, max_length=longest, words=words, decoder_tokenizer=own
    )
    if rejects:
        reason, detail = rejects[0]["reason"], rejects[0]["detail"]
        longer = reason == NOT_ONE_TOKEN and words == "single" and not resolved.kind.slot
        advice = "; closelook.explain in Python explains such words, by its `words`" if longer else ""
        raise UserError(": ".join(filter(None, ("this sentence cannot be explained", reason, detail))) + advice)
    return views[0]


def _sample(question: Question, target: str) -> Row:
    before, text = question.before, question.text
    try:
        foil = None if question.foil is None else str(question.foil)
        row = sample("terminal", text, len(before), target, foil)
        return with_evidence(row, [(0, len(before.split(maxsplit=1)[0]))] if before.split() else [])
    except Malformed as error:
        raise UserError(f"this sentence cannot be explained: {error}") from None
