"""Questions of `closelook explain`, and the row that a model reads for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from evaluation.benchmark.encoding import Encoding, encode, has_spaces
from evaluation.benchmark.pictures import picture, view_of
from evaluation.benchmark.samples import Filled, Malformed, Prompt, Row, sample, with_evidence
from evaluation.benchmark.slots import NOT_ONE_TOKEN, tail_behind
from evaluation.benchmark.views import tokenise
from jobs.commands.opened import Opened
from jobs.plan.models import ResolvedModel
from lrp_core.explained import EXPLAINED, TARGET, needs_foil
from lrp_core.types import UserError, nearest

MARKER = "___"
_Words = Literal["single", "first_difference", "each", "sum"]


@dataclass(frozen=True)
class Question:
    """A prediction to explain; without a target, the one that the model itself makes."""

    sentence: str  # `___` marks the target's place, else the target follows; for a model of images, a file's path
    target: str | int | None = None  # a word, or the number of a token
    foil: str | int | None = None  # a word, the number of a token or, of a classifier, a label
    label: str | None = None  # of a classifier
    second: str | None = None  # the other text of a pair
    explanation: str | None = None  # contrastive | target | log_prob; default: the first with a foil
    generate: int = 1  # tokens that are explained, each after the ones before it
    words: _Words = "single"  # which token of a word that is several tokens is explained
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
        if self.every_token and (not isinstance(self.target, str) or self.foil is not None):
            raise UserError(f"words={self.words!r} explains every token of a target: it needs words and no foil")

    @property
    def before(self) -> str:
        """The text before the target's place."""
        return self.sentence.partition(MARKER)[0]

    @property
    def text(self) -> str:
        """The text without the mark of the target's place."""
        return self.sentence.replace(MARKER, "")

    @property
    def every_token(self) -> bool:
        """Every token of the target is explained, in turn or all together."""
        return self.words in ("each", "sum")

    @property
    def has_word(self) -> bool:
        """The target is a word, of which one token is explained."""
        return isinstance(self.target, str) and not self.every_token

    def prompt(self, opened: Opened) -> Prompt:
        """The part of the text that a causal model or an encoder reads."""
        return Prompt.of(self.before, has_spaces(opened.tokenizer))

    def answer_so_far(self, opened: Opened) -> Prompt:
        """The text that a decoder has written."""
        return Prompt.of(self.prefix or "", has_spaces(opened.writer))


def text_read(question: Question, opened: Opened) -> str:
    """The characters that a model of words tokenises."""
    if opened.resolved.kind.slot:
        return Filled.of(question.text, len(question.before), opened.tokenizer.mask_token).text
    return question.prompt(opened).text


def space_note(question: Question, opened: Opened) -> str:
    """A note, behind a comma, about the space before the target; "" where users need not know of it."""
    kind, before = opened.resolved.kind, question.before
    if kind.labels:
        return ""
    prompt, note = question.prompt(opened), ""
    taken = prompt.text != before
    if kind.slot:
        return ", with a space before it" if prompt.space and not taken else ""
    if kind.decoder:
        note = ", the text without its last space" if taken else ""
        prompt = question.answer_so_far(opened)
        taken = prompt.text != (question.prefix or "")
    if taken or (prompt.space and isinstance(question.target, str)):
        return f", with the space before it{note}"
    return note


def read(question: Question, opened: Opened) -> Row:
    """The row of the view schema; its target is None where the model is asked for its prediction.

    Raises UserError for questions that do not fit the model.
    """
    resolved, tokenizer = opened.resolved, opened.tokenizer
    kind = resolved.kind
    if kind.images:
        return _picture(question, resolved)
    if kind.labels:
        return _whole(question, opened)
    _check_words(question, resolved)
    if question.has_word and question.prefix is None:
        return _with_word(question, opened)
    (encoding,) = encode(tokenizer, [text_read(question, opened)])
    target, foil = _token_id(question.target, question, opened), _token_id(question.foil, question, opened)
    row: Row = {"target_id": target, "foil_id": foil}
    if kind.decoder:
        _check_text(encoding, "no text to read")
        written = [] if question.prefix is None else _written(question, opened)
        if opened.writer.eos_token_id in written:
            raise UserError(f"--prefix ends the sequence: nothing follows {opened.writer.eos_token!r}")
        row |= {"position": len(written), "decoder_input_ids": written}
    else:
        encoding = encoding if kind.slot else encoding.open_ended()
        _check_text(encoding, "no text before the place of the target")
        steps = len(tokens_of(question, opened)) if question.every_token else question.generate
        if len(encoding) + steps - 1 > resolved.max_length:
            raise UserError(f"{len(encoding)} tokens and {steps} more: {resolved.max_length} are the most")
        row["position"] = encoding.ids.index(tokenizer.mask_token_id) if kind.slot else len(encoding) - 1
    return {**row, "input_ids": encoding.ids, "special_mask": encoding.special.tolist()}


def _check_words(question: Question, resolved: ResolvedModel) -> None:
    """Raises UserError for questions that do not fit a model of words."""
    model, kind = resolved.config.id, resolved.kind
    if question.label is not None or question.second is not None:
        raise UserError(f"{model} predicts words: --label and --second are for models that predict labels")
    if question.foil is None and needs_foil(question.explanation or TARGET.name):
        free = " or ".join(explained.name for explained in EXPLAINED.values() if not explained.needs_foil)
        raise UserError(f"a {question.explanation} explanation is against a foil: give one, or ask for {free}")
    if question.prefix is not None and not kind.decoder:
        raise UserError(f"{model} has no decoder of its own that --prefix could be said by: leave it out")
    if kind.slot and (question.every_token or question.generate > 1):
        advice = "leave words out" if question.every_token else "--generate is 1"
        raise UserError(f"{model} fills a place in a text and does not go on with one: {advice}")


