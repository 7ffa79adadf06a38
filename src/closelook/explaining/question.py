"""Questions: what a model reads, and which of its predictions is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_args

from closelook.evaluation.benchmark.encoding import has_spaces
from closelook.evaluation.benchmark.samples import Filled, Prompt
from closelook.explaining.opening import Opened
from closelook.lrp_core.records.types import UserError

MARKER = "___"  # marks the target's place in a text
SENTENCE, TOKEN = "sentence", "token"  # values of `spans` that cut an answer by themselves

Words = Literal["single", "first_difference", "each"]
WordLike = str | int | None  # a word, or the id of a token or label
Spans = str | Sequence[tuple[int, int]] | None


class Part(NamedTuple):
    """A part of a text, characters [start, end), with a name."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Input:
    """The input of a model: a text or pair, a chat that its template wrote out, token ids, or a picture."""

    text: str  # as the user wrote it: `___` may mark the target's place; for a picture, the path of its file
    before: str  # the text before the target's place
    after: str = ""  # the text behind it
    second: str | None = None  # the second text of a pair
    ids: tuple[int, ...] | None = None  # the token ids of the text, if the caller gave ids
    parts: tuple[Part, ...] | None = None  # the messages of a chat
    picture: bytes | None = None  # the file of a picture that the caller has in memory
    prefix: str | None = None  # what the decoder of an encoder-decoder has written already
    truncate: bool = False  # shorten a text that is too long, instead of raising an error

    def __post_init__(self) -> None:
        for name, text in (("second", self.second), ("prefix", self.prefix)):
            if not isinstance(text, str | None):
                raise UserError(f"`{name}` must be a string, not {text!r}")
            check_characters(text)
        check_characters(self.text, "; if it is the path of an image, rename the file")

    @property
    def is_verbatim(self) -> bool:
        """True if the text is read unchanged: it is a chat, or was given as token ids."""
        return self.ids is not None or self.parts is not None

    def prompt(self, opened: Opened) -> Prompt:
        """The text before the target that a causal model or encoder reads, and the space before the target."""
        prompt = Prompt.of(self.before, has_spaces(opened.tokenizer))
        if not self.is_verbatim:
            return prompt
        # A chat or token ids are read unchanged. The target of a chat gets no space; that of token ids gets one unless
        # their text ends in white space: `Prompt.of` would move a final space to the target, and gives none after other
        # white space.
        gets_space = self.ids is not None and prompt.text == self.before
        return Prompt(self.before, prompt.space, prompt.is_added) if gets_space else Prompt(self.before, "")

    def answer_so_far(self, opened: Opened) -> Prompt:
        """The text that the decoder has written already, with the space that belongs to the target."""
        return Prompt.of(self.prefix or "", has_spaces(opened.writer))

    def text_read(self, opened: Opened) -> str:
        """The string that the tokenizer gets: of masked models with the mask token at the target's place."""
        if opened.kind.slot and not self.is_verbatim:
            return Filled.of(self.before + self.after, len(self.before), opened.tokenizer.mask_token).text
        return self.prompt(opened).text


def marked(text: Any, **further: Any) -> Input:
    """The input of a text in which `___` may mark the target's place. Raises UserError if it is marked twice."""
    if not isinstance(text, str):
        raise UserError(f"a text must be a string, not {text!r}")
    if (times := text.count(MARKER)) > 1:
        raise UserError(f"the text has {MARKER} {times} times: {MARKER} marks the place of the target, so keep it once")
    before, _, after = text.partition(MARKER)
    return Input(text, before, after, **further)


def check_characters(value: Any, advice: str = "") -> None:
    """Raise UserError, with this advice, for a string with half of a character."""
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{value!r:.80} has half of a character (a surrogate), which no tokenizer reads{advice}")


@dataclass(frozen=True)
class Word:
    """A question about the word after the text, or in its place; without a target, about the model's prediction."""

    target: WordLike = None
    foil: WordLike = None
    explanation: str | None = None  # contrastive | target | log_prob; None: contrastive if there is a foil, else target
    at_difference: bool = False  # explain the first token in which longer words differ

    def __post_init__(self) -> None:
        for name, word in (("target", self.target), ("foil", self.foil)):
            if isinstance(word, bool) or not isinstance(word, WordLike):
                raise UserError(f"`{name}` must be a word or a token id, not {word!r}")
            check_characters(word)
        if self.foil is None:
            return
        if self.target is None:
            raise UserError("a foil needs a target that it is contrasted with: give `target` too, or `label`")
        if isinstance(self.foil, int) != isinstance(self.target, int):
            raise UserError("`target` and `foil` must be both words or both token ids")


