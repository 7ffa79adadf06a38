"""Answers questions: the relevance of the tokens that a model read, for one prediction or several in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, NamedTuple

from closelook.evaluation.benchmark.encoding import START, Word, has_spaces, named, words, words_of
from closelook.evaluation.benchmark.pictures import Preprocessing
from closelook.evaluation.report.heatmaps.overlay import patch_names
from closelook.explaining import question as questions
from closelook.explaining.answer import AnswerText, Span, answer_text, start_ids, warn_of_settings
from closelook.explaining.opening import Opened
from closelook.explaining.question import Input, Label, Question
from closelook.explaining.reading import View, read
from closelook.lrp_core.device.memory import is_out_of_memory
from closelook.lrp_core.device.progress import part_of_work
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.readers.predictions import against_strongest, decisions
from closelook.lrp_core.records.explained import CONTRASTIVE, needs_foil
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.types import Batch, Relevance, UnsupportedMethod, UnusableRows, UserError

ByMethod = dict[str, Relevance]  # by the name of the method
_AT_ONCE = 256  # predictions of a text that share one forward pass
_WINDOW = 1024  # questions that are tokenised and sorted by length before the first is answered
_TOKENS = 4096  # tokens of a batch, padding included


class Side(NamedTuple):
    """The tokens of one side: the text, or what the decoder of an encoder-decoder has read."""

    name: str
    tokens: list[str]  # those at the start of a word include the space before it
    shown: list[str]  # the same, where tokens without a text are shown by their ids
    special: list[bool]
    words: list[Word]  # () of a picture


@dataclass(frozen=True)
class Explained:
    """One explained prediction, or span of an answer: the tokens that the model read, and their relevance."""

    model: str
    output: str  # token, label or score
    item: Input
    view: View
    methods: tuple[Method, ...]
    relevance: ByMethod  # by method, a batch of one
    text: Side
    decoder: Side | None  # of an encoder-decoder
    target: str
    foil: str | None = None
    token: str | None = None  # the target's token with the space that belongs to it; None for labels and scores
    explanation: str | None = None  # contrastive | target | log_prob, if it was asked for
    note: str = ""  # about the space before the target, and tokens that were cut off, to follow `why`
    at: int = 0  # number of the question's predictions before this one
    answer: AnswerText | None = None  # of which this is a span
    span: Span | None = None
    images: Preprocessing | None = None

    @property
    def tokens(self) -> list[str]:
        """The tokens that the model read; of an encoder-decoder, that its encoder read."""
        return self.text.tokens

    @property
    def why(self) -> str:
        """The explained prediction in words: "target rather than foil", or the target."""
        return f"{self.target} rather than {self.foil}" if self.foil is not None else self.target

    @property
    def logits(self) -> list[float]:
        """The logit of the target, and of the foil if there is one."""
        first = next(iter(self.relevance.values()))
        return [float(logit[0]) for logit in (first.logit_target, first.logit_foil) if logit is not None]

    def adds_up(self, method: Method) -> bool:
        """True if a word has the sum of its pieces' relevance; False if their mean, as no sum is promised."""
        return bool(method.conserves and self.relevance[method.name].conserves)


def explain_in_turn(item: Input, question: Question, opened: Opened, methods: Sequence[Method]) -> Iterator[Explained]:
    """Yield the explained prediction of a question, or several in turn, each of a text that goes on with those before.

    If the question has an answer, its spans are explained in their order, each as a whole. Raises UserError for a
    question that does not fit the model or a method.
    """
    answer: AnswerText | None = None
    spans: Sequence[Span | None]
    if isinstance(question, questions.Answer):
        answer = answer_text(item, question, opened)
        parts = answer.spans(question.spans)
        spans, views = parts, [answer.view(part) for part in parts]
    else:
        views, spans = with_targets([question], opened, [read(item, question, opened)]), [None]
    in_turn = _relevance_in_turn(opened, methods, views, question.explanation)
    for at, (view, span, relevance) in enumerate(zip(views, spans, in_turn, strict=True)):
        prediction = _explained(item, question, opened, methods, view, relevance, answer, span)
        yield replace(prediction, at=at, note="" if at else prediction.note)


