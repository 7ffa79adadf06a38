"""Tokenises the input of a question: the view that a model reads, with its readout position and target."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from closelook.evaluation.benchmark.answers.prompts import units_of_tokens
from closelook.evaluation.benchmark.encoding import Encoding, encode, encoding_of_ids, with_specials
from closelook.evaluation.benchmark.pictures import picture, pixels_of, view_of
from closelook.evaluation.benchmark.samples import Malformed, Prompt, sample, with_evidence
from closelook.evaluation.benchmark.slotless import TOO_LONG
from closelook.evaluation.benchmark.slots import NOT_ONE_TOKEN
from closelook.evaluation.benchmark.views import tokenise
from closelook.explaining.opening import Opened
from closelook.explaining.question import MARKER, Answer, Input, Label, Question, Word, WordLike
from closelook.lrp_core.readers.predictions import rows_for
from closelook.lrp_core.records.explained import EXPLAINED, needs_foil
from closelook.lrp_core.records.types import UserError

#: Names of the parts of a prompt that are no messages of a chat: a text, and tokens that a template adds.
PROMPT, TEMPLATE = "prompt", "template"


@dataclass(frozen=True)
class View:
    """The input of a model for one prediction: T tokens, the readout position, and the explained token or label."""

    input_ids: list[int]  # [T]
    special_mask: list[bool]  # [T]
    position: int
    target_id: int | None = None  # None: the model's own prediction
    foil_id: int | None = None
    part_names: list[str] | None = None  # [T] the part of the prompt that each token belongs to
    token_type_ids: list[int] | None = None
    decoder_input_ids: list[int] | None = None
    pixels: np.ndarray | None = None  # [H, W, C] uint8
    pixel_values: np.ndarray | None = None  # [C, H, W]
    span: list[tuple[int, int, float]] | None = None  # of an answer: position, id and weight of each explained token
    cut: int = 0  # tokens of the text that are not read

    @property
    def row(self) -> dict[str, Any]:
        """The view in the form that batches and readers of models take."""
        names = ("input_ids", "position", "target_id", "foil_id", "token_type_ids", "decoder_input_ids", "pixel_values")
        return {name: getattr(self, name) for name in (*names, "span")}


def read(item: Input, question: Question, opened: Opened) -> View:
    """The view of a question about an input. Raises UserError if they do not fit the model."""
    if opened.kind.images:
        view = _picture(item, question, opened)
    elif opened.kind.labels:
        view = _for_label(item, question, opened)
    else:
        view = _for_words(item, question, opened)
        _check_known([token for token in (view.target_id, view.foil_id) if token is not None], opened)
    _check_known([*view.input_ids, *(view.decoder_input_ids or ())], opened)
    [row] = rows_for(opened.view, [view.row])
    starts = {name: row[name] for name in ("position", "token_type_ids", "decoder_input_ids")}
    return replace(view, **starts)


def _check_known(ids: Sequence[int], opened: Opened) -> None:
    """Raise UserError if the model has no embedding for one of the tokens `ids`, which its tokenizer has."""
    if max(ids, default=0) >= opened.view.vocab:
        raise UserError(
            f"{opened.id} has {opened.view.vocab:,} tokens, numbered from 0, and none with the number {max(ids)} that "
            "its tokenizer gives: give the tokenizer that the model was made with"
        )


def _for_words(item: Input, question: Question, opened: Opened) -> View:
    """The view of a question to a model that predicts words; its tokens may be unknown to the model."""
    kind = opened.kind
    _check_words(item, question, opened)
    is_plain = item.prefix is None and not item.is_verbatim
    if is_plain and isinstance(question, Word) and isinstance(question.target, str):
        return _fitted(_of_sample(item, question, opened), item, question, opened)
    encoding, target_id, foil_id = _encoded(item, opened), None, None
    if isinstance(question, Word):
        target_id = _token_id(question.target, "target", item, opened)
        foil_id = _token_id(question.foil, "foil", item, opened)
    _check_apart(target_id, foil_id)
    written = None
    if kind.decoder:
        _check_text(encoding, "no text to read")
        written = _written(item, opened) if item.prefix is not None else []
        if opened.writer.eos_token_id in written:
            raise UserError(f"`prefix` contains {opened.writer.eos_token!r}, which ends the answer: leave that out")
        position = len(written)
    else:
        encoding = encoding if kind.slot or item.is_verbatim else encoding.open_ended()
        _check_text(encoding, "no text before the place of the target")
        position = _mask_position(encoding, item, opened) if kind.slot else len(encoding) - 1
    names = _part_names(encoding, item, opened)
    special = encoding.special.tolist()
    view = View(encoding.ids, special, position, target_id, foil_id, names, decoder_input_ids=written)
    return _fitted(view, item, question, opened)


def _check_words(item: Input, question: Question, opened: Opened) -> None:
    """Raise UserError for a question that does not fit a model which predicts words."""
    kind = opened.kind
    if isinstance(question, Label) or item.second is not None:
        raise UserError(f"{opened.id} predicts words: `label` and `second` are for models that predict labels")
    foil = question.foil if isinstance(question, Word) else None
    if foil is None and question.explanation is not None and needs_foil(question.explanation):
        free = " or ".join(explained.name for explained in EXPLAINED.values() if not explained.needs_foil)
        with_target = "" if isinstance(question, Answer) else "`target` and `foil`, or "
        raise UserError(f"a {question.explanation} explanation needs a foil: give {with_target}`explanation` {free}")
    if item.prefix is not None and not kind.decoder:
        raise UserError(f"{opened.id} is no encoder-decoder: leave `prefix` out, or put it at the end of the text")
    if kind.slot and isinstance(question, Answer):
        advice = "give a target of one token, and leave `answer`, `spans`, `words` and `generate` out"
        raise UserError(f"{opened.id} predicts a word inside a text and does not continue one: {advice}")


def _encoded(item: Input, opened: Opened) -> Encoding:
    """The tokens of the input's text, with the special tokens that the tokenizer adds."""
    if item.ids is not None:
        return encoding_of_ids(item.ids, opened.tokenizer)[0]
    (encoding,) = encode(opened.tokenizer, [item.text_read(opened)], template=item.parts is None)
    return encoding if item.parts is None else with_specials(encoding, opened.tokenizer)


