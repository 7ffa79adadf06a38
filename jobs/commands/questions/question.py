"""Questions of `closelook explain`: which prediction of a text or chat to explain, or which answer and its spans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from jinja2 import TemplateError

from closelook.evaluation.benchmark.encoding import Segmenter, has_spaces
from closelook.evaluation.benchmark.samples import Filled, Prompt
from closelook.jobs.commands.questions.opened import Opened
from closelook.lrp_core.records.types import UserError

MARKER = "___"  # marks the target's place in a text
SENTENCE, TOKEN = "sentence", "token"  # values of `spans` that cut an answer by themselves
_ANSWERING = "assistant"  # the role of a chat whose messages are the model's answers
_ANOTHER = "\ue000\ue001"  # replaces a message's content, to find it; private-use characters, which no text has

Message = Mapping[str, Any]
Words = Literal["single", "first_difference", "each"]


class Part(NamedTuple):
    """A part of a text, characters [start, end), with a name."""

    name: str
    start: int
    end: int


def is_chat(value: Any) -> bool:
    """True for a non-empty list of mappings, the form in which chat templates take messages."""
    return _is_list(value) and bool(len(value)) and all(isinstance(message, Mapping) for message in value)


def _is_list(value: Any) -> bool:
    """True for a sequence that is no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def chat_in(path: Path) -> Any:
    """The messages in a JSON file. Raises UserError if it cannot be read or holds no list of messages."""
    try:
        messages = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"`messages`: {path} cannot be read: {error}") from None
    except ValueError as error:
        raise UserError(f"`messages`: {path} is not JSON ({error}): it must hold a list of messages") from None
    if not is_chat(messages):
        raise UserError(f"`messages`: {path} must hold a JSON list of messages, each with a role and a content")
    return messages


def rendered(messages: Sequence[Message], tokenizer: Any, goes_on: bool = True) -> tuple[str, tuple[Part, ...]]:
    """(the text of a chat, a part for each message). With `goes_on`, the text ends where the model's answer begins.

    A part is named by the message's role, with a number if several messages have that role. Raises UserError for a
    tokenizer without a chat template, and for messages that the template refuses or changes.
    """
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise UserError(f"message {number} needs a role and a content, both strings: it is {dict(message)!r:.80}")
    if tokenizer.chat_template is None:
        raise UserError("the tokenizer has no chat template: give the prompt as text, or the tokenizer of a chat model")
    text = _render(messages, tokenizer, goes_on)
    roles, parts = [message["role"] for message in messages], []
    for number, (role, message) in enumerate(zip(roles, messages, strict=True)):
        name = f"{role} {1 + roles[:number].count(role)}" if roles.count(role) > 1 else role
        other = [*messages[:number], {**message, "content": _ANOTHER}, *messages[number + 1 :]]
        start, end = _differing(text, _render(other, tokenizer, goes_on))
        if message["content"].strip() != text[start:end].strip():
            raise UserError(f"the chat template changes the content of message {number + 1}: give the prompt as text")
        parts.append(Part(name, start, end))
    return text, tuple(parts)


def _render(messages: Sequence[Message], tokenizer: Any, goes_on: bool) -> str:
    """The text of messages by the chat template. Raises UserError if the template refuses them."""
    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=goes_on)
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(f"the chat template refuses these messages: {' '.join(str(error).split())}") from None
    return text


def _differing(text: str, other: str) -> tuple[int, int]:
    """The characters [start, end) in which `text` differs from `other`, without their common beginning and end."""
    shorter = min(len(text), len(other))
    start = next((at for at in range(shorter) if text[at] != other[at]), shorter)
    behind = next((at for at in range(shorter - start) if text[-1 - at] != other[-1 - at]), shorter - start)
    return start, len(text) - behind