def with_targets(asked: Sequence[Question], opened: Opened, views: Sequence[View]) -> list[View]:
    """The views of questions with targets: views without one get the model's prediction.

    If a question names a label but no foil, and its explanation needs one, the strongest other label becomes the foil.
    """
    model = opened.view
    undecided = [at for at, view in enumerate(views) if view.target_id is None]
    if undecided:
        warn_of_settings(opened)
    decided = dict(zip(undecided, decisions(model, [views[at].row for at in undecided]), strict=False))
    completed = []
    for at, (question, view) in enumerate(zip(asked, views, strict=True)):
        if at in decided:
            best, *others = decided[at].ids
            foil = others[0] if others and model.kind.labels else view.foil_id
            view = replace(view, target_id=best, foil_id=foil)
        elif view.target_id is None:
            view = replace(view, target_id=0)  # a regressor has a single output
        has_label = isinstance(question, Label) and question.label is not None and question.foil is None
        if has_label and model.n_targets > 1 and needs_foil(question.explanation or CONTRASTIVE.name):
            view = replace(view, foil_id=against_strongest(model, view.row)["foil_id"])
        completed.append(view)
    return completed


def relevance_of(
    opened: Opened, methods: Sequence[Method], views: Sequence[View], explanation: str | None, **settings: Any
) -> ByMethod:
    """The relevance of views, explained in one batch, by method. Raises UserError if one cannot be explained.

    `settings` are those of methods, such as `texts` 1: all views read the same tokens.
    """
    batch = Batch.collate([view.row for view in views], pad_id=0)
    boundaries = FINER["boundaries"]  # an answer's shares tell what blocks keep
    can_tell = views[0].span is not None and opened.view.family.capabilities.issuperset(boundaries.needs)
    relevance = {}
    for method in methods:
        finer: dict[str, Any] = {boundaries.name: True} if can_tell and boundaries.name in method.given else {}
        try:
            relevance[method.name] = method(opened.view, batch, explanation=explanation, **settings, **finer)
        except UnusableRows as error:
            raise UserError(f"{opened.id}: {error.detail}") from None
    return relevance


def _relevance_in_turn(
    opened: Opened, methods: Sequence[Method], views: Sequence[View], explanation: str | None
) -> Iterator[ByMethod]:
    """Yield the relevance, by method, of each of `views`, which all begin with the tokens of the shortest.

    Methods that can share a forward pass are given the tokens of the longest view for up to _AT_ONCE views, which a
    causal model reads alike; the relevance is then cut to the length of each view.
    """
    shared = [method for method in methods if method.shares_forwards and len(views) > 1]
    unshared = [method for method in methods if method not in shared]
    for start in range(0, len(views), _AT_ONCE):
        some = views[start : start + _AT_ONCE]
        longest = max(some, key=lambda view: len(view.input_ids) + len(view.decoder_input_ids or ()))
        together = {}
        if shared:
            ids, of_decoder = longest.input_ids, longest.decoder_input_ids
            whole = [replace(view, input_ids=ids, decoder_input_ids=of_decoder) for view in some]
            together = relevance_of(opened, shared, whole, explanation, texts=1)
        for number, view in enumerate(some):
            relevance = _of_view(together, number, view)
            if unshared:
                with part_of_work(start + number, len(views)):
                    relevance |= relevance_of(opened, unshared, [view], explanation)
            yield {method.name: relevance[method.name] for method in methods}


