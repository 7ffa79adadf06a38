"""Answers questions: computes the relevance of the tokens that a model read, for one prediction or several in turn.

`closelook explain` prints the answers, and `closelook.explain` (jobs/notebook) returns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from closelook.evaluation.benchmark.encoding import START, Word, named, words, words_of
from closelook.evaluation.benchmark.pictures import Preprocessing, pixels_of
from closelook.evaluation.benchmark.samples import Row
from closelook.evaluation.report.heatmaps.overlay import patch_names, with_picture
from closelook.evaluation.report.heatmaps.tokens import Line, beyond_noise, data
from closelook.jobs.commands.questions.generation import tell_ignored
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import Question, space_note
from closelook.jobs.commands.questions.reading import read, tokens_of
from closelook.jobs.commands.questions.spans import Said, said_of, through_reasoning
from closelook.lrp_core.device.progress import part_of_work
from closelook.lrp_core.methods.hops import Hops
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.readers.predictions import Decision, against_strongest, decided, decisions
from closelook.lrp_core.readers.readout import rows_for
from closelook.lrp_core.records.explained import CONTRASTIVE, needs_foil
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.types import Batch, Relevance, UnusableRows, UserError
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.view import ModelView

ByMethod = dict[str, Relevance]  # of rows, by the name of the method
#: Columns of a row that become longer from one prediction of a text to the next.
_GROWING = ("input_ids", "special_mask", "decoder_input_ids")
_TITLE = 160  # most characters of the explained predictions in a title
_AT_ONCE = 256  # predictions of a text that share one forward pass


@dataclass(frozen=True)
class Answer:
    """One explained prediction, or span of an answer: the tokens that the model read, and their relevance."""

    question: Question
    opened: Opened
    methods: Sequence[Method]
    row: Row  # of schema VIEW, target included
    relevance: ByMethod  # by method, a batch of one
    tokens: list[str]  # that the model read; of an encoder-decoder, that its encoder read
    target: str
    foil: str | None
    at: int = 0  # number of the question's predictions before this one
    token: str | None = None  # the target's token with the space that belongs to it; None for labels and scores
    decoder: list[str] | None = None  # of an encoder-decoder: the tokens that its decoder has read
    said: Said | None = None  # the answer of which this is a span; None for a single prediction
    hops: Mapping[str, Hops] = field(default_factory=dict)  # by method, if relevance was passed on by hops

    @property
    def what(self) -> str:
        """The explained prediction in words: "target rather than foil", or the target."""
        return f"{self.target} rather than {self.foil}" if self.foil is not None else self.target

    @property
    def note(self) -> str:
        """A note to follow `what`: about the space before the target, and tokens that were cut off; "" if neither."""
        if self.at:
            return ""
        cut = self.row.get("cut")
        note = space_note(self.question, self.opened, self.decoder or self.tokens, self.token or "")
        return note + (f", {cut} tokens are not read" if cut else "")

    @property
    def _before(self) -> int | None:
        """The number of tokens of prompt and answer before the explained span; None for a single prediction."""
        if self.said is None:
            return None
        span, written = self.row["said"], len(self.said.pieces) - len(self.said.ids)
        return int(written + span.first)

    @property
    def decision(self) -> Decision | None:
        """The model's own decision, if that is what is explained; None for regressors and if the target was given."""
        return self.row.get("decision")

    @property
    def images(self) -> Preprocessing | None:
        """The preparation of images for the model; None for models of text."""
        return self.opened.resolved.preprocessing

    @property
    def logits(self) -> list[float]:
        """The logit of the target, and of the foil if there is one."""
        first = next(iter(self.relevance.values()))
        return [float(logit[0]) for logit in (first.logit_target, first.logit_foil) if logit is not None]

    @cached_property
    def words(self) -> list[Word]:
        """The words of the tokens that the model read; of an encoder-decoder, that its encoder read."""
        special = self.row["special_mask"]
        if self.images is not None:
            return words(self.tokens, special)
        ids = self.row["input_ids"][: len(self.tokens)]
        return words_of(self.opened.tokenizer, ids, self.tokens, special, self.question.segmenter)

    @cached_property
    def decoder_words(self) -> list[Word]:
        """The words of the tokens that the decoder of an encoder-decoder has read."""
        if self.decoder is None:
            return []
        special = [piece == START for piece in self.decoder]
        ids = self.row["decoder_input_ids"][: len(self.decoder)]
        return words_of(self.opened.writer, ids, self.decoder, special, self.question.segmenter)

    @property
    def named_tokens(self) -> list[str]:
        """The texts of `tokens`; a token without a text is shown by its id."""
        return self.tokens if self.images is not None else named(self.tokens, self.row["input_ids"][: len(self.tokens)])

    def lines(self, by_word: bool = False) -> tuple[list[str], list[bool], list[Line]]:
        """(texts of the tokens, is each special, a line of relevance for each method).

        `by_word` joins the tokens of a word: their relevance is summed or, for methods that do not conserve, averaged,
        which the line's label says. Where a conserving method gives nothing but rounding noise, its line is all zero.
        Raises UserError if `by_word` is asked for an image.
        """
        lines = []
        for method in self.methods:
            relevance = self.relevance[method.name]
            columns = {"decoder": relevance.decoder_tokens, "pixels": relevance.pixels}
            further: dict[str, Any] = {
                name: values[0].flatten().tolist() for name, values in columns.items() if values is not None
            }
            line = Line(method.name, relevance.tokens[0].tolist(), **further)
            lines.append(beyond_noise(line, self.logits) if method.conserves else line)
        special = self.row["special_mask"]
        if not by_word:
            return self.named_tokens, special, lines
        if self.images is not None:
            raise UserError("an image has no words: leave out the sum by word")
        groups = [word.tokens for word in self.words]
        joined = []
        for method, line in zip(self.methods, lines, strict=True):
            adds_up = self.adds_up(method)
            label = line.label if adds_up else f"{line.label} (means)"
            joined.append(line._replace(label=label, values=of_words(line.values, groups, adds_up)))
        return [word.text for word in self.words], [special[group[0]] for group in groups], joined

    def adds_up(self, method: Method) -> bool:
        """True if a word has the sum of its pieces' relevance; False if their mean, as no sum is promised."""
        return bool(method.conserves and self.relevance[method.name].conserves)

    def entry(self, by_word: bool = False) -> dict[str, Any]:
        """The answer as an entry of a heat map; its text goes on with the tokens that were predicted before."""
        question = self.question
        tokens, special, lines = self.lines(by_word)
        text, slot = question.text, len(question.before)
        read = None  # the whole text, where the target follows it
        if self.decoder is not None:
            written = [piece for piece in self.decoder if piece != START]
            read = f"{question.before} → {''.join(written[: self._before])} "
        elif self.at or self.said is not None:
            read = "".join(self.tokens[: self._before]) + " "
        elif question.second is not None:
            read = f"{question.sentence} | {question.second} "
        if read is not None:
            text, slot = read, len(read)
        unit = "token" if len(self.row.get("span") or [0]) == 1 else "span"
        shown = data(
            tokens,
            lines,
            special=special,
            decoder=self.decoder,
            model=self.opened.id,
            sample_id=f"{unit} {self.at + 1}",
            text=text,
            slot=slot,
            target=self.target,
            foil=self.foil,
        )
        if self.images is None:
            return shown
        maps = [line.pixels for line in lines]
        return with_picture(shown, pixels_of(self.row, self.images), self.images, maps, question.sentence)


