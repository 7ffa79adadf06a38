"""Questions of `closelook explain`: a prediction, several in turn, or an answer and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

from evaluation.benchmark.encoding import has_spaces
from evaluation.benchmark.samples import Filled, Prompt
from jobs.commands.questions.chat import Part, is_chat, rendered
from jobs.commands.questions.opened import Opened
from lrp_core.records.types import UserError

MARKER = "___"
_Words = Literal["single", "first_difference", "each"]
SENTENCE, TOKEN = "sentence", "token"  # parts of an answer that need no characters
_ANSWERING = "assistant"  # the role whose messages are a model's answers


@dataclass(frozen=True)
class Question:
    """A prediction to explain; without a target, the one that the model itself makes."""

    sentence: str  # `___` marks the target's place, else the target follows; for a model of images, a file's path
    target: str | int | None = None  # a word, or the number of a token
    foil: str | int | None = None  # a word, the number of a token or, of a classifier, a label
    label: str | None = None  # of a classifier
    second: str | None = None  # the other text of a pair
    explanation: str | None = None  # contrastive | target | log_prob; default: the first with a foil
    generate: int = 1  # tokens that are explained, each after the ones before it; of an answer, the most that it has
    words: _Words = "single"  # which token of a word that is several tokens is explained
    prefix: str | None = None  # of an encoder-decoder, the answer so far
    truncate: bool = False  # a text that is too long loses tokens
    ids: tuple[int, ...] | None = None  # the tokens of `sentence`, where the caller gave these
    parts: tuple[Part, ...] | None = None  # of a chat, whose template gave `sentence`
    answer: str | tuple[int, ...] | None = None  # explained as a whole or by `spans`: its text, or its tokens
    #: Of an answer, which without `answer` is generated: sentence | token | [start, end) of characters; default: all.
    spans: str | tuple[tuple[int, int], ...] | None = None
    hops: int = 0  # of an answer with a reasoning part: how often that part is explained in turn
    reasoning: tuple[int, int] | None = None  # [start, end), the characters of that part

    def __post_init__(self) -> None:
        self._check_types()
        if not self.unmarked and (times := self.sentence.count(MARKER)) > 1:
            raise UserError(f"{MARKER} marks the one place of the target, and the text has it {times} times")
        if self.generate > 1 and self.target is not None:
            raise UserError("`generate` explains what the model itself predicts: leave `target` and `foil` out")
        if self.label is not None and self.target is not None:
            raise UserError("`target` is a word for a language model, `label` is for a classifier: give one of them")
        if self.foil is not None and self.target is None and self.label is None:
            raise UserError("a foil is what a target is contrasted with: give `target` too, or `label`")
        if isinstance(self.foil, int) != isinstance(self.target, int) and None not in (self.foil, self.target):
            raise UserError("target and foil have to be both words or both token ids")
        if self.every_token and (not isinstance(self.target, str) or self.foil is not None):
            raise UserError(f"words={self.words!r} explains every token of a target: it needs words and no foil")
        self._check_answer()

    def _check_types(self) -> None:
        if not isinstance(self.sentence, str):
            raise UserError(f"a text is a string, not {self.sentence!r}")
        for name, word in (("target", self.target), ("foil", self.foil)):
            if isinstance(word, bool) or not isinstance(word, str | int | None):
                raise UserError(f"{name} is a word or a token id, not {word!r}")
        for name, text in (("second", self.second), ("label", self.label), ("prefix", self.prefix)):
            if not isinstance(text, str | None):
                raise UserError(f"{name} is a string, not {text!r}")
        if not _is_count(self.generate) or self.generate < 1:
            raise UserError(f"generate is a number of tokens, at least 1, not {self.generate!r}")
        if self.words not in get_args(_Words):
            raise UserError(f"words is one of {', '.join(get_args(_Words))}, not {self.words!r}")

    def _check_answer(self) -> None:
        """Raise UserError for an invalid answer and for options that an answer excludes."""
        numbers = isinstance(self.answer, tuple) and all(isinstance(token, Integral) for token in self.answer)
        if not numbers and not isinstance(self.answer, str | None):
            raise UserError(f"`answer` is a text or token ids, not {self.answer!r:.80}")
        if isinstance(self.spans, str) and self.spans not in (SENTENCE, TOKEN):
            raise UserError(f"`spans` is {SENTENCE!r}, {TOKEN!r} or a list of (start, end), not {self.spans!r}")
        if not _is_count(self.hops) or self.hops < 0 or (self.hops and self.reasoning is None):
            raise UserError(
                "`hops` is how often the part `reasoning`, (start, end) of the answer, is explained in turn"
            )
        if not self.has_answer:
            if self.hops:
                raise UserError("`hops` are of an answer: give `answer`, or `spans` and `generate`")
            return
        if self.answer is None and self.generate == 1:
            raise UserError("`spans` are of an answer: give `answer`, or `generate` how many tokens it may have")
        for name in ("target", "label", "second"):
            if getattr(self, name) is not None:
                raise UserError(f"an answer is explained by itself: leave `{name}` out")
        if self.answer is not None and self.generate > 1:
            raise UserError("give an `answer`, or `generate` one, not both")

    @property
    def has_answer(self) -> bool:
        """An answer is explained by its parts, each as a whole."""
        return self.answer is not None or self.spans is not None

    @property
    def as_it_is(self) -> bool:
        """The text is read as it is: a chat, or tokens by number."""
        return self.ids is not None or self.parts is not None

    @property
    def unmarked(self) -> bool:
        """True if the text has no mark for the target, which then follows the text."""
        return self.as_it_is or self.has_answer

    @property
    def before(self) -> str:
        """The text before the target's place."""
        return self.sentence if self.unmarked else self.sentence.partition(MARKER)[0]

    @property
    def text(self) -> str:
        """The text without the mark of the target's place."""
        return self.sentence if self.unmarked else self.sentence.replace(MARKER, "")

    @property
    def every_token(self) -> bool:
        """Every token of the target is explained in turn."""
        return self.words == "each"

    @property
    def is_sample(self) -> bool:
        """It reads as a sample of a task does: a text, with a word as its target."""
        is_word = isinstance(self.target, str) and not self.every_token
        return is_word and self.prefix is None and not self.as_it_is

    @property
    def several(self) -> bool:
        """More than one prediction is explained."""
        return self.every_token or self.generate > 1 or self.has_answer

    def prompt(self, opened: Opened) -> Prompt:
        """The part of the text that a causal model or an encoder reads."""
        prompt = Prompt.of(self.before, has_spaces(opened.tokenizer))
        if not self.as_it_is:
            return prompt
        follows_word = self.ids is not None and prompt.text == self.before
        return Prompt(self.before, prompt.space if follows_word else "")

    def answer_so_far(self, opened: Opened) -> Prompt:
        """The text that a decoder has written."""
        return Prompt.of(self.prefix or "", has_spaces(opened.writer))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def text_read(question: Question, opened: Opened) -> str:
    """The characters that a model of words tokenises."""
    if opened.resolved.kind.slot and not question.as_it_is:
        return Filled.of(question.text, len(question.before), opened.tokenizer.mask_token).text
    return question.prompt(opened).text