def _mask_position(encoding: Encoding, item: Input, opened: Opened) -> int:
    """The position of the mask token. Raises UserError unless there is exactly one."""
    mask, times = opened.tokenizer.mask_token, encoding.ids.count(opened.tokenizer.mask_token_id)
    if times != 1:
        advice = f"mark its place by {MARKER} instead"
        if item.is_verbatim:
            advice = f"token ids must have it once, not {times} times"
        raise UserError(f"{opened.id} predicts at the token {mask}: {advice}")
    return encoding.ids.index(opened.tokenizer.mask_token_id)


def _part_names(encoding: Encoding, item: Input, opened: Opened) -> list[str]:
    """The name of the part that each token belongs to: the message of a chat, PROMPT for a text, or TEMPLATE."""
    if item.parts is None:
        return [TEMPLATE if special else PROMPT for special in encoding.special]
    parts = [part for part in item.parts if part.start < part.end]
    if not parts:
        return [TEMPLATE] * len(encoding)
    spans = [(part.start, part.end) for part in parts]
    numbers = units_of_tokens(encoding.offsets, np.zeros(len(encoding), bool), item.text_read(opened), spans)
    return [parts[number].name if number >= 0 else TEMPLATE for number in numbers]


def _fitted(view: View, item: Input, question: Question, opened: Opened) -> View:
    """The view, shortened to the model's maximum length if the input has `truncate`; its `cut` counts lost tokens.

    Causal models lose the beginning of the text, others its end; special tokens stay. Raises UserError if the text is
    too long and may not be shortened, or cannot be.
    """
    kind = opened.kind
    goes_on = kind.causal and not kind.labels
    steps, most = _steps(item, question, opened) if goes_on else 1, opened.view.max_length
    if item.truncate:
        most = min(most, opened.tokenizer.model_max_length)
    excess = len(view.input_ids) + steps - 1 - most
    if excess <= 0:
        return view
    if not item.truncate:
        more = f" and {steps} more" if goes_on else ""
        length = len(view.input_ids)
        raise UserError(f"the text has {length} tokens{more}, but {most} are the most: `truncate` reads a part of it")
    ordinary = [at for at, is_special in enumerate(view.special_mask) if not is_special]
    if excess >= len(ordinary):
        raise UserError(f"{steps} tokens to explain leave no room for a text: the model reads at most {most}")
    gone = set(ordinary[:excess] if goes_on else ordinary[-excess:])
    if kind.slot and view.position in gone:
        raise UserError("the place of the target is in the part of the text that is cut off: shorten the text")
    kept = [at for at in range(len(view.input_ids)) if at not in gone]
    ids, special = [view.input_ids[at] for at in kept], [view.special_mask[at] for at in kept]
    names = None if view.part_names is None else [view.part_names[at] for at in kept]
    position = view.position if kind.decoder else view.position - sum(at < view.position for at in gone)
    return replace(view, input_ids=ids, special_mask=special, part_names=names, position=position, cut=excess)