def _unexplained(reason: object) -> UserError:
    return UserError(f"this sentence cannot be explained: {reason}")


def _check_text(encoding: Encoding, reason: str) -> None:
    """Raises UserError for a text without ordinary tokens."""
    if not len(encoding) or encoding.special.all():
        raise _unexplained(reason)


def _token_id(word: str | int | None, question: Question, opened: Opened) -> int | None:
    """The number of a token; of a word, that of its one token behind the decoder's answer so far.

    None without a word, and for a word whose tokens are explained in turn.
    """
    if isinstance(word, int):
        if not 0 <= word < len(opened.writer):
            raise UserError(f"there is no token {word}: the tokenizer has {len(opened.writer):,}, from 0")
        return word
    if word is None or question.every_token:
        return None
    prefix, written = question.answer_so_far(opened), _written(question, opened)
    (joint,) = encode(opened.writer, [prefix.with_target(word.strip())], template=False)
    if len(joint) != len(written) + 1 or joint.ids[:-1] != written:
        raise _unexplained(f"{word!r} is not one token behind {prefix.text!r}")
    return joint.ids[-1]


def _written(question: Question, opened: Opened) -> list[int]:
    """The tokens of the decoder's answer so far."""
    return encode(opened.writer, [question.answer_so_far(opened).text], template=False)[0].ids


def tokens_of(question: Question, opened: Opened) -> list[int]:
    """The tokens of a target that follows the text, or that a decoder writes, one after the other.

    Raises UserError where it has none.
    """
    word = str(question.target).strip()
    if opened.resolved.kind.decoder:
        ids = encode(opened.writer, [word], template=False)[0].ids
        if not ids:
            raise _unexplained(f"{question.target!r} has no tokens")
        return ids
    prompt, tokenizer = question.prompt(opened), opened.tokenizer
    encodings = encode(tokenizer, [prompt.text, prompt.with_target(word)])
    context, joint = (encoding.open_ended() for encoding in encodings)
    try:
        return tail_behind(prompt, word, context, joint, tokenizer).ids
    except Malformed as error:
        raise _unexplained(error) from None


def _whole(question: Question, opened: Opened) -> Row:
    """The row of a text, or of a pair, whose label or score is explained."""
    resolved, model = opened.resolved, opened.resolved.config.id
    if question.target is not None or question.generate > 1:
        raise UserError(f"{model} predicts {resolved.output}s: leave --target and --generate out")
    if question.label is not None and resolved.output == "score":
        raise UserError(f"{model} predicts a score: it has no labels")
    try:
        row = sample("terminal", question.sentence, None, None, None, second=question.second)
    except Malformed as error:
        raise _unexplained(error) from None
    return _view(row, question, opened) | _labels(question, resolved)


def _picture(question: Question, resolved: ResolvedModel) -> Row:
    """The row of the image in the file that the question names, with `pixel_values` as the model takes them."""
    model, path = resolved.config.id, Path(question.sentence).expanduser()
    if question.target is not None or question.second is not None or question.generate > 1:
        raise UserError(f"{model} predicts labels of images: leave --target, --second and --generate out")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{model} reads images, and {path} is no file of one: {error.strerror}") from None
    assert resolved.preprocessing is not None
    try:
        view = view_of(picture("terminal", path.name, data, label=None), resolved.preprocessing)
    except Malformed as error:
        raise UserError(f"{path} cannot be explained: {error}") from None
    (row,) = resolved.taken([view])
    return {**row, "pixels": view["pixels"], **_labels(question, resolved)}


def _labels(question: Question, resolved: ResolvedModel) -> dict[str, int]:
    """The numbers of the labels that the question names. Raises UserError for a label that the model does not have."""
    ids = {}
    for key, name in (("target_id", question.label), ("foil_id", question.foil)):
        if name is None:
            continue
        number = resolved.label_id(str(name))
        if number is None:
            raise UserError(f"{resolved.config.id} has no label {name!r}{nearest(str(name), resolved.labels)}")
        ids[key] = number
    return ids


def _with_word(question: Question, opened: Opened) -> Row:
    """The row of a text with a word as its target; the first word of the text stands for the evidence."""
    before = question.before
    foil = None if question.foil is None else str(question.foil)
    try:
        row = sample("terminal", question.text, len(before), str(question.target), foil)
        first = [(0, len(before.split(maxsplit=1)[0]))] if before.split() else []
        row = with_evidence(row, first)
    except Malformed as error:
        raise _unexplained(error) from None
    return _view(row, question, opened)


def _view(row: Row, question: Question, opened: Opened) -> Row:
    """The sample `row` as the model reads it. Raises UserError where that is impossible."""
    resolved = opened.resolved
    views, rejects = tokenise(
        [row],
        opened.tokenizer,
        kind=resolved.kind,
        max_length=resolved.max_length,
        words="first_difference" if question.words == "first_difference" else "single",
        decoder_tokenizer=opened.decoder_tokenizer,
    )
    for reject in rejects:
        message = ": ".join(filter(None, (reject["reason"], reject["detail"])))
        if reject["reason"] == NOT_ONE_TOKEN and question.words == "single" and not resolved.kind.slot:
            message += "; closelook.explain in Python explains such words, by its `words`"
        raise _unexplained(message)
    return views[0]