def _of_view(relevance: Mapping[str, Relevance], at: int, view: View) -> ByMethod:
    """The relevance of view number `at` of a batch, by method, as a batch of one, cut to the tokens of the view."""
    length, cut = len(view.input_ids), {}
    for name, batch in relevance.items():
        whole = batch.mapped(lambda value: value[at : at + 1])
        layers = None if whole.layers is None else whole.layers[..., :length]
        decoder = None if whole.decoder_tokens is None else whole.decoder_tokens[:, : len(view.decoder_input_ids or ())]
        cut[name] = replace(whole, tokens=whole.tokens[:, :length], layers=layers, decoder_tokens=decoder)
    return cut


class Asked(NamedTuple):
    """A question about an input."""

    item: Input
    question: Question


class _Read(NamedTuple):
    """A question about one prediction, with the view that the model reads."""

    key: int
    asked: Asked
    view: View

    @property
    def group(self) -> tuple[Any, ...]:
        """A value that is equal for questions which can share a batch."""
        return self.view.foil_id is None, self.view.token_type_ids is None, str(self.asked.question.explanation)


Outcome = tuple[Explained, ...] | UserError


def explain_each(
    asked: Mapping[int, Asked], opened: Opened, methods: Sequence[Method]
) -> Iterator[tuple[int, Outcome]]:
    """Yield (key of a question, its answers or the UserError that prevents them), in the order of computation.

    Questions about one prediction are answered in batches of up to _TOKENS tokens, with others of similar length;
    questions about several predictions one by one. Raises UnsupportedMethod for a method that does not apply.
    """
    entries = iter(asked.items())
    while window := list(islice(entries, _WINDOW)):
        waiting: list[_Read] = []
        for key, (item, question) in window:
            try:
                if isinstance(question, questions.Answer):
                    yield key, tuple(explain_in_turn(item, question, opened, methods))
                else:
                    waiting.append(_Read(key, asked[key], read(item, question, opened)))
            except UnsupportedMethod:
                raise
            except UserError as error:
                yield key, error
        views = with_targets([each.asked.question for each in waiting], opened, [each.view for each in waiting])
        waiting = [each._replace(view=view) for each, view in zip(waiting, views, strict=True)]
        waiting.sort(key=lambda each: (each.group, -len(each.view.input_ids)))
        for batch in _batches(waiting):
            yield from _explain_batch(batch, opened, methods)


