"""Reads what callers pass to `closelook.explain`: texts, chats, token ids and pictures, each alone or several together.

A container is read by the column or key that holds its texts, or refused. It is never iterated otherwise: a data frame
would give the names of its columns, a dictionary its keys, a set its texts in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any, NamedTuple

from PIL import Image

from closelook.evaluation.benchmark.encoding import encoding_of_ids
from closelook.evaluation.benchmark.pictures import file_of
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import Question, is_chat, question_of, reasoning_of, spans_of
from closelook.lrp_core.records.types import UserError

TEXT, SECOND = "text", "text_pair"  # columns and keys that hold texts, as in a `pipeline` of transformers
PICTURE = "picture in memory"  # stands for its path
_KINDS = {
    "text": "a string",
    "messages": "a list of messages, each with a role and a content",
    "input_ids": "a list of token ids",
}
_REMEDIES = {
    "text": f"give its texts, or name them {TEXT!r}",
    "messages": "give a list of messages, each with a role and a content",
    "input_ids": "give the token ids of each text alone",
}


class Item(NamedTuple):
    """One text to explain, in one of several forms."""

    kind: str  # text (a string), messages (of a chat), input_ids (token ids) or picture (in memory)
    value: Any
    second: Any = None  # the second text of a pair, where it came with the first

    @property
    def shown(self) -> Any:
        """The text as the caller gave it; of a picture, a few words."""
        return PICTURE if self.kind == "picture" else self.value

    def question(self, opened: Opened, **settings: Any) -> Question:
        """The question about this text; `settings` are the other fields of Question.

        Raises UserError for a value of another form, and for token ids that the tokenizer does not have.
        """
        if isinstance(settings.get("answer"), list):
            settings["answer"] = tuple(settings["answer"])
        settings["spans"] = spans_of(settings.get("spans"))
        settings["reasoning"] = reasoning_of(settings.get("reasoning"))
        if self.second is not None:
            if settings.get("second") is not None:
                raise UserError(f"the text comes with a {SECOND!r}: leave `second` out")
            settings["second"] = self.second
        if self.kind == "picture":
            if opened.tokenizer is not None:
                raise UserError(f"{opened.id} reads texts, not pictures: give a string")
            return Question(PICTURE, picture=file_of(self.value), **settings)
        if isinstance(self.value, Mapping):
            raise _unread(TEXT, self.value)
        if self.kind != "input_ids":
            return question_of(self.value, opened, **settings)
        tokenizer = opened.tokenizer
        if tokenizer is None:
            raise UserError(f"{opened.id} reads images: give the path of an image as `text`")
        ids = tuple(_ids(self.value, len(tokenizer)))
        if tokenizer.pad_token_id in (*ids[:1], *ids[-1:]) and tokenizer.pad_token_id != tokenizer.eos_token_id:
            raise UserError("`input_ids` begin or end with padding: give the tokens of each text alone")
        _, text = encoding_of_ids(ids, tokenizer)
        return Question(text, ids=ids, **settings)


def items(text: Any, messages: Any, input_ids: Any) -> tuple[list[Item], bool]:
    """(the texts, True if the caller passed a list of texts rather than one).

    `text` may also hold messages. Raises UserError unless exactly one of the three is given, in its form.
    """
    alternatives = {"text": text, "messages": messages, "input_ids": input_ids}
    named = [name for name, value in alternatives.items() if value is not None]
    if len(named) != 1:
        raise UserError(
            f"give exactly one of `text`, `messages` and `input_ids`; given: {' and '.join(named) or 'none'}"
        )
    [name] = named
    value = alternatives[name]
    item = _item(name, value)
    if item is not None:
        return [item], False
    if isinstance(value, Mapping) or _is_table(value):
        if name != TEXT or TEXT not in value:
            raise _unread(name, value)
        return _rows(value), True
    if not (_is_array(value) and value.ndim > 1):
        value = plain(value)
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise UserError(f"`{name}` must be {_KINDS[name]}, or a list of these, not {value!r:.80}")
    if isinstance(value, Set):
        raise UserError(f"`{name}` is a {type(value).__name__}, whose entries have no order: give a list")
    entries = list(value)
    if not entries and name != TEXT:
        raise UserError(f"`{name}` is empty: give at least one entry")
    return [_item(name, entry) or Item(name, plain(entry)) for entry in entries], True


def _item(name: str, value: Any) -> Item | None:
    """The argument `name`, or an entry of it, as one text; None if it is no single text."""
    if name == "text" and _is_picture(value):
        return Item("picture", value)
    value = plain(value)
    if name == "input_ids":
        return Item(name, value) if _are_numbers(value) else None
    if isinstance(value, Mapping) and {"role", "content"} <= set(value):
        return Item("messages", [value])
    if name == "text" and isinstance(value, Mapping) and isinstance(value.get(TEXT), str):
        return Item(name, value[TEXT], value.get(SECOND))
    if is_chat(value) and not (name == "text" and any(TEXT in entry for entry in value)):
        return Item("messages", value)
    return Item(name, value) if name == "text" and isinstance(value, str) else None


def _rows(table: Any) -> list[Item]:
    """The texts in the columns `text` and `text_pair` of a data frame, or of a mapping of lists.

    Raises UserError for columns of different lengths, for two columns of one name, and for values that are no lists.
    """
    texts = table[TEXT]
    if not isinstance(texts, Collection):
        raise UserError(f"{TEXT!r} must be a string or a list of strings, not {texts!r:.80}")
    columns = [of_each(name, table[name], len(texts)) for name in (TEXT, SECOND) if name in table]
    return [Item("text", *row) for row in zip(*columns, strict=True)]


def _is_table(value: Any) -> bool:
    """True for a data frame of pandas or polars."""
    return type(value).__name__ == "DataFrame"


def _is_picture(value: Any) -> bool:
    """True for an image of Pillow, and for an array or tensor of two or three axes of numbers."""
    if isinstance(value, Image.Image):
        return True
    return _is_array(value) and value.ndim in (2, 3) and getattr(value.dtype, "kind", "u") in "biuf"


def _is_array(value: Any) -> bool:
    """True for an array of numpy or a tensor of torch."""
    return type(value).__name__ in ("Tensor", "ndarray")


def _unread(name: str, container: Any) -> UserError:
    """The error of a mapping or data frame that the argument `name`, or an entry of it, cannot be read from."""
    known = ", ".join(map(str, getattr(container, "columns", container))) or "nothing"
    return UserError(f"`{name}` is a {type(container).__name__} with {known:.60}: {_REMEDIES[name]}")


def of_each(name: str, value: Any, count: int) -> list[Any]:
    """A list with the value of the argument `name` for each of `count` texts.

    A single value is repeated. Raises UserError for a list of another length, and for containers that have names or no
    order.
    """
    value = plain(value)
    if isinstance(value, Mapping | Set) or _is_table(value):
        raise UserError(
            f"`{name}` is a {type(value).__name__}: give one value for all texts, or a list of one for each"
        )
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return [value] * count
    if len(value) != count:
        raise UserError(f"`{name}` has {len(value)} entries for {count} texts: give one for all, or one for each")
    return list(map(plain, value))


def plain(value: Any) -> Any:
    """`value`, converted to plain Python if it is an integer, array or tensor of numpy or torch."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return value.tolist() if _is_array(value) else value


def _are_numbers(value: Any) -> bool:
    """True for a sequence of at least one integer, and of nothing else (True and False are no numbers)."""
    if not isinstance(value, Sequence) or not len(value):
        return False
    return all(isinstance(entry, Integral) and not isinstance(entry, bool) for entry in value)


def _ids(value: Any, size: int) -> list[int]:
    """`value` as token ids. Raises UserError unless they are ids of a tokenizer with `size` tokens."""
    if not _are_numbers(value):
        raise UserError(f"`input_ids` must be a list of token ids (integers, at least one), not {value!r:.80}")
    for token in value:
        if not 0 <= token < size:
            raise UserError(f"`input_ids` contain {token}, but the tokenizer has {size:,} tokens, numbered from 0")
    return [int(token) for token in value]