def of_words(values: Sequence[float], groups: Sequence[Sequence[int]], adds_up: bool) -> list[float]:
    """The relevance of each word, from the `values` of its tokens: their sum if it `adds_up`, else their mean."""
    sums = [sum(values[at] for at in group) for group in groups]
    if adds_up:
        return sums
    return [total / len(group) for total, group in zip(sums, groups, strict=True)]


def is_matrix(answers: Sequence[Answer]) -> bool:
    """True for several predictions of one token each: these are shown as the rows of a matrix."""
    return len(answers) > 1 and all(answer.said is None or len(answer.row["span"]) == 1 for answer in answers)


def titled(answers: Sequence[Answer]) -> str:
    """A title of one line: the model and the explained predictions, shortened to _TITLE characters."""
    explained = " ".join(answer.what + answer.note for answer in answers)
    more = len(explained) > _TITLE
    return f"{answers[0].opened.id}: why {explained[:_TITLE].rstrip()}{'…' if more else ''}"


def answers(question: Question, opened: Opened, methods: Sequence[Method], **finer: Any) -> Iterator[Answer]:
    """Yield the explained prediction of a question, or several in turn, each of a text that goes on with those before.

    If the question has an answer, its spans are explained in their order, each as a whole. `finer` are arguments of
    methods, such as `layers`. Raises UserError for a question that does not fit the model or a method.
    """
    if question.has_answer:
        finer["kept"] = not question.hops
        answer_text = said_of(question, opened)
        rows = [answer_text.row(span) for span in answer_text.spans(question.spans)]
        if question.hops:
            yield from _by_hops(answer_text, rows, question, opened, methods, **finer)
            return
    else:
        answer_text, rows = None, list(_rows(question, opened))
    in_turn = _relevance_in_turn(opened, methods, rows, question.explanation, **finer)
    for at, (row, relevance) in enumerate(zip(rows, in_turn, strict=True)):
        yield replace(answer_of(question, opened, methods, row, relevance, answer_text), at=at)