def _steps(item: Input, question: Question, opened: Opened) -> int:
    """The number of tokens behind the text that are explained."""
    if isinstance(question, Answer):
        return question.most if question.answer is None else len(answer_ids(item, question, opened))
    return 1


def _unexplained(reason: object) -> UserError:
    """The error of a text that cannot be explained."""
    return UserError(f"this sentence cannot be explained: {reason}")


def _check_text(encoding: Encoding, reason: str) -> None:
    """Raise UserError, for this `reason`, if a text has no tokens but special ones."""
    if not len(encoding) or encoding.special.all():
        raise _unexplained(reason)


def _token_id(word: WordLike, name: str, item: Input, opened: Opened) -> int | None:
    """The id of `word`, target or foil by `name`: a token id, or a word after the text (or the decoder's prefix)."""
    if isinstance(word, int):
        return _known_token(word, name, opened)
    if word is None:
        return None
    if opened.kind.slot:
        raise UserError("with token ids as the text, `target` and `foil` must be token ids too")
    tail = tokens_behind(item, word if item.parts is not None else word.strip(), opened)
    before = item.answer_so_far(opened) if opened.kind.decoder else item.prompt(opened)
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


def tokens_behind(item: Input, text: str, opened: Opened) -> list[int]:
    """The tokens of `text` when it follows the input, or of a decoder what it has written.

    These are the tokens that are added when both are tokenised together or, if both would then share a token, those of
    the text alone. Raises UserError for tokens that the model lacks.
    """
    if opened.kind.decoder:
        ids = _following(item.answer_so_far(opened), _written(item, opened), text, opened.writer)
    elif item.is_verbatim:
        ids = _following(item.prompt(opened), _encoded(item, opened).ids, text, opened.tokenizer)
    else:
        prompt, tokenizer = item.prompt(opened), opened.tokenizer
        joint = item.before + text if text[:1].isspace() else prompt.with_target(text)
        context, both = (encoding.open_ended() for encoding in encode(tokenizer, [prompt.text, joint]))
        rest = _rest(both.ids, context.ids)
        ids = encode(tokenizer, [joint[len(prompt.text) :]], template=False)[0].ids if rest is None else rest
    _check_known(ids, opened)
    return ids


def _following(prompt: Prompt, before: list[int], text: str, tokenizer: Any) -> list[int]:
    """The tokens of `text` after a prompt, whose tokens are `before`; of `text` alone, if both would share a token."""
    behind = text if text[:1].isspace() else prompt.space_before(text) + text
    joint, by_itself = encode(tokenizer, [prompt.text + behind, behind], template=False)
    rest = _rest(joint.ids, before)
    return by_itself.ids if rest is None else rest


def _rest(joint: list[int], before: list[int]) -> list[int] | None:
    """The tokens of `joint` after those of `before`; None if `joint` does not begin with these."""
    return joint[len(before) :] if joint[: len(before)] == before else None


def _written(item: Input, opened: Opened) -> list[int]:
    """The tokens of the decoder's prefix."""
    return encode(opened.writer, [item.answer_so_far(opened).text], template=False)[0].ids


def answer_ids(item: Input, question: Answer, opened: Opened) -> list[int]:
    """The token ids of the question's answer when it follows the input. Raises UserError if it has none."""
    answer = question.answer
    if isinstance(answer, str) and not answer.strip():
        raise UserError("the answer is empty: give at least one word")
    if isinstance(answer, str):
        ids = tokens_behind(item, answer, opened)
    else:
        ids = [_known_token(token, "answer", opened) for token in answer or ()]
    if not ids:
        raise UserError("the answer has no tokens: give at least one word or token id")
    _check_known(ids, opened)
    return ids


