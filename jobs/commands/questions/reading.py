"""Tokenises questions: the row of schema VIEW that a model reads, with its readout position and target."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from closelook.evaluation.benchmark.answers.prompts import units_of_tokens
from closelook.evaluation.benchmark.encoding import Encoding, encode, encoding_of_ids, with_specials
from closelook.evaluation.benchmark.pictures import picture, view_of
from closelook.evaluation.benchmark.samples import Malformed, Prompt, Row, sample, with_evidence
from closelook.evaluation.benchmark.slotless import TOO_LONG
from closelook.evaluation.benchmark.slots import NOT_ONE_TOKEN, tail_behind
from closelook.evaluation.benchmark.views import tokenise
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import MARKER, Question, text_read
from closelook.jobs.plan.models import ResolvedModel
from closelook.lrp_core.records.explained import EXPLAINED, TARGET, needs_foil
from closelook.lrp_core.records.types import UserError, nearest

#: Names of the parts of a prompt that are no messages of a chat: a text, and tokens that a template adds.
PROMPT, TEMPLATE = "prompt", "template"
_OF_TOKENS = ("input_ids", "special_mask", "part_names")  # columns of a row that have an entry for each token


def _encoded(question: Question, opened: Opened) -> Encoding:
    """The tokens of the question's text, with the special tokens that the tokenizer adds."""
    tokenizer = opened.tokenizer
    if question.ids is not None:
        return encoding_of_ids(question.ids, tokenizer)[0]
    (encoding,) = encode(tokenizer, [text_read(question, opened)], template=question.parts is None)
    return encoding if question.parts is None else with_specials(encoding, tokenizer)


def read(question: Question, opened: Opened) -> Row:
    """The row of schema VIEW for a question; `target_id` is None if the model's own prediction is to be explained.

    Raises UserError for a question that does not fit the model.
    """
    row = _row(question, opened)
    _check_known([*row["input_ids"], *(row.get("decoder_input_ids") or ())], opened)
    if not opened.resolved.kind.labels:
        _check_known([token for token in (row["target_id"], row["foil_id"]) if token is not None], opened)
    return row


def _check_known(ids: Sequence[int], opened: Opened) -> None:
    """Raise UserError if the model has no embedding for one of the tokens `ids`, which its tokenizer has."""
    if max(ids, default=0) >= opened.view.vocab:
        raise UserError(
            f"{opened.id} has {opened.view.vocab:,} tokens, numbered from 0, and none with the number {max(ids)} that "
            "its tokenizer gives: give the tokenizer that the model was made with"
        )


def _row(question: Question, opened: Opened) -> Row:
    """The row of a question, as `read` returns it; its tokens may be unknown to the model."""
    resolved = opened.resolved
    kind = resolved.kind
    if kind.images:
        return _picture(question, resolved)
    if kind.labels:
        return _for_labels(question, opened)
    _check_words(question, resolved)
    if question.is_sample:
        return _fitted(_with_word(question, opened), question, opened)
    encoding = _encoded(question, opened)
    row: Row = {
        "target_id": _token_id(question.target, "target", question, opened),
        "foil_id": _token_id(question.foil, "foil", question, opened),
    }
    _check_apart(row)
    if kind.decoder:
        _check_text(encoding, "no text to read")
        written = [] if question.prefix is None else _written(question, opened)
        if opened.writer.eos_token_id in written:
            raise UserError(f"`prefix` contains {opened.writer.eos_token!r}, which ends the answer: leave that out")
        row |= {"position": len(written), "decoder_input_ids": written}
    else:
        encoding = encoding if kind.slot or question.as_it_is else encoding.open_ended()
        _check_text(encoding, "no text before the place of the target")
        row["position"] = len(encoding) - 1
        if kind.slot:
            mask, times = opened.tokenizer.mask_token, encoding.ids.count(opened.tokenizer.mask_token_id)
            if times != 1:
                advice = f"mark its place by {MARKER} instead"
                if question.as_it_is:
                    advice = f"`input_ids` must have it once, not {times} times"
                raise UserError(f"{opened.id} predicts at the token {mask}: {advice}")
            row["position"] = encoding.ids.index(opened.tokenizer.mask_token_id)
    row |= {"input_ids": encoding.ids, "special_mask": encoding.special.tolist()}
    row["part_names"] = _part_names(encoding, question, opened)
    return _fitted(row, question, opened)


