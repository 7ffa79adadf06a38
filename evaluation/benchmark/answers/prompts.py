"""Prompts as a model reads them, and their units, each removed as a whole to measure its effect.

A prompt is a text as it is, or a chat as the tokenizer's template writes it. Units are words, sentences, passages or
turns of a chat. A unit is a span of characters; characters become tokens through offsets. Text in no unit, such as the
question and what a template adds, is never removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from closelook.evaluation.benchmark.encoding import Encoding, encode
from closelook.evaluation.benchmark.samples import SEPARATOR, Malformed, Span, Turn, UnitKind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NO_UNIT = -1  # stands for the unit of a token that belongs to none
_CLOSING = "[\"'»”’)\\]}」』】）]*"  # what may stand behind the mark at the end of a sentence
_SENTENCE_END = re.compile(rf"(?P<wide>[。．？！]+{_CLOSING})|(?P<marks>[.!?…]+){_CLOSING}(?=\s|$)")
#: Letters with a full stop each (J., U.S., p.m.), and words that are cut short (Dr.).
_ABBREVIATION = re.compile(
    r"(?<!\w)([A-Z]\.)+$|(?<!\w)([a-z]\.){2,}$|(?<!\w)(Dr|Mr|Mrs|Ms|Mx|Prof|St|Rev|Gen|Col|Capt|Lt|Sgt|Gov|Sen|Rep|Hon|Mt|Ft|Nr|Vol|Fig|Eq"
    r"|Sec|Ch|pp?|vs|cf|al|etc|approx|ca|z\.B)\.$"
)


def units_of(prompt: str, meta: Mapping[str, Any], kind: UnitKind | None) -> list[Span]:
    """The units of a prompt in the order of the text, as its sample's `meta` lists them.

    Units that the sample gives are taken as they are. Else they are of one `kind`: `passage` (its `sources`), `turn`
    (the messages of a chat but for the last), or the `sentence`s or `word`s of its sources, or without sources those of
    the prompt but for a chat's last message. By default they are its sources, else its sentences.

    Raises Malformed for fewer than two units, units that overlap and units outside of the prompt.
    """
    known_spans = meta.get("units")
    if known_spans is not None:
        return checked(known_spans, prompt)
    sources, turns = meta.get("sources"), [(start, end) for _, start, end in meta.get("turns") or ()]
    if kind == "passage" or (kind is None and sources):
        return checked(sources or (), prompt)
    if kind == "turn":
        return checked(turns[:-1], prompt)
    if sources:
        within = checked(sources, prompt)
    elif turns:
        within = turns[:-1]
    else:
        within = sentences_in(prompt)[:-1]
    split = words_in if kind == "word" else sentences_in
    spans = [(start + low, start + high) for start, end in within for low, high in split(prompt[start:end])]
    return checked(spans, prompt)


def words_in(text: str) -> list[Span]:
    """The words of a text, with their punctuation: the ranges of characters between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def checked(spans: Sequence[Sequence[int]], text: str, least: int = 2) -> list[Span]:
    """`spans` of `text` as [start, end), sorted.

    Raises Malformed for spans that overlap, are empty or blank, or lie outside of the text, and for fewer than `least`.
    """
    ordered = sorted((int(start), int(end)) for start, end in spans)
    for start, end in ordered:
        if not 0 <= start < end <= len(text):
            raise Malformed("unit outside of the prompt", f"[{start}, {end}) of {len(text)} characters")
        if not text[start:end].strip():
            raise Malformed("empty unit", f"[{start}, {end})")
    for before, behind in pairwise(ordered):
        if before[1] > behind[0]:
            raise Malformed("overlapping units", f"[{before[0]}, {before[1]}) and [{behind[0]}, {behind[1]})")
    if len(ordered) < least:
        raise Malformed("fewer than two sources", f"{len(ordered)}: a choice among sources takes two at least")
    return ordered


