"""Prints answers: tokens in colours or with numbers, predictions as a matrix, spans with shares, sums by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.style import Style
from rich.text import Text

from closelook import terminal
from closelook.evaluation.report.heatmaps.tokens import Line, colour, in_digits, least, scale, share_of
from closelook.evaluation.report.heatmaps.tokens import terminal as coloured
from closelook.jobs.commands.questions.answers import Answer, is_matrix
from closelook.jobs.commands.questions.export import OF_NO_TOKEN, shares
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.places.boundaries import REASONS
from closelook.lrp_core.records.types import Relevance
from closelook.terminal import not_finite, say, say_table

PATCHES = 6  # patches of an image that a terminal without colours shows
_WHOLE = 64  # longest text of an answer's prompt that is shown whole, in tokens
_STRONGEST = 8  # tokens that are shown of a longer one, the most relevant


def show_all(answers: Sequence[Answer], by_word: bool = False) -> None:
    """Print all answers to a question: several single predictions as one matrix for each method, others one by one.

    `by_word` joins the tokens of a word.
    """
    if not is_matrix(answers):
        for answer in answers:
            show(answer, by_word)
        return
    first = answers[0]
    say(f"{first.opened.id}: why {' · '.join(answer.what for answer in answers)}{first.note}")
    lines = [answer.lines(by_word) for answer in answers]
    for number in range(len(first.methods)):
        _show_matrix(answers, [(tokens, of_answer[number]) for tokens, _, of_answer in lines])


def show(answer: Answer, by_word: bool = False) -> None:
    """Print the explained prediction, then one line for each method: tokens in colours, or with numbers.

    Tokens that a decoder has read follow with numbers, if the method gives their relevance. For a span of an answer,
    the shares of the parts of the input stand above, and of a long text only the most relevant tokens are shown.
    """
    tokens, special, lines = answer.lines(by_word)
    opened = answer.opened
    say(f"{opened.id}: why {answer.what} ({_explained(answer)}){answer.note}")
    width = max(len(line.label) for line in lines)
    for line, method in zip(lines, answer.methods, strict=True):
        label = f"{line.label:{width}}  "
        if not line.finite:
            say(label + not_finite(opened.dtype))
            continue
        if not any((*line.values, *(line.decoder or ()))):
            say(f"{label}nothing beyond rounding")
            continue
        if answer.images is not None:
            _show_patches(answer, line, label)
            continue
        if answer.said is not None:
            say(f"{label}{_shares(answer, method)}")
            label = " " * len(label)
        if low := least(line.values, special):
            label += f"(white is {low:.3g}) " if terminal.console.color_system else ""
        say(Text(label) + _tokens(answer, tokens, special, line))


def _explained(answer: Answer) -> str:
    """The explained number in words, such as "logit 2.10 against 1.30", "sum of 5 logits 9.71" or "score 0.82"."""
    logits = " against ".join(number.removeprefix("+") for logit in answer.logits for number in in_digits([logit]))
    if answer.said is not None and len(answer.row["span"]) > 1:
        return f"sum of {len(answer.row['span'])} logits {logits}"
    return f"{'score' if answer.opened.resolved.output == 'score' else 'logit'} {logits}"


def _shares(answer: Answer, method: Method) -> str:
    """The shares of the parts of the input in one line.

    With hops, the shares of relevance that clamping discarded, one for each pass, and the share that stays on the
    reasoning (see `Hops`).
    """
    if method.name in answer.hops:
        hops = answer.hops[method.name]
        discarded = ", ".join(f"{share:.0%}" for share in hops.discarded)
        return f"prompt by hops; clamping discarded {discarded}; {hops.left:.0%} is left on the reasoning"
    parts = [share for share in shares(answer, method) if share.part not in OF_NO_TOKEN or round(100 * share.share)]
    return " · ".join(f"{share.part} {share.share:.0%}" for share in parts)


def _tokens(answer: Answer, tokens: Sequence[str], special: Sequence[bool], line: Line) -> Text:
    """The tokens of a line in colours or with numbers and, after a bar, those that a decoder has read."""
    if len(tokens) > _WHOLE and answer.said is not None:
        text = _strongest(tokens, line.values)
    elif terminal.console.color_system:
        text = coloured(tokens, line.values, special=special)
    else:
        text = _numbers(tokens, line.values)
    if answer.decoder is not None and line.decoder is not None:
        text += Text(" | ", "dim") + _numbers(answer.decoder, line.decoder)
    return text


def _numbers(tokens: Sequence[str], values: Sequence[float]) -> Text:
    """Each token followed by its relevance."""
    numbers = in_digits(values)
    shown = [token.strip() or "␣" for token in tokens]
    return Text(" ".join(f"{token} {number}" for token, number in zip(shown, numbers, strict=True)))


def _largest(values: Sequence[float], count: int) -> list[int]:
    """The indices of the `count` values that are largest by magnitude."""
    return sorted(range(len(values)), key=lambda at: -abs(values[at]))[:count]


def _strongest(tokens: Sequence[str], values: Sequence[float]) -> Text:
    """The _STRONGEST tokens by magnitude of relevance with their numbers, in the order of the text."""
    chosen = sorted(_largest(values, _STRONGEST))
    return Text("… ") + _numbers([tokens[at] for at in chosen], [values[at] for at in chosen])


def _show_matrix(answers: Sequence[Answer], lines: Sequence[tuple[Sequence[str], Line]]) -> None:
    """Print a matrix by one method: a row for each prediction, a column for each token that was read.

    Tokens that a decoder has read follow those of its encoder. If the matrix is wider than the terminal, only the most
    relevant tokens of each row are printed. `lines` holds the tokens and the line of relevance for each answer.
    """
    rows = [(*line.values, *(line.decoder or ())) for _, line in lines]
    longest = max(range(len(rows)), key=lambda at: len(rows[at]))
    tokens, of_longest = lines[longest]
    method = of_longest.label
    columns = [*tokens, *((answers[longest].decoder or ()) if of_longest.decoder is not None else ())]
    if not all(line.finite for _, line in lines):
        say(f"{method}: {not_finite(answers[0].opened.dtype)}")
        return
    if not any(map(any, rows)):
        say(f"{method}: nothing beyond rounding")
        return
    numbers = in_digits([value for row in rows for value in row])
    width = max(map(len, numbers))
    label = max(len(answer.target) for answer in answers)
    if label + sum(max(len(token.strip()), width) + 1 for token in columns) > terminal.console.width:
        for answer, row in zip(answers, rows, strict=True):
            say(Text(f"{method} {answer.target:{label}}  ") + _strongest(columns[: len(row)], row))
        return
    headings = [method, "logit", *(token.strip() or "␣" for token in columns)]
    table: list[list[Text]] = []
    for answer, cells in zip(answers, _cells(rows), strict=True):
        unread = [Text()] * (len(columns) - len(cells))
        table.append([Text(answer.target), Text(f"{answer.logits[0]:.2f}"), *cells, *unread])
    say_table(headings, table, headings[1:], lines=False)


def _cells(rows: Sequence[Sequence[float]]) -> Iterator[list[Text]]:
    """The cells of a matrix: numbers with the same digits, on the colours of one scale for the whole matrix."""
    every = [value for row in rows for value in row]
    plain = [False] * len(every)
    high, low, numbers = scale(every, plain), least(every, plain), iter(in_digits(every))
    for row in rows:
        cells = []
        for value in row:
            share = share_of(value, high, low)
            cells.append(Text(next(numbers), Style(color="black", bgcolor=colour(share))))
        yield cells


def _show_patches(answer: Answer, line: Line, label: str) -> None:
    """Print an image's patches as a grid of coloured cells; without colours, its most relevant patches with numbers."""
    if not terminal.console.color_system:
        largest = _largest(line.values, PATCHES)
        numbers = in_digits([line.values[at] for at in largest])
        say(label + "; ".join(f"{answer.tokens[at]} {number}" for at, number in zip(largest, numbers, strict=True)))
        return
    assert answer.images is not None
    rows, columns = answer.images.grid
    patches = line.values[1:]  # the first token is the class token
    plain = [False] * len(patches)
    high, low = scale(patches, plain), least(patches, plain)
    for row in range(rows):
        text = Text(label if row == 0 else " " * len(label))
        for value in patches[row * columns : (row + 1) * columns]:
            text.append("  ", Style(bgcolor=colour(share_of(value, high, low))))
        say(text)