@dataclass(frozen=True)
class Label:
    """A question about a label, or the score, of a text or picture; without a label, about the predicted one."""

    label: WordLike = None
    foil: WordLike = None
    explanation: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.label, bool) or not isinstance(self.label, WordLike):
            raise UserError(f"`label` must be the name or number of a label, not {self.label!r}")
        if self.foil is not None and self.label is None:
            raise UserError("a foil needs a target that it is contrasted with: give `target` too, or `label`")


@dataclass(frozen=True)
class Answer:
    """A question about the spans of an answer, each explained as a whole: the sum of its tokens' logits."""

    answer: str | tuple[int, ...] | None = None  # None: the model generates it
    spans: Spans = None  # sentence | token | pairs of characters (start, end); None: all of it as one
    most: int = 1  # tokens of a generated answer
    explanation: str | None = None

    def __post_init__(self) -> None:
        numbers = isinstance(self.answer, tuple) and all(isinstance(token, Integral) for token in self.answer)
        if not numbers and not isinstance(self.answer, str | None):
            raise UserError(f"`answer` must be a text or token ids, not {self.answer!r:.80}")
        check_characters(self.answer)
        is_name = self.spans in (None, SENTENCE, TOKEN)
        if not is_name and (isinstance(self.spans, str) or not all(map(_is_pair, _sequence(self.spans)))):
            raise UserError(
                f"`spans` must be {SENTENCE!r}, {TOKEN!r} or a list of (start, end), not {self.spans!r:.80}"
            )
        if self.answer is None and self.most == 1:
            raise UserError("`spans` need an answer: give `answer`, or in `generate` how many tokens it may have")
        if self.answer is not None and self.most > 1:
            raise UserError("`answer` and `generate` exclude each other: give one of them")


Question = Word | Label | Answer


def question(
    opened: Opened,
    target: WordLike = None,
    foil: WordLike = None,
    label: WordLike = None,
    words: str = "single",
    generate: int = 1,
    answer: Any = None,
    spans: Any = None,
    explanation: str | None = None,
) -> Question:
    """The question that arguments of `closelook.explain` ask. Raises UserError if they do not go together."""
    if not _is_count(generate) or generate < 1:
        raise UserError(f"`generate` must be a number of tokens, at least 1, not {generate!r}")
    if words not in get_args(Words):
        whole = "; a whole answer is explained by `answer`" if words == "all" else ""
        raise UserError(f"`words` must be one of {', '.join(get_args(Words))}, not {words!r}{whole}")
    if answer is not None or spans is not None:
        for name, value in (("target", target), ("label", label)):
            if value is not None:
                raise UserError(f"an answer takes the place of `{name}`: leave `{name}` out")
        return Answer(tuple(answer) if isinstance(answer, list) else answer, spans, generate, explanation)
    if opened.kind.labels and generate == 1 and target is None:
        return Label(label, foil, explanation)
    if label is not None:
        if target is not None:
            raise UserError("`target` is a word for a language model, `label` is for a classifier: give one of them")
        return Label(label, foil, explanation)
    if words == "each":
        if not isinstance(target, str) or foil is not None:
            raise UserError("words='each' explains every token of a target: give words as `target`, and no foil")
        return Answer(target, TOKEN, explanation=explanation)
    if generate > 1:
        if target is not None:
            raise UserError("`generate` explains what the model itself predicts: leave `target` and `foil` out")
        return Answer(None, TOKEN, generate, explanation)
    return Word(target, foil, explanation, words == "first_difference")


def _is_count(value: Any) -> bool:
    """True for an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _sequence(value: Any) -> Sequence[Any]:
    """`value` if it is a sequence, else a list of it."""
    return value if isinstance(value, Sequence) else [value]


def _is_pair(value: Any) -> bool:
    """True for a sequence of two numbers, start and end."""
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_count, value))