def units_of_tokens(offsets: np.ndarray, special: np.ndarray, text: str, units: Sequence[Sequence[int]]) -> np.ndarray:
    """The index in `units` of each token's unit [T]; NO_UNIT for a token in none.

    `offsets` [T, 2] are the characters [start, end) of each token in `text`; `special` [T] tokens are in no unit. A
    token is in the unit that has most of its characters, of equal ones in the earlier; text in no unit counts like a
    unit. White space counts only for tokens that consist of it. Some tokenizers leave it out of offsets, which are then
    empty: such a token covers the white space behind the token before it.

    >>> offsets, special = np.array([[0, 4], [4, 9], [9, 12]]), np.zeros(3, bool)
    >>> units_of_tokens(offsets, special, "Yes. No. end", [[0, 4], [5, 8]]).tolist()
    [0, 1, -1]
    """
    owner = np.full(len(text), NO_UNIT)  # the unit of each character
    for number, (start, end) in enumerate(units):
        owner[start:end] = number
    printed = np.array([not character.isspace() for character in text], bool)
    numbers, before = np.full(len(offsets), NO_UNIT), 0
    for at, (start, end) in enumerate(offsets.tolist()):
        if before < start == end and not printed[before:end].any():
            start = before
        before = max(before, end)
        if special[at] or start >= end:
            continue
        owners = owner[start:end][printed[start:end]]
        if not len(owners):
            owners = owner[start:end]
        values, first, counts = np.unique(owners, return_index=True, return_counts=True)
        numbers[at] = values[np.lexsort((first, -counts))[0]]
    return numbers


def without_units(text: str, units: Sequence[Sequence[int]], kept: Sequence[bool]) -> str:
    """`text` without the units that are not `kept`.

    The white space before a removed unit is removed with it; at the beginning of the text, the white space after it.

    >>> without_units("One. Two. Three.", [[0, 4], [5, 9]], [True, False])
    'One. Three.'
    >>> without_units("One. Two. Three.", [[0, 4], [5, 9]], [False, True])
    'Two. Three.'
    """
    rest, at = "", 0
    for (start, end), stays in zip(units, kept, strict=True):
        if stays:
            continue
        rest = (rest + text[at:start]).rstrip()
        behind = text[end:]
        at = end if rest else end + len(behind) - len(behind.lstrip())
    return rest + text[at:]


def sentences_in(text: str) -> list[Span]:
    """The sentences [start, end) of a text, without the white space around them.

    A sentence ends at . ! ? or … before white space, and at 。 ？ ！ or ． wherever they stand, with the quotation
    marks and brackets behind them. No sentence ends at the full stop of an abbreviation.

    >>> text = "Dr. Li left at 5 p.m. today. 我喜欢猫。你呢？"
    >>> [text[start:end] for start, end in sentences_in(text)]
    ['Dr. Li left at 5 p.m. today.', '我喜欢猫。', '你呢？']
    """
    ends = [match.end() for match in _SENTENCE_END.finditer(text) if not _goes_on(text, match)]
    spans = []
    for start, end in pairwise([0, *ends, len(text)]):
        bare = text[start:end].strip()
        if bare:
            begin = start + text[start:end].index(bare)
            spans.append((begin, begin + len(bare)))
    return spans


def _goes_on(text: str, mark: re.Match[str]) -> bool:
    """True if the sentence goes on behind this mark, because an abbreviation ends in it."""
    return mark["marks"] == "." and _ABBREVIATION.search(text[: mark.end()]) is not None


