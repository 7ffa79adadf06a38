"""One sentence, one prediction, explained in the terminal and on a page."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evaluation.benchmark.samples import Malformed, Row, sample, with_evidence
from evaluation.benchmark.views import tokenise
from evaluation.report.heatmap import Line, beyond_noise, data, pieces, terminal
from evaluation.report.page import Provenance, explain_page
from jobs.config import ModelConfig
from jobs.methods import method
from jobs.plan.models import load_tokenizer, open_view, resolve
from jobs.versions import versions
from lrp_core.types import Batch, UnusableRows, UserError

PLACE = "___"


def explain(
    sentence: str, model_id: str, target: str, foil: str | None, names: str, console: Console, html: Path | None
) -> None:
    """Print the tokens of `sentence` coloured by what speaks for `target` (rather than `foil`), a line a method.

    `names` are methods separated by commas. `___` marks the place of the target; without it, the target follows the
    sentence. Where there are no colours, the numbers are printed. Raises UserError for unknown models and methods, and
    for words that are not one token of the model's, and for a page that cannot be written.
    """
    methods = [method(name.strip()) for name in names.split(",")]
    resolved = resolve(ModelConfig(name=_name(model_id), id=model_id))
    tokenizer = load_tokenizer(resolved.config)
    row = _sample(sentence, target, foil)
    views, rejects = tokenise([row], tokenizer, masked=resolved.kind.slot, max_length=resolved.max_length)
    if rejects:
        raise UserError(
            ": ".join(filter(None, ("this sentence cannot be explained", rejects[0]["reason"], rejects[0]["detail"])))
        )
    (view_row,) = views
    view, batch = open_view(resolved, "float32", "cpu"), Batch.collate([view_row], pad_id=0)
    try:
        found = {info.name: info(view, batch) for info in methods}
    except UnusableRows as error:
        raise UserError(f"{model_id}: {error.detail}") from None
    tokens, special = pieces(tokenizer, view_row["input_ids"]), view_row["special_mask"]
    what = f"{target} rather than {foil}" if foil is not None else target
    one = found[methods[0].name]
    logits = f"logit {one.logit_target[0]:.2f}"
    if one.logit_foil is not None:
        logits += f" against {one.logit_foil[0]:.2f}"
    console.print(f"{model_id}: why {what} ({logits})", markup=False)
    lines = [Line(name, relevance.tokens[0].tolist()) for name, relevance in found.items()]
    shown = [float(each[0]) for each in (one.logit_target, one.logit_foil) if each is not None]
    lines = [beyond_noise(line, shown) if info.conserves else line for line, info in zip(lines, methods, strict=True)]
    width = max(len(line.label) for line in lines)
    for line in lines:
        if not any(line.values):
            console.print(f"{line.label:{width}}  nothing beyond rounding", markup=False)
            continue
        coloured = terminal(tokens, line.values, special=special)
        numbers = Text(" ".join(f"{token.strip()} {v:+.2f}" for token, v in zip(tokens, line.values, strict=True)))
        console.print(Text(f"{line.label:{width}}  ") + (coloured if console.color_system else numbers))
    if html is not None:
        facts = {"text": row["text"], "slot": row["slot"], "target": target, "foil": foil, "model": model_id}
        entry = data(tokens, lines, special=special, **facts)
        provenance = Provenance("explain", "", versions(), models=[(model_id, resolved.identity)])
        try:
            html.write_text(explain_page(entry, f"{model_id}: {what}", provenance), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {html}: {error.strerror}") from None
        console.print(f"written to {html}", markup=False)


def _name(model_id: str) -> str:
    """The last part of an id or path, as far as a configured model may be named so."""
    last = model_id.rstrip("/").rpartition("/")[2]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", last) or "model"


def _sample(sentence: str, target: str, foil: str | None) -> Row:
    if (times := sentence.count(PLACE)) > 1:
        raise UserError(f"{PLACE} marks the one place of the target, and the text has it {times} times")
    before, _, after = sentence.partition(PLACE)
    text = before + after if PLACE in sentence else before.rstrip() + " "
    slot = len(before) if PLACE in sentence else len(text)
    try:
        row = sample("terminal", text, slot, target, foil)
        return with_evidence(row, [(0, len(before.split(maxsplit=1)[0]))] if before.split() else [])
    except Malformed as error:
        raise UserError(f"this sentence cannot be explained: {error}") from None
