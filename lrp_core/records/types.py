"""Inputs and results of methods: batches, requests, relevance, and the errors that users can put right.

One legend of shapes for the whole package: B batch, T tokens, U tokens of the decoder of an encoder-decoder, N tokens
of a span, L layers, H heads, G key-value heads, K head width, D model width, F feed-forward width, V vocabulary, P
poolings. Images have C channels, height H and width W.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from closelook.lrp_core.records.finer import FinerFields, axes

if TYPE_CHECKING:  # torch takes seconds to import, and this module also serves code that only needs the errors
    import torch
    from torch import Tensor

#: How a head's relevance [T, K] becomes one number (Close Look, figure 3), the P axis of `Relevance.heads`:
#: ReLU on every entry; ReLU on every token's sum over K; no ReLU.
POOLINGS = ("relu_dim", "relu_token", "none")

FULL = "full"  # of embeddings: with positions and segments
EMBEDDINGS = (FULL, "partial", "none")


class UserError(ValueError):
    """An error that the user can correct; the message is one line that says how."""

    exit_code = 2  # exit code of a command that fails with it; subclasses that the next `closelook run` may cure have 1

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UnsupportedModel(UserError):
    """No family describes this model."""


class UnsupportedMethod(UserError):
    """The method does not exist, does not apply to this family, or does not give what was asked for."""


class UnusableRows(UserError):
    """Rows of a batch that cannot be explained; a batch of the others can.

    `rows` are indices into the batch; `reason` is one of too_long, no_position, ended, padding, logits_not_finite.
    """

    def __init__(self, rows: Sequence[int], reason: str, detail: str) -> None:
        super().__init__(rows, reason, detail)  # pickle calls the constructor with these arguments
        self.rows, self.reason, self.detail = tuple(rows), reason, detail

    def __str__(self) -> str:
        return f"{rows_named(self.rows)}: {self.detail}"


def rows_named(rows: Sequence[int]) -> str:
    """The beginning of an error message about `rows` of a batch, such as "rows 0, 3 of the batch"; at most ten rows."""
    named = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    return f"{'row' if len(rows) == 1 else 'rows'} {named} of the batch"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown `word`: the most similar word of `known`, or else all of them."""
    return did_you_mean(word, known) or f"; there are {', '.join(sorted(known))}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message about a `word`: the most similar word of `known`; "" if none is, or it is `word`."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close and close[0] != word else ""