def _by_hops(
    answer_text: Said, rows: Sequence[Row], question: Question, opened: Opened, methods: Sequence[Method], **finer: Any
) -> Iterator[Answer]:
    """Yield the explained spans of an answer, whose relevance is passed through its part `reasoning` to the prompt."""
    for at, row in enumerate(rows):
        relevance, hops = {}, {}
        for method in methods:

            def explain(row: Row, method: Method = method) -> Relevance:
                return relevance_of_rows(opened, [method], [row], question.explanation, **finer)[method.name]

            by_hops = through_reasoning(answer_text, row["said"], question, explain)
            relevance[method.name], hops[method.name] = by_hops
        yield replace(answer_of(question, opened, methods, row, relevance, answer_text), at=at, hops=hops)


def _rows(question: Question, opened: Opened) -> Iterator[Row]:
    """The row that the model reads for each prediction of a question, with its target. Stops after an end token."""
    asked, view = read(question, opened), opened.view
    targets = tokens_of(question, opened) if question.every_token else [None] * question.generate
    for target in targets:
        if target is not None:
            asked = {**asked, "target_id": target}
        [row] = with_targets([question], opened, rows_for(view, [asked]))
        yield row
        token = row["target_id"]
        if view.kind.labels or token == opened.writer.eos_token_id:
            return
        asked = {**asked, "position": asked["position"] + 1, "target_id": None, "begun": True}
        if asked.get("decoder_input_ids") is None:
            asked["input_ids"] = [*asked["input_ids"], token]
            asked["special_mask"] = [*asked["special_mask"], False]
        else:
            asked["decoder_input_ids"] = [*asked["decoder_input_ids"], token]