def show_layers(answers: Sequence[Answer]) -> None:
    """Print the sums of relevance by layer, for each prediction and method."""
    for answer in answers:
        for name, relevance in answer.relevance.items():
            if relevance.finite.all():
                print_layers(name if len(answers) == 1 else f"{answer.target}, {name}", relevance)
            else:
                say(f"{name}: relevance between its layers is {not_finite(answer.opened.dtype)}")


def print_layers(name: str, relevance: Relevance) -> None:
    """Print one line for each layer, the last layer first, of relevance with `boundaries` for a batch of one sample.

    The relevance that enters a layer from above equals what leaves it below, plus what biases and softmax keep, plus an
    unaccounted rest, which is 0 under rules that conserve. The last column is the largest magnitude of a token's
    relevance below the layer: under unstable rules it grows from layer to layer.
    """
    assert relevance.boundaries is not None
    assert relevance.peaks is not None
    assert relevance.kept is not None
    crossing = relevance.boundaries[0].double().tolist()
    kept = relevance.kept[0].double().tolist()
    peaks = relevance.peaks[0].double().tolist()
    numbers = ["from above", "to below"]
    numbers += [f"kept by {reason}" for reason in REASONS]
    numbers += ["unaccounted", "largest"]
    rows = [["head", *_signed(float(relevance.explained[0]), crossing[-1])]]
    for layer in reversed(range(len(kept))):
        above, below = crossing[layer + 1], crossing[layer]
        unaccounted = above - below - sum(kept[layer])
        sums = _signed(above, below, *kept[layer], unaccounted)
        rows.append([f"layer {layer}", *sums, f"{peaks[layer]:.4g}"])
    tokens = float(relevance.tokens[0].double().sum())
    rows.append(["embeddings", *_signed(crossing[0], tokens)])
    say_table((name, *numbers), rows, numbers, lines=False)


def _signed(*values: float) -> list[str]:
    """The numbers with sign and four digits; a zero is always +0.0000."""
    return [f"{value + 0.0:+.4f}".replace("-0.0000", "+0.0000") for value in values]
