"""Prompts as a model reads them: a text as it is, or a chat as the tokenizer's template writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from evaluation.benchmark.answers.units import without_units
from evaluation.benchmark.encoding import Encoding, encode
from evaluation.benchmark.samples import SEPARATOR, Malformed, Span, Turn


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
    contents = [prompt.text[start:end] for _, start, end in prompt.turns]
    marks = [f"\u2063{at}\u2063" for at in range(len(contents))]  # invisible separators, which no template trims
    roles = [role for role, _, _ in prompt.turns]
    text, marked = (_templated(tokenizer, roles, formatted) for formatted in (contents, marks))
    for form in (str, str.strip):  # a template may trim
        formatted = [form(content) for content in contents]
        places = _places(prompt, marked, marks, formatted)
        if places is not None and _filled(marked, marks, formatted) == text:
            return Written(text, places, template=False)
    raise Malformed("the chat template changes the messages", "give `prompt` in place of `messages`")


def _templated(tokenizer: PreTrainedTokenizerBase, roles: Sequence[str], contents: Sequence[str]) -> str:
    """The chat in the tokenizer's chat template, up to where the model's answer begins.

    Raises Malformed if there is no template, or it refuses the messages.
    """
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


def _places(prompt: Prompt, marked: str, marks: Sequence[str], contents: Sequence[str]) -> np.ndarray | None:
    """The index of each character of the prompt in the filled template [characters + 1].

    `marked` is the template filled with `marks`, which `contents` will replace. None unless each mark occurs once, and
    in order.
    """
    assert prompt.turns is not None
    places = np.zeros(len(prompt.text) + 1, np.int64)
    shift = last = 0
    for (_, start, end), mark, content in zip(prompt.turns, marks, contents, strict=True):
        if marked.count(mark) != 1 or marked.index(mark) < last:
            return None
        last = marked.index(mark)
        at = last + shift
        shift += len(content) - len(mark)
        before = prompt.text[start:end].index(content)  # characters that were trimmed
        inside = np.clip(np.arange(end - start + 1) - before, 0, len(content))
        places[start : end + 1] = at + inside
    return places


def _filled(marked: str, marks: Sequence[str], contents: Sequence[str]) -> str:
    """`marked` with each of `marks` replaced by its content."""
    for mark, content in zip(marks, contents, strict=True):
        before, _, behind = marked.partition(mark)
        marked = before + content + behind
    return marked


def encoded(written: Sequence[Written], tokenizer: PreTrainedTokenizerBase, open_ended: bool) -> list[Encoding]:
    """The tokens of each prompt; with `open_ended` without the special tokens that the tokenizer adds at the end.

    A chat keeps all special tokens: its chat template has written them.
    """
    encodings: list[Encoding | None] = [None] * len(written)
    for template in (True, False):
        rows = [at for at, each in enumerate(written) if each.template == template]
        for at, encoding in zip(rows, encode(tokenizer, [written[at].text for at in rows], template), strict=True):
            encodings[at] = encoding.open_ended() if open_ended and template else encoding
    return [encoding for encoding in encodings if encoding is not None]