def _part_names(encoding: Encoding, question: Question, opened: Opened) -> list[str]:
    """The name of the part that each token belongs to: the message of a chat, PROMPT for a text, or TEMPLATE.

    A token with characters of two parts belongs to the part that has more of them.
    """
    if question.parts is None:
        return [TEMPLATE if special else PROMPT for special in encoding.special]
    text = text_read(question, opened)
    nonempty = [part for part in question.parts if part.start < part.end]
    names, spans = [part.name for part in nonempty], [(part.start, part.end) for part in nonempty]
    if not nonempty:
        return [TEMPLATE] * len(encoding)
    numbers = units_of_tokens(encoding.offsets, np.zeros(len(encoding), bool), text, spans)
    return [names[number] if number >= 0 else TEMPLATE for number in numbers]


def _fitted(row: Row, question: Question, opened: Opened) -> Row:
    """The row, shortened to the model's maximum length if the question has `truncate`; its `cut` counts lost tokens.

    Causal models lose the beginning of the text, others its end; special tokens stay. Raises UserError if the row is
    too long and may not be shortened, or cannot be.
    """
    resolved = opened.resolved
    goes_on = resolved.kind.causal and not resolved.kind.labels
    steps, most = 1, resolved.max_length
    if goes_on and question.answer is not None:
        steps = len(answer_ids(question, opened, row))
    elif goes_on:
        steps = len(tokens_of(question, opened)) if question.every_token else question.generate
    if question.truncate:
        most = min(most, opened.tokenizer.model_max_length)
    excess = len(row["input_ids"]) + steps - 1 - most
    if excess <= 0:
        return row
    if not question.truncate:
        more = f" and {steps} more" if goes_on else ""
        raise UserError(
            f"the text has {len(row['input_ids'])} tokens{more}, but {most} are the most: `truncate` reads a part of it"
        )
    special = row["special_mask"]
    ordinary = [at for at, is_special in enumerate(special) if not is_special]
    if excess >= len(ordinary):
        raise UserError(f"{steps} tokens to explain leave no room for a text: the model reads at most {most}")
    gone = set(ordinary[:excess] if goes_on else ordinary[-excess:])
    if resolved.kind.slot and row["position"] in gone:
        raise UserError("the place of the target is in the part of the text that is cut off: shorten the text")
    kept = [at for at in range(len(special)) if at not in gone]
    cut = {name: [row[name][at] for at in kept] for name in _OF_TOKENS if row.get(name) is not None}
    position = row["position"]
    if not resolved.kind.decoder:
        position -= sum(at < position for at in gone)
    return {**row, **cut, "position": position, "cut": excess}


def _check_words(question: Question, resolved: ResolvedModel) -> None:
    """Raise UserError for a question that does not fit a model which predicts words."""
    model, kind = resolved.config.id, resolved.kind
    if question.label is not None or question.second is not None:
        raise UserError(f"{model} predicts words: `label` and `second` are for models that predict labels")
    if question.foil is None and needs_foil(question.explanation or TARGET.name):
        free = " or ".join(explained.name for explained in EXPLAINED.values() if not explained.needs_foil)
        with_target = "" if question.several else "`target` and `foil`, or "
        raise UserError(f"a {question.explanation} explanation needs a foil: give {with_target}`explanation` {free}")
    if question.prefix is not None and not kind.decoder:
        raise UserError(f"{model} is no encoder-decoder: leave `prefix` out, or put it at the end of the text")
    if kind.slot and question.several:
        advice = "leave `words` out" if question.every_token else "leave `answer`, `spans` and `generate` out"
        raise UserError(f"{model} predicts a word inside a text and does not continue one: {advice}")


def _unexplained(reason: object) -> UserError:
    """The error of a text that cannot be explained."""
    return UserError(f"this sentence cannot be explained: {reason}")


def _check_text(encoding: Encoding, reason: str) -> None:
    """Raise UserError, for this `reason`, if a text has no tokens but special ones."""
    if not len(encoding) or encoding.special.all():
        raise _unexplained(reason)


def _token_id(word: str | int | None, name: str, question: Question, opened: Opened) -> int | None:
    """The id of `word`, the target or foil by `name`: a token id, or a word after the text (or the decoder's prefix).

    None if it is None, or if all its tokens are explained in turn. Raises UserError for a word of several tokens.
    """
    if isinstance(word, int):
        return _known_token(word, name, opened)
    if word is None or question.every_token:
        return None
    if opened.resolved.kind.slot:
        raise UserError("with `input_ids`, `target` and `foil` must be token ids too")
    if opened.resolved.kind.decoder:
        before, written = question.answer_so_far(opened), _written(question, opened)
        (joint,) = encode(opened.writer, [before.with_target(word.strip())], template=False)
        tail = _rest(joint.ids, written) or []
    else:
        before = question.prompt(opened)
        tail = tokens_behind(question, word if question.parts is not None else word.strip(), opened)
    if len(tail) != 1:
        raise _unexplained(f"{word!r} is not one token after {before.text[-40:]!r}")
    if tail[0] == opened.writer.unk_token_id:
        raise _unexplained(f"{word!r} is unknown to the tokenizer")
    return tail[0]