@dataclass(frozen=True)
class Prompt:
    """The text of a prompt, and the turns of a chat."""

    text: str
    turns: tuple[Turn, ...] | None = None

    @classmethod
    def of(cls, text: str, meta: Mapping[str, Any]) -> Prompt:
        """The prompt of a generic sample with this `meta`."""
        turns = meta.get("turns")
        return cls(text, None if turns is None else tuple((role, start, end) for role, start, end in turns))

    def without(self, units: Sequence[Span], kept: Sequence[bool]) -> Prompt:
        """The prompt without the units that are not `kept`; a message of which nothing is left is removed too."""
        if self.turns is None:
            return Prompt(without_units(self.text, units, kept))
        text, turns = "", list[Turn]()
        for role, start, end in self.turns:
            inside = [at for at, unit in enumerate(units) if start <= unit[0] < end]
            spans = [(units[at][0] - start, min(units[at][1], end) - start) for at in inside]
            content = without_units(self.text[start:end], spans, [kept[at] for at in inside])
            if content.strip() or all(kept[at] for at in inside):
                text += SEPARATOR if turns else ""
                turns.append((role, len(text), len(text) + len(content)))
                text += content
        return Prompt(text, tuple(turns))


@dataclass(frozen=True)
class Written:
    """A prompt as the text that the tokenizer splits: of a chat, with what the chat template writes around it."""

    text: str
    places: np.ndarray  # [characters of the prompt + 1] the index in `text` of each character, and of the end
    template: bool  # True: the tokenizer adds its special tokens; False: a chat's text has them already

    def shifted(self, span: Sequence[int]) -> Span:
        """A span [start, end) of the prompt, moved to where it lies in `text`."""
        return int(self.places[span[0]]), int(self.places[span[1]])


def written(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Written:
    """The prompt as the model reads it, a chat in the tokenizer's chat template.

    The template is filled twice: with the messages, and with marks in their stead that tell where each message goes.
    Raises Malformed if the tokenizer has no chat template, or the template refuses the messages or changes them.
    """
    if prompt.turns is None:
        return Written(prompt.text, np.arange(len(prompt.text) + 1), template=True)
    roles, contents = [], []
    for role, start, end in prompt.turns:
        roles.append(role)
        contents.append(prompt.text[start:end])
    marks = [f"\u2063{at}\u2063" for at in range(len(contents))]  # invisible separators, which no template trims
    text, marked = (_templated(tokenizer, roles, filling) for filling in (contents, marks))
    *before, last = re.split("|".join(marks), marked)
    for form in (str, str.strip):  # a template may trim
        formatted = [form(content) for content in contents]
        filled = "".join(chain.from_iterable(zip(before, formatted, strict=False)))
        if re.findall("|".join(marks), marked) == marks and filled + last == text:
            return Written(text, _places(prompt, before, formatted), template=False)
    raise Malformed("the chat template changes the messages", "give `prompt` in place of `messages`")


def _templated(tokenizer: PreTrainedTokenizerBase, roles: Sequence[str], contents: Sequence[str]) -> str:
    """The chat in the tokenizer's chat template, up to where the model's answer begins."""
    if tokenizer.chat_template is None:
        raise Malformed("the tokenizer has no chat template", "give `prompt` in place of `messages`")
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise Malformed("the chat template refuses the messages", " ".join(str(error).split())) from None
    assert isinstance(text, str)
    return text


def _places(prompt: Prompt, before: Sequence[str], contents: Sequence[str]) -> np.ndarray:
    """The index of each character of a chat in the filled template [characters + 1]."""
    places, at = np.zeros(len(prompt.text) + 1, np.int64), 0
    for (_, start, end), template, content in zip(prompt.turns or (), before, contents, strict=True):
        at += len(template)
        trimmed = prompt.text[start:end].index(content)
        places[start : end + 1] = at + np.clip(np.arange(end - start + 1) - trimmed, 0, len(content))
        at += len(content)
    return places


def encoded(written: Written, tokenizer: PreTrainedTokenizerBase, open_ended: bool) -> Encoding:
    """The tokens of a prompt; with `open_ended` without the special tokens that the tokenizer adds at the end."""
    [encoding] = encode(tokenizer, [written.text], written.template)
    return encoding.open_ended() if open_ended and written.template else encoding