def _batches(waiting: Sequence[_Read]) -> Iterator[Sequence[_Read]]:
    """Batches of questions of one group, the longest first. `waiting` must be sorted by group and falling length."""
    for _, alike in groupby(waiting, key=lambda each: each.group):
        some = list(alike)
        while some:
            count = max(1, _TOKENS // len(some[0].view.input_ids))
            yield some[:count]
            some = some[count:]


def _explain_batch(batch: Sequence[_Read], opened: Opened, methods: Sequence[Method]) -> Iterator[tuple[int, Outcome]]:
    """Yield (key, outcome) of the questions of a batch."""
    parts: list[Sequence[_Read]] = []
    try:
        explanation = batch[0].asked.question.explanation
        relevance = relevance_of(opened, methods, [each.view for each in batch], explanation)
    except UnsupportedMethod:
        raise
    except UserError as error:
        if len(batch) == 1:
            yield batch[0].key, error
            return
        parts = [[each] for each in batch]
    except Exception as error:
        if len(batch) == 1 or not is_out_of_memory(error):
            raise
        parts = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    if parts:  # outside `except`: the exception's traceback holds the failed batch's tensors in memory
        for part in parts:
            yield from _explain_batch(part, opened, methods)
        return
    for number, (key, asked, view) in enumerate(batch):
        yield key, (_explained(*asked, opened, methods, view, _of_view(relevance, number, view)),)


def _explained(
    item: Input,
    question: Question,
    opened: Opened,
    methods: Sequence[Method],
    view: View,
    relevance: ByMethod,
    answer: AnswerText | None = None,
    span: Span | None = None,
) -> Explained:
    """The relevance of a view with its target, foil and tokens as texts; `span` is one of the `answer`."""
    foil, token, decoder = None, None, None
    if opened.kind.labels:
        tokens = opened.texts.of(view.input_ids) if opened.images is None else patch_names(opened.images)
        target = opened.labels[view.target_id or 0] if opened.labels else "the score"
        if view.foil_id is not None:
            foil = opened.labels[view.foil_id]
    else:
        *tokens, token = _texts_written(view, opened)
        if answer is not None:
            *tokens, token = answer.pieces[: len(tokens) + 1]
        target = token.strip() or repr(token)
        if view.foil_id is not None:
            foil = _texts_written(replace(view, target_id=view.foil_id), opened)[-1].strip()
        if opened.kind.decoder:
            decoder = _side("decoder", [START] * len(start_ids(opened)) + tokens, view, opened)
            tokens = opened.texts.of(view.input_ids)
    note = space_note(item, question, opened, view)
    text = _side("text", tokens, view, opened)
    if answer is not None and span is not None:
        target = answer.text[span.start : span.end].strip() or target
    if isinstance(question, questions.Word) and not question.at_difference:
        target = question.target if isinstance(question.target, str) else target
        foil = question.foil if isinstance(question.foil, str) else foil
    if view.cut:
        note += f", {view.cut} tokens are not read"
    return Explained(
        opened.id,
        opened.output,
        item,
        view,
        tuple(methods),
        relevance,
        text,
        decoder,
        target,
        foil,
        token,
        question.explanation,
        note,
        answer=answer,
        span=span,
        images=opened.images,
    )


def _texts_written(view: View, opened: Opened) -> list[str]:
    """The texts of the tokens before the target (of a decoder, without those that it begins with), then the target."""
    ids = view.input_ids if view.decoder_input_ids is None else view.decoder_input_ids[len(start_ids(opened)) :]
    assert view.target_id is not None
    return opened.written.of([*ids, view.target_id])


def _side(name: str, tokens: list[str], view: View, opened: Opened) -> Side:
    """The tokens of one side with their words. What a decoder begins with is special."""
    if opened.images is not None:
        return Side(name, tokens, tokens, view.special_mask, words(tokens, view.special_mask))
    is_text = name == "text"
    ids = (view.input_ids if is_text else view.decoder_input_ids or [])[: len(tokens)]
    special = view.special_mask if is_text else [piece == START for piece in tokens]
    reader = opened.tokenizer if is_text else opened.writer
    return Side(name, tokens, named(tokens, ids), special, words_of(reader, ids, tokens, special, opened.segmenter))


def space_note(item: Input, question: Question, opened: Opened, view: View) -> str:
    """A note about the space before the explained target, beginning with a comma; "" if there is nothing to say.

    For a masked model it tells that a space was added before the target, for others whether the target begins with the
    space before it.
    """
    if opened.kind.labels or isinstance(question, questions.Answer):
        return ""
    prompt, note = item.prompt(opened), ""
    target_took_space = prompt.text != item.before  # the last space of the text belongs to the target
    if opened.kind.slot:
        return ", with a space before it" if prompt.space and not target_took_space else ""
    if opened.kind.decoder:  # the target follows what the decoder has written, not the text
        note = ", the text without its last space" if target_took_space else ""
        prompt = item.answer_so_far(opened)
        target_took_space = prompt.text != (item.prefix or "")
    if target_took_space:
        return f", with the space before it{note}"
    target = None if isinstance(question, Label) else question.target
    if not isinstance(target, str) or not prompt.text or prompt.text[-1].isspace():
        return note
    if isinstance(question, questions.Word) and question.at_difference:  # the token may be a later one of the word
        has_space = bool(prompt.space_before(target.strip()))
    else:
        *read_before, token = _texts_written(view, opened)
        has_space = token[:1].isspace() or not (read_before or [START])[-1].strip()
    if has_space:
        return f", with the space before it{note}"
    return f", without a space before it{note}" if has_spaces(opened.writer) else note