def _known_token(token: Any, name: str, opened: Opened) -> int:
    """`token` of the argument `name`, unchanged. Raises UserError unless it is the id of a token."""
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < len(opened.writer):
        raise UserError(f"`{name}`: give token ids from 0 to {len(opened.writer) - 1:,}, not {token!r}")
    return token


def tokens_behind(question: Question, text: str, opened: Opened) -> list[int]:
    """The tokens of `text` when it follows a prompt that is read unchanged (a chat or token ids)."""
    return _following(question.prompt(opened), _encoded(question, opened).ids, text, opened.tokenizer)


def _following(prompt: Prompt, before: list[int], text: str, tokenizer: Any) -> list[int]:
    """The tokens of `text` after a prompt, whose tokens are `before`; of `text` alone, if both would share a token."""
    behind = text if text[:1].isspace() else prompt.space_before(text) + text
    joint, by_itself = encode(tokenizer, [prompt.text + behind, behind], template=False)
    rest = _rest(joint.ids, before)
    return by_itself.ids if rest is None else rest


def _rest(joint: list[int], before: list[int]) -> list[int] | None:
    """The tokens of `joint` after those of `before`; None if `joint` does not begin with these."""
    return joint[len(before) :] if joint[: len(before)] == before else None


def _written(question: Question, opened: Opened) -> list[int]:
    """The tokens of the decoder's prefix."""
    return encode(opened.writer, [question.answer_so_far(opened).text], template=False)[0].ids


def answer_ids(question: Question, opened: Opened, row: Row) -> list[int]:
    """The token ids of the question's answer when it follows the prompt of the row. Raises UserError if it has none."""
    answer = question.answer
    if isinstance(answer, str) and not answer.strip():
        raise UserError("the answer is empty: give at least one word")
    if isinstance(answer, str) and opened.resolved.kind.decoder:
        ids = _following(question.answer_so_far(opened), row["decoder_input_ids"], answer, opened.writer)
    elif isinstance(answer, str):
        ids = _behind(question, answer, opened)
    else:
        ids = [_known_token(token, "answer", opened) for token in answer or ()]
    if not ids:
        raise UserError("the answer has no tokens: give at least one word or token id")
    _check_known(ids, opened)
    return ids


def _behind(question: Question, answer: str, opened: Opened) -> list[int]:
    """The tokens of an answer that follows the prompt: those added when both are tokenised together or, if the prompt
    and the answer would then share a token, those of the answer alone.
    """
    if question.as_it_is:
        return tokens_behind(question, answer, opened)
    prompt, tokenizer = question.prompt(opened), opened.tokenizer
    joint = prompt.with_target(answer)
    if answer[:1].isspace():
        joint = question.before + answer
    context, both = (encoding.open_ended() for encoding in encode(tokenizer, [prompt.text, joint]))
    rest = _rest(both.ids, context.ids)
    return encode(tokenizer, [joint[len(prompt.text) :]], template=False)[0].ids if rest is None else rest


def tokens_of(question: Question, opened: Opened) -> list[int]:
    """The ids of all tokens of the target when it follows the text, or when a decoder writes it.

    Raises UserError if there are none, and for tokens that the model lacks.
    """
    ids = _target_ids(question, opened)
    _check_known(ids, opened)
    return ids


def _target_ids(question: Question, opened: Opened) -> list[int]:
    """The ids of `tokens_of`, unchecked. Raises UserError if there are none."""
    word = str(question.target).strip()
    if opened.resolved.kind.decoder:
        ids = encode(opened.writer, [word], template=False)[0].ids
        if not ids:
            raise _unexplained(f"{question.target!r} has no tokens")
        return ids
    if question.as_it_is:
        return tokens_behind(question, word, opened)
    prompt, tokenizer = question.prompt(opened), opened.tokenizer
    encodings = encode(tokenizer, [prompt.text, prompt.with_target(word)])
    context, joint = (encoding.open_ended() for encoding in encodings)
    try:
        return tail_behind(prompt, word, context, joint, tokenizer).ids
    except Malformed as error:
        raise _unexplained(error) from None