@dataclass(frozen=True)
class Batch:
    """Padded samples, each with the position where the model predicts and the tokens whose logits are explained.

    In an encoder-decoder, T counts the tokens of the encoder, and U those that the decoder has seen, from its start
    token on.
    """

    input_ids: Tensor  # [B, T] int64
    attention_mask: Tensor  # [B, T] int64, 1 real and 0 padding, which may be on either side
    position: Tensor  # [B] int64, index into T, of an encoder-decoder into U, where the prediction is read
    target_ids: Tensor  # [B] int64
    foil_ids: Tensor | None = None  # [B] int64; None explains the target alone
    token_type_ids: Tensor | None = None  # [B, T] int64, the segment of each token, 0 on padding; None: all are 0
    pixel_values: Tensor | None = None  # [B, C, H, W] float32, normalised, of models of images
    decoder_input_ids: Tensor | None = None  # [B, U] int64, of encoder-decoders
    decoder_attention_mask: Tensor | None = None  # [B, U] int64, like `attention_mask`
    # A span is several tokens of an answer that are explained together, as a weighted sum of logits. Of each of its N
    # tokens: the readout position, the id, and the weight (0 on padding). `position` and `target_ids` are the last's.
    span_positions: Tensor | None = None  # [B, N] int64, like `position`
    span_ids: Tensor | None = None  # [B, N] int64
    span_weights: Tensor | None = None  # [B, N] float64
    # By what the embeddings of tokens are multiplied, positions and segments left out: 0 removes a token; None: by 1.
    factors: Tensor | None = None  # [B, T] float32
    decoder_factors: Tensor | None = None  # [B, U] float32

    @classmethod
    def collate(cls, rows: Sequence[Mapping[str, Any]], pad_id: int, side: str = "right") -> Batch:
        """Pad view rows to a batch of tensors on the CPU; `side` ("left" or "right") is where padding goes.

        A row has `input_ids`, `position` and `target_id`, and optionally `foil_id`, `token_type_ids`, `pixel_values`
        [C, H, W], `decoder_input_ids` (always padded on the right), and the `span` of :func:`span_row`.
        Raises UserError for another `side`, if only some rows have an optional field, and for pictures of different
        sizes.

        >>> long = {"input_ids": [5, 6, 7], "position": 2, "target_id": 1}
        >>> short = {"input_ids": [8], "position": 0, "target_id": 3}
        >>> Batch.collate([long, short], pad_id=0).attention_mask.tolist()
        [[1, 1, 1], [1, 0, 0]]
        """
        import torch

        if side not in ("left", "right"):
            raise UserError(f"padding side is 'left' or 'right', not {side!r}")
        foils = _of_all(rows, "foil_id", "a foil")
        types = _of_all(rows, "token_type_ids", "token types")
        pixels = _of_all(rows, "pixel_values", "pixels")
        prefixes = _of_all(rows, "decoder_input_ids", "decoder_input_ids")
        ids, mask = _padded([row["input_ids"] for row in rows], pad_id, side)
        position = torch.tensor([row["position"] for row in rows], dtype=torch.int64)
        prefix = prefix_mask = None
        if prefixes is None:
            starts = mask.argmax(-1)  # [B], of the first token
            position = position + starts
        else:
            prefix, prefix_mask = _padded(prefixes, pad_id, "right")
        targets = torch.tensor([row["target_id"] for row in rows], dtype=torch.int64)
        span_positions, span_ids, span_weights = _spans(rows, position)
        return cls(
            input_ids=ids,
            attention_mask=mask,
            position=position,
            target_ids=targets,
            foil_ids=None if foils is None else torch.tensor(foils, dtype=torch.int64),
            token_type_ids=None if types is None else _padded(types, 0, side)[0],
            pixel_values=None if pixels is None else _stacked(pixels),
            decoder_input_ids=prefix,
            decoder_attention_mask=prefix_mask,
            span_positions=span_positions,
            span_ids=span_ids,
            span_weights=span_weights,
        )

    @property
    def explained_ids(self) -> Tensor:
        """Ids [B, 2] of targets and foils, [B, 1] without foils."""
        import torch

        return torch.stack([ids for ids in (self.target_ids, self.foil_ids) if ids is not None], 1)

    @property
    def every_id(self) -> Tensor:
        """Ids [B, T], of an encoder-decoder [B, T + U]: the encoder's tokens, then the decoder's."""
        return _joined(self.input_ids, self.decoder_input_ids)

    @property
    def every_mask(self) -> Tensor:
        """`attention_mask`, laid out like `every_id`."""
        return _joined(self.attention_mask, self.decoder_attention_mask)

    def parted(self, of_every: Tensor) -> dict[str, Tensor]:
        """Split numbers laid out like `every_id` into fields of a Relevance, by name."""
        width = self.input_ids.shape[1]
        if self.decoder_input_ids is None:
            return {"tokens": of_every}
        return {"tokens": of_every[:, :width], "decoder_tokens": of_every[:, width:]}

    @property
    def read_positions(self) -> Tensor:
        """The readout positions [B, N]: of each token of a span, or `position` alone (N = 1) without spans."""
        return self.position[:, None] if self.span_positions is None else self.span_positions

    def reading(self, dtype: torch.dtype) -> Tensor:
        """The weight of each position in the explained number [B, T]; of an encoder-decoder, the decoder's [B, U].

        Without a span, `position` has 1. With one, each of its positions has |weight| / (sum of |weights|). All other
        positions have 0.
        """
        import torch

        read = self.attention_mask if self.decoder_attention_mask is None else self.decoder_attention_mask
        shares = torch.ones_like(self.position[:, None], dtype=dtype)
        if self.span_weights is not None:
            weights = self.span_weights.abs().to(dtype)
            shares = weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)
        return torch.zeros_like(read, dtype=dtype).scatter_add(1, self.read_positions, shares)

    def over_tokens(self, pick: Callable[[Tensor], Tensor], moved: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with other tokens: `pick` makes the new ids, mask and segments from the old ones [B, T].

        `moved` makes the new readout positions from the old ones [B, N]. The decoder's tokens, pixels and explained ids
        stay.
        """
        types = None if self.token_type_ids is None else pick(self.token_type_ids)
        factors = None if self.factors is None else pick(self.factors)
        ids, mask = pick(self.input_ids), pick(self.attention_mask)
        spans = None if self.span_positions is None else moved(self.span_positions)
        at = moved(self.position[:, None])[:, 0]
        moved_too: dict[str, Any] = {"token_type_ids": types, "span_positions": spans, "factors": factors}
        return replace(self, input_ids=ids, attention_mask=mask, position=at, **moved_too)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fields of the batch that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with `change` applied to every tensor."""
        return replace(self, **{name: change(value) for name, value in self.tensors.items()})

    def rows(self, start: int, end: int) -> Batch:
        """The batch of the rows from `start` up to `end`, padded as in this batch."""
        return self.mapped(lambda value: value[start:end])

    def parts(self, size: int) -> list[Batch]:
        """The rows cut into consecutive batches of `size` rows; the last may have fewer."""
        return [self.rows(start, start + size) for start in range(0, len(self), size)]

    def first_texts(self, texts: int) -> Batch:
        """The first `texts` rows of a batch in which the same texts repeat in the same order.

        Later rows may differ from them in position, target, foil and span only. Raises UserError for any other batch.
        """
        if texts < 1 or len(self) % texts:
            raise UserError(
                f"with texts={texts} the same {texts} texts must repeat in the batch, so its number of rows must be a "
                f"multiple of {texts}, not {len(self)}: set texts to the number of different texts"
            )
        for name, value in self.to("cpu").tensors.items():
            of_row = name in ("position", "target_ids", "foil_ids", "span_positions", "span_ids", "span_weights")
            if not of_row and any((part != value[:texts]).any() for part in value.split(texts)):
                raise UserError(
                    f"with texts={texts}, row i + {texts} must hold the same text as row i (equal tokens, mask and "
                    "images): put other texts into another batch"
                )
        return self.rows(0, texts)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on this device; a tensor that is on it already is not copied.

        Copies to a GPU are asynchronous, and those to the CPU wait once for all fields.
        """
        from closelook.lrp_core.device.transfer import to_device, to_host

        if str(device) != "cpu":
            return self.mapped(lambda value: to_device(value, device))
        copies = iter(to_host(list(self.tensors.values())))
        return self.mapped(lambda _: next(copies))

    def __len__(self) -> int:
        return self.input_ids.shape[0]


def _of_all(rows: Sequence[Mapping[str, Any]], name: str, title: str) -> list[Any] | None:
    """The values of the field `name` in all rows; None if no row has one."""
    values = [row.get(name) for row in rows]
    missing = sum(value is None for value in values)
    if missing == len(values):
        return None
    if missing:
        raise UserError(f"some rows of the batch have {title} and some have none: batch them separately")
    return values


def span_row(
    row: Mapping[str, Any], first: int, ids: Sequence[int], weights: Sequence[float] | None = None
) -> dict[str, Any]:
    """A copy of a view row that explains a span of an answer: the sum of weights times the logits of the tokens `ids`.

    The logit of the first token is read at position `first` of the model's input, that of the next one position later,
    and so on. Weights are 1 by default; tokens of weight 0 are not explained. Raises UserError without tokens, or if
    there is not one weight for each.

    >>> row = span_row({"input_ids": [5, 6, 7, 8]}, first=1, ids=[7, 8, 9])
    >>> row["position"], row["target_id"], row["span"]
    (3, 9, [(1, 7, 1.0), (2, 8, 1.0), (3, 9, 1.0)])
    """
    weights = [1.0] * len(ids) if weights is None else list(weights)
    if not ids or len(weights) != len(ids):
        raise UserError(
            f"a span needs at least one token and one weight for each, not {len(ids)} tokens and {len(weights)} weights"
        )
    span = [(first + at, token, float(weight)) for at, (token, weight) in enumerate(zip(ids, weights, strict=True))]
    last, token, _ = span[-1]
    return {**row, "position": last, "target_id": token, "foil_id": None, "span": span}


def _spans(rows: Sequence[Mapping[str, Any]], position: Tensor) -> tuple[Tensor | None, ...]:
    """Positions, ids and weights of the rows' spans, each [B, N], or None if no row has a span."""
    import torch

    spans = _of_all(rows, "span", "spans")
    if spans is None:
        return None, None, None
    width = max(map(len, spans))
    padded = []
    for span in spans:
        last, token, _ = span[-1]
        padded.append([*span, *[(last, token, 0.0)] * (width - len(span))])
    # The numbers are exact in float64: positions and ids are far below 2**53.
    positions, ids, weights = torch.tensor(padded, dtype=torch.float64).unbind(-1)
    moved = position - torch.tensor([row["position"] for row in rows])  # [B] padding on the left
    return positions.long() + moved[:, None], ids.long(), weights.contiguous()


def _stacked(pixels: Sequence[Any]) -> Tensor:
    """Stack pictures [C, H, W] to [B, C, H, W] in float32. Raises UserError if their sizes differ."""
    import torch

    pictures = [torch.as_tensor(picture, dtype=torch.float32) for picture in pixels]
    sizes = sorted({tuple(picture.shape) for picture in pictures})
    if len(sizes) > 1:
        raise UserError(f"pictures of a batch have sizes {' and '.join(map(by, sizes))}: resize them to one size")
    return torch.stack(pictures)


def by(size: Sequence[int]) -> str:
    """A size in words: `3 x 224 x 224`."""
    return " x ".join(map(str, size))


def _padded(sequences: Sequence[Any], value: int, side: str) -> tuple[Tensor, Tensor]:
    """Sequences of numbers as int64 [B, T], padded with `value` on `side`, and their mask [B, T] (0 on padding)."""
    import torch

    width = max(len(sequence) for sequence in sequences)
    padded = torch.full((len(sequences), width), value, dtype=torch.int64)
    mask = torch.zeros_like(padded)
    for row, sequence in enumerate(sequences):
        start = width - len(sequence) if side == "left" else 0
        padded[row, start : start + len(sequence)] = torch.as_tensor(sequence, dtype=torch.int64)
        mask[row, start : start + len(sequence)] = 1
    return padded, mask


def _joined(of_tokens: Tensor, of_decoder: Tensor | None) -> Tensor:
    """Numbers of the tokens [B, T], followed by those of the decoder's tokens [B, U] if there are any."""
    import torch

    return of_tokens if of_decoder is None else torch.cat([of_tokens, of_decoder], 1)


@dataclass(frozen=True)
class Relevance(FinerFields):
    """Relevance of the tokens of a batch for one request. Numbers are float64 for float64 models, float32 otherwise."""

    tokens: Tensor = field(metadata=axes("B T"))  # 0 on padding
    explained: Tensor = field(metadata=axes("B"))  # the explained number
    logit_target: Tensor = field(metadata=axes("B"))
    logit_foil: Tensor | None = field(metadata=axes("B"))
    conserves: bool = True  # whether the sum over tokens is meant to be compared with `explained`
    #: The explained number at the baseline input, of methods that compare the input with one.
    baseline: Tensor | None = field(default=None, metadata=axes("B"))
    #: Relevance of pixels, summed over channels: of models of images, if the method gives it.
    pixels: Tensor | None = field(default=None, metadata=axes("B H W"))
    #: Relevance of the decoder's tokens, 0 on padding: of encoder-decoders, if the method gives it.
    decoder_tokens: Tensor | None = field(default=None, metadata=axes("B U"))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fields of Relevance that hold tensors, by name, without fields that only a subclass has."""
        values = {field.name: getattr(self, field.name) for field in fields(Relevance) if field.name != "conserves"}
        return {name: value for name, value in values.items() if value is not None}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Relevance:
        """A Relevance with `change` applied to every tensor. Fields that only a subclass has are dropped."""
        changed: dict[str, Any] = {name: change(value) for name, value in self.tensors.items()}
        return Relevance(**{"logit_foil": None, "conserves": self.conserves, **changed})

    @staticmethod
    def on_host(several: Sequence[Relevance]) -> list[Relevance]:
        """Copies of the results on the CPU, without fields of subclasses; the device is waited for once in all."""
        from closelook.lrp_core.device.transfer import to_host

        copies = iter(to_host([value for relevance in several for value in relevance.tensors.values()]))
        return [relevance.mapped(lambda _: next(copies)) for relevance in several]

    @property
    def finite(self) -> Tensor:
        """True for each row all of whose numbers are finite, [B]."""
        import torch

        values = (getattr(self, field.name) for field in fields(self))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return torch.stack([value.isfinite().reshape(len(value), -1).all(1) for value in tensors]).all(0)

    @staticmethod
    def joined(several: Sequence[Relevance]) -> Relevance:
        """The rows of several results, one after the other. All must have the same fields and number of tokens."""
        import torch

        if len(several) == 1:
            return several[0]
        columns = zip(*(relevance.tensors.values() for relevance in several), strict=True)
        return several[0].mapped(lambda _: torch.cat(next(columns)))

    @property
    def total(self) -> Tensor:
        """The sum of relevance over all tokens, the decoder's included, [B]."""
        of_decoder = 0 if self.decoder_tokens is None else self.decoder_tokens.sum(-1)
        return self.tokens.sum(-1) + of_decoder

    @property
    def residual(self) -> Tensor | None:
        """Sum of relevance minus the explained number (less its value at the baseline, if there is one) [B]."""
        if not self.conserves:
            return None
        return self.total - (self.explained if self.baseline is None else self.explained - self.baseline)


@dataclass(frozen=True)
class Request:
    """An explanation to compute. `explanation` or `embedding` is "none" for methods without that choice."""

    method: str
    explanation: str = "contrastive"  # contrastive | target | log_prob | none
    embedding: str = "full"  # full | partial | none
    options: tuple[tuple[str, Any], ...] = ()  # values of the method's options that may differ within one pass
    label: int | None = None  # for a classifier: the label to explain in place of the batch's targets

    def __post_init__(self) -> None:  # a request that was read from JSON has lists in place of tuples
        object.__setattr__(self, "options", tuple((name, value) for name, value in self.options))

    @property
    def variant(self) -> tuple[str, str]:
        """The explanation and the embedding, which tell apart what a method gives for the same target."""
        return self.explanation, self.embedding

    def option(self, name: str, default: Any) -> Any:
        """The value of the option `name`, or `default` if the request does not carry it."""
        return dict(self.options).get(name, default)


Requests = Sequence[Request]  # the explanations that a method's function is asked for
Results = dict[Request, Relevance]  # the result of a method's function