@dataclass(frozen=True)
class Question:
    """A text and the prediction to explain. Without a target, it is the model's own prediction."""

    sentence: str  # `___` marks the target's place, else the target follows; for a model of images, a file's path
    target: str | int | None = None  # a word or a token id
    foil: str | int | None = None  # a word, a token id or, for a classifier, a label
    label: str | int | None = None  # of a classifier, in place of `target`: by its name or number
    second: str | None = None  # the second text of a pair
    explanation: str | None = None  # contrastive | target | log_prob; None: contrastive if there is a foil, else target
    generate: int = 1  # how many predicted tokens are explained in turn; with `spans`, the longest answer in tokens
    words: Words = "single"  # which token of a target of several tokens is explained
    prefix: str | None = None  # what the decoder of an encoder-decoder has written already
    truncate: bool = False  # shorten a text that is too long, instead of raising an error
    ids: tuple[int, ...] | None = None  # the token ids of `sentence`, if the caller gave ids
    parts: tuple[Part, ...] | None = None  # the messages of a chat, if `sentence` was made from one by its template
    answer: str | tuple[int, ...] | None = None  # an answer to explain, as text or token ids
    #: The spans of the answer to explain: sentence | token | pairs of characters (start, end); None: all of it as one.
    #: Without `answer`, the model generates the answer.
    spans: str | tuple[tuple[int, int], ...] | None = None
    hops: int = 0  # how often relevance of the part `reasoning` of the answer is passed on to what precedes it
    reasoning: tuple[int, int] | None = None  # characters (start, end) of that part of the answer
    picture: bytes | None = None  # the file of a picture that the caller has in memory
    segmenter: Segmenter | None = None  # splits text of scripts without spaces into words; None: the tokenizer's pieces

    def __post_init__(self) -> None:
        self._check_types()
        if not self.unmarked and (times := self.sentence.count(MARKER)) > 1:
            raise UserError(
                f"the text has {MARKER} {times} times: {MARKER} marks the place of the target, so keep it once"
            )
        if self.generate > 1 and self.target is not None:
            raise UserError("`generate` explains what the model itself predicts: leave `target` and `foil` out")
        if self.label is not None and self.target is not None:
            raise UserError("`target` is a word for a language model, `label` is for a classifier: give one of them")
        if self.foil is not None and self.target is None and self.label is None:
            raise UserError("a foil needs a target that it is contrasted with: give `target` too, or `label`")
        if isinstance(self.foil, int) != isinstance(self.target, int) and None not in (self.foil, self.target):
            raise UserError("`target` and `foil` must be both words or both token ids")
        if self.every_token and (not isinstance(self.target, str) or self.foil is not None):
            raise UserError(
                f"words={self.words!r} explains every token of a target: give words as `target`, and no foil"
            )
        self._check_answer()

    def _check_types(self) -> None:
        """Raise UserError for a field of the wrong type or outside its range."""
        if not isinstance(self.sentence, str):
            raise UserError(f"a text must be a string, not {self.sentence!r}")
        for name, word in (("target", self.target), ("foil", self.foil)):
            if isinstance(word, bool) or not isinstance(word, str | int | None):
                raise UserError(f"`{name}` must be a word or a token id, not {word!r}")
        for name, text in (("second", self.second), ("prefix", self.prefix)):
            if not isinstance(text, str | None):
                raise UserError(f"`{name}` must be a string, not {text!r}")
        if isinstance(self.label, bool) or not isinstance(self.label, str | int | None):
            raise UserError(f"`label` must be the name or number of a label, not {self.label!r}")
        for value in (self.sentence, self.target, self.foil, self.second, self.label, self.prefix, self.answer):
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                path = "; if it is the path of an image, rename the file" if value is self.sentence else ""
                raise UserError(f"{value!r:.80} has half of a character (a surrogate), which no tokenizer reads{path}")
        if not _is_count(self.generate) or self.generate < 1:
            raise UserError(f"`generate` must be a number of tokens, at least 1, not {self.generate!r}")
        if self.words not in get_args(Words):
            whole = "; a whole answer is explained by `answer`" if self.words == "all" else ""
            raise UserError(f"`words` must be one of {', '.join(get_args(Words))}, not {self.words!r}{whole}")

    def _check_answer(self) -> None:
        """Raise UserError for an invalid answer or spans, and for fields that do not go together with an answer."""
        numbers = isinstance(self.answer, tuple) and all(isinstance(token, Integral) for token in self.answer)
        if not numbers and not isinstance(self.answer, str | None):
            raise UserError(f"`answer` must be a text or token ids, not {self.answer!r:.80}")
        if isinstance(self.spans, str) and self.spans not in (SENTENCE, TOKEN):
            raise UserError(f"`spans` must be {SENTENCE!r}, {TOKEN!r} or a list of (start, end), not {self.spans!r}")
        if not _is_count(self.hops) or self.hops < 0 or (self.hops and self.reasoning is None):
            raise UserError(
                f"`hops` must be a number of steps, here {self.hops!r}, and needs `reasoning`: the part "
                "(start, end) of the answer whose relevance each step passes on"
            )
        if not self.has_answer:
            if self.hops:
                raise UserError("`hops` need an answer: give `answer`, or `spans` and `generate`")
            return
        if self.answer is None and self.generate == 1:
            raise UserError("`spans` need an answer: give `answer`, or in `generate` how many tokens it may have")
        for name in ("target", "label", "second"):
            if getattr(self, name) is not None:
                raise UserError(f"an answer takes the place of `{name}`: leave `{name}` out")
        if self.answer is not None and self.generate > 1:
            raise UserError("`answer` and `generate` exclude each other: give one of them")

    @property
    def has_answer(self) -> bool:
        """True if an answer is explained, given or generated, instead of single predictions."""
        return self.answer is not None or self.spans is not None

    @property
    def as_it_is(self) -> bool:
        """True if the text is read unchanged: it is a chat, or was given as token ids."""
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
        """True if every token of the target is explained in turn."""
        return self.words == "each"

    @property
    def is_sample(self) -> bool:
        """True if the question has the form of a task's sample: a text with a word as its target."""
        is_word = isinstance(self.target, str) and not self.every_token
        return is_word and self.prefix is None and not self.as_it_is

    @property
    def several(self) -> bool:
        """True if more than one prediction may be explained."""
        return self.every_token or self.generate > 1 or self.has_answer

    def prompt(self, opened: Opened) -> Prompt:
        """The text before the target that a causal model or encoder reads, and the space before the target."""
        prompt = Prompt.of(self.before, has_spaces(opened.tokenizer))
        if not self.as_it_is:
            return prompt
        # A chat or token ids are read unchanged. The target of a chat gets no space; that of token ids gets one unless
        # their text ends in white space: `Prompt.of` would move a final space to the target, and gives none after other
        # white space.
        ends_in_space = prompt.text != self.before
        gets_space = self.ids is not None and not ends_in_space
        return Prompt(self.before, prompt.space, prompt.is_added) if gets_space else Prompt(self.before, "")

    def answer_so_far(self, opened: Opened) -> Prompt:
        """The text that the decoder has written already, with the space that belongs to the target."""
        return Prompt.of(self.prefix or "", has_spaces(opened.writer))