def _for_labels(question: Question, opened: Opened) -> Row:
    """The row of a text or pair for a classifier or regressor. Raises UserError for questions that do not fit it."""
    resolved, model = opened.resolved, opened.resolved.config.id
    _check_asks_for_label(question, resolved)
    if question.several:
        raise UserError(f"{model} predicts {resolved.output}s: leave `generate` and `answer` out")
    if question.label is not None and resolved.output == "score":
        raise UserError(f"{model} predicts a score and has no labels: leave `label` out")
    if question.as_it_is:
        if question.second is not None:
            raise UserError("`second` needs the first text as a string too: give `text`, not messages or `input_ids`")
        encoding = _encoded(question, opened)
        _check_text(encoding, "no text to read")
        position = 0 if resolved.kind.reads == "first" else len(encoding) - 1
        row = {"input_ids": encoding.ids, "special_mask": encoding.special.tolist(), "position": position}
        row |= {"target_id": 0 if resolved.output == "score" else None, "foil_id": None}
        return _fitted(row, question, opened) | _labels(question, resolved)
    try:
        row = sample("terminal", question.sentence, None, None, None, second=question.second)
    except Malformed as error:
        raise _unexplained(error) from None
    return _view(row, question, opened) | _labels(question, resolved)


def _check_asks_for_label(question: Question, resolved: ResolvedModel) -> None:
    """Raise UserError for a `target` of a model that predicts labels or a score."""
    if question.target is None:
        return
    advice = "leave `target` out" if resolved.output == "score" else f"use `label` {question.target!r} for `target`"
    raise UserError(f"{resolved.config.id} predicts {resolved.output}s, not words: {advice}")


def _picture(question: Question, resolved: ResolvedModel) -> Row:
    """The row of the question's picture, prepared for the model, with its `pixel_values`.

    Raises UserError for a file that is no image, and for questions that do not fit a model of images.
    """
    model, path, data = resolved.config.id, Path(question.sentence).expanduser(), question.picture
    _check_asks_for_label(question, resolved)
    if question.second is not None or question.several:
        raise UserError(f"{model} predicts labels of images: leave `second`, `generate` and `answer` out")
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{model} reads images, but {path} cannot be read: {error.strerror}") from None
    assert resolved.preprocessing is not None
    try:
        view = view_of(picture("terminal", path.name, data, label=None), resolved.preprocessing)
    except Malformed as error:
        raise UserError(f"{path} cannot be explained: {error}") from None
    (row,) = resolved.taken([view])
    return {**row, "pixels": view["pixels"], **_labels(question, resolved)}


def _labels(question: Question, resolved: ResolvedModel) -> dict[str, int]:
    """`target_id` and `foil_id` of the labels that the question names. Raises UserError for an unknown label."""
    ids = {}
    for key, name in (("target_id", question.label), ("foil_id", question.foil)):
        if name is None:
            continue
        number = resolved.label_id(str(name))
        if number is None:
            raise UserError(f"{resolved.config.id} has no label {name!r}{nearest(str(name), resolved.labels)}")
        ids[key] = number
    _check_apart(ids)
    return ids


def _check_apart(row: Mapping[str, int | None]) -> None:
    """Raise UserError if the `foil_id` is the `target_id`: their difference is 0 whatever the model predicts."""
    if row.get("foil_id") is not None and row["foil_id"] == row.get("target_id"):
        raise UserError("target equals foil: give a foil that the model could predict in place of the target")


def _with_word(question: Question, opened: Opened) -> Row:
    """The row of a text with a word as its target, made as a task's sample is.

    Samples need evidence, which a question does not have: the first word of the text takes its place.
    """
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
    """The sample `row` of schema GENERIC as the model reads it. Raises UserError if it cannot be tokenised."""
    resolved = opened.resolved
    truncates_later = question.truncate and not resolved.kind.labels
    max_length = sys.maxsize if truncates_later else resolved.max_length
    views, rejects = tokenise(
        [row],
        opened.tokenizer,
        kind=resolved.kind,
        max_length=max_length,
        truncate=question.truncate and resolved.kind.labels,
        words=question.words if question.words == "first_difference" else "single",
        decoder_tokenizer=opened.decoder_tokenizer,
    )
    for reject in rejects:
        message = ": ".join(filter(None, (reject["reason"], reject["detail"])))
        if reject["reason"] == NOT_ONE_TOKEN and question.words == "single" and not resolved.kind.slot:
            message += "; `words` says which of several tokens is explained"
        if reject["reason"] == TOO_LONG and not question.truncate:
            message += "; `truncate` reads a part of it"
        raise _unexplained(message)
    return views[0]