def with_targets(questions: Sequence[Question], opened: Opened, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of questions with targets: rows without one get the model's prediction, and its `decision`.

    If a question names a label but no foil, and its explanation needs one, the strongest other label becomes the foil.
    """
    view = opened.view
    open_rows = [at for at, row in enumerate(rows) if row["target_id"] is None]
    if open_rows:
        tell_ignored(opened)
    made = dict(zip(open_rows, decisions(view, [rows[at] for at in open_rows]), strict=False))  # a score has none
    completed = []
    for at, (question, row) in enumerate(zip(questions, rows, strict=True)):
        if at in made:
            row = {**decided(view, row, made[at]), "decision": made[at]}
        elif row["target_id"] is None:
            row = {**row, "target_id": 0}  # a regressor has a single output
        label_without_foil = question.label is not None and question.foil is None
        if label_without_foil and view.n_targets > 1 and needs_foil(question.explanation or CONTRASTIVE.name):
            row = against_strongest(view, row)
        completed.append(dict(row))
    return completed


def finer_arguments(layers: bool, checkpoint: bool) -> dict[str, bool]:
    """Arguments of methods for relevance at the `boundaries` of layers, and for a `checkpoint` that saves memory."""
    return {name: True for name, asked in (("boundaries", layers), ("checkpoint", checkpoint)) if asked}


def relevance_of_rows(
    opened: Opened, methods: Sequence[Method], rows: Sequence[Row], explanation: str | None, **finer: Any
) -> ByMethod:
    """The relevance of `rows`, explained in one batch, by method. Raises UserError if a row cannot be explained."""
    batch = Batch.collate(rows, pad_id=0)
    try:
        relevance = {}
        for method in methods:
            arguments = _arguments(method, opened.view, **finer)
            result = method(opened.view, batch, explanation=explanation, **arguments)
            if not finer.get("boundaries"):  # nobody asked for these: they are computed beside what blocks keep
                result = replace(result, boundaries=None, peaks=None)
            relevance[method.name] = result
        return relevance
    except UnusableRows as error:
        raise UserError(f"{opened.resolved.config.id}: {error.detail}") from None


def _arguments(method: Method, view: ModelView, kept: bool = False, **finer: Any) -> dict[str, Any]:
    """The arguments of a method among `finer`; with `kept`, also what tells why blocks keep relevance, if it can."""
    known = {name: value for name, value in finer.items() if name != "checkpoint" or method.checkpoints}
    boundaries = FINER["boundaries"]
    if kept and boundaries.name in method.given and view.family.capabilities.issuperset(boundaries.needs):
        known[boundaries.name] = True
    return known


def _relevance_in_turn(
    opened: Opened, methods: Sequence[Method], rows: Sequence[Row], explanation: str | None, **finer: Any
) -> Iterator[ByMethod]:
    """Yield the relevance, by method, of each of `rows`, which all begin with the tokens of the shortest.

    Methods that can share a forward pass are given the tokens of the longest row for up to _AT_ONCE rows, which a
    causal model reads alike; the relevance is then cut to the length of each row.
    """
    shared = [method for method in methods if method.shares_forwards and len(rows) > 1]
    unshared = [method for method in methods if method not in shared]
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        longest = {name: max((row.get(name) for row in some), key=lambda ids: len(ids or ())) for name in _GROWING}
        together = {}
        if shared:
            whole = [{**row, **longest} for row in some]
            together = relevance_of_rows(opened, shared, whole, explanation, texts=1, **finer)
        for number, row in enumerate(some):
            relevance = of_row(together, number, row)
            if unshared:
                with part_of_work(start + number, len(rows)):
                    relevance |= relevance_of_rows(opened, unshared, [row], explanation, **finer)
            yield {method.name: relevance[method.name] for method in methods}


def of_row(relevance: Mapping[str, Relevance], at: int, row: Row) -> ByMethod:
    """The relevance of row number `at` of a batch, by method, as a batch of one, cut to the tokens of `row`."""
    length, cut = len(row["input_ids"]), {}
    for name, batch in relevance.items():
        whole = batch.mapped(lambda value: value[at : at + 1])
        layers = None if whole.layers is None else whole.layers[..., :length]
        decoder = None if whole.decoder_tokens is None else whole.decoder_tokens[:, : len(row["decoder_input_ids"])]
        cut[name] = replace(whole, tokens=whole.tokens[:, :length], layers=layers, decoder_tokens=decoder)
    return cut


def answer_of(
    question: Question,
    opened: Opened,
    methods: Sequence[Method],
    row: Row,
    relevance: ByMethod,
    answer_text: Said | None = None,
) -> Answer:
    """The answer to a question with the relevance of its row, and its target, foil and tokens as texts.

    `answer_text` is the answer of which it is a span.
    """
    resolved = opened.resolved
    answer = partial(Answer, question, opened, methods, row, relevance)
    target_id, foil_id = row["target_id"], row["foil_id"]
    if resolved.kind.labels:
        images = resolved.preprocessing
        tokens = opened.texts.of(row["input_ids"]) if images is None else patch_names(images)
        if resolved.output == "score":
            return answer(tokens, "the score", None)
        foil = None if foil_id is None else resolved.labels[foil_id]
        return answer(tokens, resolved.labels[target_id], foil)
    decoder = row.get("decoder_input_ids")
    view = opened.view
    start = [START] * len(view.start_ids) if isinstance(view, EncoderDecoderView) else []
    read = row["input_ids"] if decoder is None else decoder[len(start) :]
    pieces = opened.written.of([*read, target_id]) if answer_text is None else answer_text.pieces[: len(read) + 1]
    *tokens, token = pieces
    target, foil = token.strip() or repr(token), None
    if answer_text is not None:
        span = row["said"]
        target = answer_text.text[span.start : span.end].strip() or target
    elif question.words == "single" and isinstance(question.target, str):
        target = question.target
    if question.words == "single" and isinstance(question.foil, str):
        foil = question.foil
    elif foil_id is not None:
        foil = opened.written.of([*read, foil_id])[-1].strip()
    answer = partial(answer, said=answer_text)
    if resolved.kind.decoder:
        return answer(opened.texts.of(row["input_ids"]), target, foil, token=token, decoder=[*start, *tokens])
    return answer(tokens, target, foil, token=token)