def _is_count(value: Any) -> bool:
    """True for an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def text_read(question: Question, opened: Opened) -> str:
    """The string that the tokenizer gets: for masked models with the mask token at the target's place, else the text
    before the target.
    """
    if opened.resolved.kind.slot and not question.as_it_is:
        return Filled.of(question.text, len(question.before), opened.tokenizer.mask_token).text
    return question.prompt(opened).text


def space_note(question: Question, opened: Opened, read: Sequence[str], token: str) -> str:
    """A note about the space before the explained target, beginning with a comma; "" if there is nothing to say.

    For a masked model it tells that a space was added before the target, for others whether the target begins with the
    space before it. `read` are the texts of the tokens that were read, `token` that of the target token.
    """
    kind, before = opened.resolved.kind, question.before
    if kind.labels or question.has_answer:
        return ""
    prompt, note = question.prompt(opened), ""
    target_took_space = prompt.text != before  # the last space of the text belongs to the target
    if kind.slot:
        return ", with a space before it" if prompt.space and not target_took_space else ""
    if kind.decoder:  # the target follows what the decoder has written, not the text
        note = ", the text without its last space" if target_took_space else ""
        prompt = question.answer_so_far(opened)
        target_took_space = prompt.text != (question.prefix or "")
    if target_took_space:
        return f", with the space before it{note}"
    if not isinstance(question.target, str) or not prompt.text or prompt.text[-1].isspace():
        return note
    if question.words == "first_difference":  # the token may be a later one of the word
        has_space = bool(prompt.space_before(question.target.strip()))
    else:
        has_space = token[:1].isspace() or not read[-1].strip()
    if has_space:
        return f", with the space before it{note}"
    return f", without a space before it{note}" if has_spaces(opened.writer) else note


def question_of(text_or_chat: Any, opened: Opened, **asked: Any) -> Question:
    """The question about a text or a chat; a chat becomes text by the tokenizer's template. `asked` are other fields.

    If the last message of a chat is the assistant's, and neither target nor answer is given, that message is the answer
    to explain. Raises UserError for anything that is neither text nor chat, and for messages that the template refuses.
    """
    asked["spans"] = spans_of(asked.get("spans"))
    if not is_chat(text_or_chat):
        return Question(text_or_chat, **asked)
    if opened.tokenizer is None:
        raise UserError(f"{opened.id} reads images: give the path of an image as the text")
    messages, goes_on = list(text_or_chat), not opened.resolved.kind.labels
    unasked = asked.get("generate", 1) == 1 and all(asked.get(name) is None for name in ("answer", "target"))
    if goes_on and unasked and len(messages) > 1 and messages[-1].get("role") == _ANSWERING:
        asked["answer"] = messages.pop().get("content")
    text, parts = rendered(messages, opened.tokenizer, goes_on)
    return Question(text, parts=parts, **asked)


def segmenter_of(value: str | Segmenter | None) -> Segmenter | None:
    """A caller's `segmenter`: a function, or its name, such as "jieba:lcut". Raises UserError for another name."""
    if value is None or callable(value):
        return value
    module, _, name = str(value).partition(":")
    try:
        segmenter: Segmenter = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"`segmenter` {value!r} is no function that is installed ({error}): write PACKAGE:FUNCTION"
        ) from None
    return segmenter


def spans_of(value: Any) -> str | tuple[tuple[int, int], ...] | None:
    """A caller's `spans` as a question has them. Raises UserError unless it is a word or pairs of numbers."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Sequence) or not all(map(_is_pair, value)):
        raise UserError(f"`spans` must be {SENTENCE!r}, {TOKEN!r} or a list of (start, end), not {value!r:.80}")
    return tuple((start, end) for start, end in value)


def reasoning_of(value: Any) -> tuple[int, int] | None:
    """A caller's `reasoning` as (start, end); None for None. Raises UserError unless it is a pair of numbers.

    Whether these characters lie in the answer is checked later.
    """
    if value is None:
        return None
    if not _is_pair(value):
        raise UserError(f"`reasoning` must be (start, end), the characters of a part of the answer, not {value!r:.80}")
    start, end = value
    return start, end


def _is_pair(value: Any) -> bool:
    """True for a sequence of two numbers, start and end."""
    return _is_list(value) and len(value) == 2 and all(map(_is_count, value))