def _for_label(item: Input, question: Question, opened: Opened) -> View:
    """The view of a text or pair for a classifier or regressor. Raises UserError for questions that do not fit it."""
    target_id, foil_id = _label_ids(question, opened)
    if item.is_verbatim:
        if item.second is not None:
            raise UserError("`second` needs the first text as a string too, not a chat or token ids")
        encoding = _encoded(item, opened)
        _check_text(encoding, "no text to read")
        position = 0 if opened.kind.reads == "first" else len(encoding) - 1
        view = View(encoding.ids, encoding.special.tolist(), position)
        view = _fitted(view, item, question, opened)
    else:
        try:
            row = sample("terminal", item.text, None, None, None, second=item.second)
        except Malformed as error:
            raise _unexplained(error) from None
        view = _tokenised(row, item, opened)
    return replace(view, target_id=0 if opened.output == "score" else target_id, foil_id=foil_id)


def _label_ids(question: Question, opened: Opened) -> tuple[int | None, int | None]:
    """The ids of the labels that a question names. Raises UserError for any other question, and an unknown label."""
    if isinstance(question, Word) and question.target is not None:
        target = question.target
        advice = "leave `target` out" if opened.output == "score" else f"use `label` {target!r} for `target`"
        raise UserError(f"{opened.id} predicts {opened.output}s, not words: {advice}")
    if not isinstance(question, Label):
        raise UserError(f"{opened.id} predicts {opened.output}s: leave `generate` and `answer` out")
    if question.label is not None and opened.output == "score":
        raise UserError(f"{opened.id} predicts a score and has no labels: leave `label` out")
    named = (question.label, question.foil)
    label_id, foil_id = (None if name is None else opened.label_id(str(name)) for name in named)
    _check_apart(label_id, foil_id)
    return label_id, foil_id


def _picture(item: Input, question: Question, opened: Opened) -> View:
    """The view of a picture, prepared for the model. Raises UserError for a file that is no image."""
    target_id, foil_id = _label_ids(question, opened)
    if item.second is not None:
        raise UserError(f"{opened.id} predicts labels of images: leave `second` out")
    path, data = Path(item.text).expanduser(), item.picture
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{opened.id} reads images, but {path} cannot be read: {error.strerror}") from None
    assert opened.images is not None
    try:
        row = view_of(picture("terminal", path.name, data, label=None), opened.images)
    except Malformed as error:
        raise UserError(f"{path} cannot be explained: {error}") from None
    pixels = pixels_of(row, opened.images)
    values = opened.images.values(pixels)
    ids, special = row["input_ids"], row["special_mask"]
    return View(ids, special, row["position"], target_id, foil_id, pixels=pixels, pixel_values=values)


def _check_apart(target_id: int | None, foil_id: int | None) -> None:
    """Raise UserError if the foil is the target: their difference is 0 whatever the model predicts."""
    if foil_id is not None and foil_id == target_id:
        raise UserError("target equals foil: give a foil that the model could predict in place of the target")


def _of_sample(item: Input, question: Word, opened: Opened) -> View:
    """The view of a text with a word as its target, made as a task's sample is."""
    before = item.before
    foil = None if question.foil is None else str(question.foil)
    try:
        row = sample("terminal", before + item.after, len(before), str(question.target), foil)
        first = [(0, len(before.split(maxsplit=1)[0]))] if before.split() else []
        row = with_evidence(row, first)
    except Malformed as error:
        raise _unexplained(error) from None
    return _tokenised(row, item, opened, "first_difference" if question.at_difference else "single")


def _tokenised(row: dict[str, Any], item: Input, opened: Opened, words: Any = "single") -> View:
    """The sample `row` of schema GENERIC as the model reads it. Raises UserError if it cannot be tokenised."""
    kind = opened.kind
    truncates_later = item.truncate and not kind.labels
    views, rejects = tokenise(
        [row],
        opened.tokenizer,
        kind=kind,
        max_length=sys.maxsize if truncates_later else opened.view.max_length,
        truncate=item.truncate and kind.labels,
        words=words,
        decoder_tokenizer=opened.decoder_tokenizer,
    )
    for reject in rejects:
        message = ": ".join(filter(None, (reject["reason"], reject["detail"])))
        if reject["reason"] == NOT_ONE_TOKEN and words == "single" and not kind.slot:
            message += "; `words` says which of several tokens is explained"
        if reject["reason"] == TOO_LONG and not item.truncate:
            message += "; `truncate` reads a part of it"
        raise _unexplained(message)
    [view] = views
    names = ("input_ids", "special_mask", "position", "target_id", "foil_id", "token_type_ids", "decoder_input_ids")
    fields: dict[str, Any] = {name: view.get(name) for name in names}
    return View(**fields, cut=view.get("cut") or 0)