def space_note(question: Question, opened: Opened) -> str:
    """A note, after a comma, about the space before the target; "" if users need not know of it."""
    kind, before = opened.resolved.kind, question.before
    if kind.labels or question.has_answer:
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


def question_of(text_or_chat: Any, opened: Opened, **asked: Any) -> Question:
    """The question about a text, or about a list of messages by the tokenizer's chat template.

    The last message is the answer that is explained, where it is the assistant's and nothing else is asked. Raises
    UserError for what is no text, and for messages that the template refuses.
    """
    asked["spans"] = spans_of(asked.get("spans"))
    if not is_chat(text_or_chat):
        return Question(text_or_chat, **asked)
    if opened.tokenizer is None:
        raise UserError(f"{opened.id} reads images: give the path of one")
    messages, goes_on = list(text_or_chat), not opened.resolved.kind.labels
    unasked = asked.get("generate", 1) == 1 and all(asked.get(name) is None for name in ("answer", "target"))
    if goes_on and unasked and len(messages) > 1 and messages[-1].get("role") == _ANSWERING:
        asked["answer"] = messages.pop().get("content")
    text, parts = rendered(messages, opened.tokenizer, goes_on)
    return Question(text, parts=parts, **asked)


def spans_of(value: Any) -> str | tuple[tuple[int, int], ...] | None:
    """The `spans` of a question as callers give them. Raises UserError for what are none."""
    if value is None or isinstance(value, str):
        return value
    pairs = list(value) if isinstance(value, Sequence) else [value]
    if not all(map(_is_pair, pairs)):
        raise UserError(f"`spans` is {SENTENCE!r}, {TOKEN!r} or a list of (start, end), not {value!r:.80}")
    return tuple((start, end) for start, end in pairs)


def reasoning_of(value: Any) -> tuple[int, int] | None:
    """The `reasoning` of a question as callers give it. Raises UserError for what is no part of an answer."""
    if value is None:
        return None
    if not _is_pair(value):
        raise UserError(f"`reasoning` is (start, end), the characters of a part of the answer, not {value!r:.80}")
    start, end = value
    return start, end


def _is_pair(value: Any) -> bool:
    """True for two numbers, start and end."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and len(value) == 2 and all(map(_is_count, value))
