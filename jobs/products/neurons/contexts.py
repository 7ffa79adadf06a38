"""Max-activating examples of neurons: the passages of a corpus (contexts) where each neuron is most active.

Keys cover the model, the texts and how they are cut. A unit of texts becomes a part with the activity of every neuron.
When all parts are there, the driver merges them into a shard for each layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from closelook.evaluation.benchmark.corpus import CorpusSurvey, stamps
from closelook.evaluation.schema import ACTIVATIONS, CONTEXTS_PART, CONTEXTS_TEXTS, titled
from closelook.evaluation.schema import CONTEXTS as SCHEMA
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.corpus import PRODUCT, Surveyed, check_models, reads_texts, surveyed
from closelook.jobs.plan.node import ModelPlan, Node, Part, Run
from closelook.jobs.plan.units import Account
from closelook.jobs.products.neurons.merged import NOWHERE, UNIT, CorpusReader, Merged, part_name, read, with_keys
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit
from closelook.jobs.runner.closing import model_entry
from closelook.jobs.store import Artifact, Ledger, Written
from closelook.lrp_core.records.types import UserError

VERSION = 3  # raised when numbers change: stored ones of older versions are stale
ROWS_AT_ONCE = 1 << 18  # contexts that are written after one pass over the parts
_FACTS = ("contexts", "tokens", "without_tokens")


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextsNode(Node):
    """The max-activating examples of one model."""

    length: int  # most tokens of a context
    top: int  # how many contexts of a neuron are kept
    corpus: Surveyed  # the corpus as it was when the run was planned

    @property
    def parts(self) -> list[Part]:
        """The parts that the units of texts become, in the order of the corpus."""
        return [Part(self, part_name(unit)) for unit in range(self.corpus.survey.units)]


def nodes(run: Run) -> Iterator[ContextsNode]:
    """The node of every model that reads the corpus. Raises as `contexts_of`."""
    for model in run.plan.models:
        node = contexts_of(run.config, model, run.ledger)
        if node is not None:
            yield node


def contexts_of(config: RunConfig, model: ModelPlan, ledger: Ledger) -> ContextsNode | None:
    """The node of a model's max-activating examples, in its first precision.

    None if the config has no corpus, or the model does not read it. Raises as `surveyed`.
    """
    settings, resolved = config.neurons.corpus if config.neurons else None, model.resolved
    if settings is None:
        return None
    check_models(config, resolved)
    if not settings.takes(model=model.name) or not reads_texts(resolved):
        return None
    corpus = surveyed(config, ledger)
    return ContextsNode(
        artifact=Artifact(PRODUCT, model.name, settings.name, resolved.config.dtype),
        key_fields={
            "version": VERSION,
            "schema": [titled(SCHEMA), titled(ACTIVATIONS)],
            **resolved.key_fields,
            "dtype": resolved.config.dtype,
            "tokenizer": model.tokenizer,
            "corpus": corpus.survey.digest,
            "unit": corpus.characters,
            "tokens": settings.tokens,
            "top": settings.top,
        },
        samples=corpus.survey.texts,
        model=model,
        length=min(settings.tokens, resolved.max_length),
        top=settings.top,
        corpus=corpus,
    )


def units(run: Run, nodes: Sequence[ContextsNode]) -> Iterator[Unit]:
    """A unit for each share of the texts, whose rows are read when it is sent."""
    (node,) = nodes
    corpus, budget = node.corpus.survey, run.token_budget(node)
    size = -(-corpus.texts // max(1, corpus.units))
    for part in node.parts:
        yield Unit(part.shard, (part,), token_budget=budget, size=size)


def source(run: Run, node: ContextsNode) -> CorpusReader:
    """The reader that gives units their texts."""
    return CorpusReader(node.corpus.corpus, node.corpus.characters)


def _missing(run: Run, node: ContextsNode) -> bool:
    """True if the shard of a unit of texts is missing."""
    return not {part.paths[0] for part in node.parts} <= set(run.ledger.begun(node.artifact))


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made]:
    """The activity of every neuron in a unit's texts."""
    from closelook.jobs.runner.rows import that_fits

    (part,) = parts
    node: ContextsNode = part.node
    reading = partial(read, opened, rows, node.length, node.top)
    (neurons, texts), splits = that_fits(reading, opened.token_budget)
    return {part: Made(texts, splits=splits, beside=(neurons.select(CONTEXTS_PART.names).cast(CONTEXTS_PART),))}


def combine(opened: Opened, part: Part, values: Sequence[Made]) -> Made:
    """The value of the unit's only batch: contexts are numbered within their unit, so that two cannot be joined.

    Raises ValueError if the unit was split.
    """
    if len(values) > 1:
        raise ValueError("a unit of texts had to be split: memory ran out, or a text fails; set fewer `tokens`")
    return values[0]


def close(run: Run, node: ContextsNode, shards: Sequence[str], accounts: Mapping[str, Account]) -> str | None:
    """Merge the parts and write the manifest, once all parts are there.

    Returns why it is not written although every part is there: the corpus has changed or is gone.
    """
    corpus = node.corpus
    if _missing(run, node):
        return None
    try:
        if stamps(corpus.corpus) != corpus.stamps:
            return f"the files of the corpus {node.artifact.task} changed while they were read: run again"
    except UserError as error:
        return f"the corpus {node.artifact.task} is gone: {error}"
    _enter(run, node)
    return None


def _enter(run: Run, node: ContextsNode) -> None:
    """Write a shard for each layer and the manifest, then delete the parts."""
    from closelook.lrp_core.neurons.activity import BOUNDARIES

    store, artifact = run.store, node.artifact
    merged, facts = _merged(run.ledger, node)
    layers = sorted(set(merged.layer.tolist()))
    files: dict[str, Written] = {}
    for group in _groups(merged, layers):
        texts = _texts(run.ledger, node, merged.context[np.isin(merged.layer, group)])
        for layer in group:
            of_layer = merged.of(merged.layer == layer)
            part = Part(node, layer_name(layer))
            contexts, neurons = part.paths
            files[neurons] = store.write_shard(neurons, of_layer.activations(), ACTIVATIONS, origin=part.origin)
            files[contexts] = store.write_shard(contexts, of_layer.contexts(texts), SCHEMA, origin=part.origin)
    parts = [part.paths for part in node.parts]
    rejected = []
    for contexts, _ in parts:
        _, rejects = store.read_shard(contexts, CONTEXTS_TEXTS, ["context"])
        rejected += [f"{reject['sample_id']}: {reject['detail']}" for reject in rejects]
    record = {
        "shards": [artifact.shard(layer_name(layer)) for layer in layers],
        "corpus": node.corpus.record(),
        "boundaries": list(BOUNDARIES),
        **facts,
        "not_finite": int(merged.not_finite.sum()),
        "rejected": rejected,
        "model": model_entry(node),
        "tokenizer": node.plan.tokenizer,
    }
    run.ledger.commit(artifact, record, files=files)
    for path in chain(*parts):
        run.ledger.remove(path)


def layer_name(layer: int) -> str:
    """The name of a layer's shard."""
    return f"layer-{layer:03d}"


def _merged(ledger: Ledger, node: ContextsNode) -> tuple[Merged, dict[str, int]]:
    """All parts merged, and the sums of their counts of contexts, tokens and texts without tokens."""
    merged: Merged | None = None
    facts = dict.fromkeys(_FACTS, 0)
    for unit, part in enumerate(node.parts):
        table = ledger.store.read(part.paths[1], CONTEXTS_PART)
        facts = {name: count + table[name][0].as_py() for name, count in facts.items()}
        of_part = Merged.part(table, unit, node.top)
        if merged is None:
            merged = of_part
        else:
            merged.add(of_part)
    assert merged is not None
    return merged, facts


def _groups(merged: Merged, layers: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of layers that are written together: at least one layer, at most about ROWS_AT_ONCE contexts."""
    rows = int((merged.layer == layers[0]).sum()) * merged.context.shape[1]
    size = max(1, ROWS_AT_ONCE // max(1, rows))
    for start in range(0, len(layers), size):
        yield list(layers[start : start + size])


def _texts(ledger: Ledger, node: ContextsNode, contexts: np.ndarray) -> pa.Table:
    """The rows of CONTEXTS_TEXTS of these contexts with their `key`, in ascending order of it."""
    keys = np.unique(contexts[contexts != NOWHERE])
    tables: list[pa.Table] = []
    for unit, part in enumerate(node.parts):
        of_unit = keys[keys // UNIT == unit] % UNIT
        if len(of_unit):
            table = ledger.store.read(part.paths[0], CONTEXTS_TEXTS)
            table = table.take(pa.array(np.searchsorted(table["context"].to_numpy(), of_unit)))
            tables.append(with_keys(table, unit))
    if not tables:
        empty: Any = CONTEXTS_TEXTS.empty_table()
        return empty.append_column("key", pa.array([], pa.int64()))
    return pa.concat_tables(tables).combine_chunks()


def lines(run: Run, planned: Sequence[Node], computed: Sequence[Node]) -> Iterator[str]:
    """Yield lines that say what each model has read of the corpus."""
    for node in planned:
        yield from _lines(run.ledger, node)


def _lines(ledger: Ledger, node: Node) -> Iterator[str]:
    """Yield the lines about one model; none before its node is done."""
    record, artifact = ledger.record(node.artifact), node.artifact
    if record is None:
        return
    survey = CorpusSurvey(**record["corpus"]["survey"])
    counts = f"{survey.texts:,} texts = {record['contexts']:,} contexts of {record['tokens']:,} tokens"
    left_out = f"; {record['without_tokens']} texts have none" if record["without_tokens"] else ""
    yield f"{artifact.model}, {artifact.task}: {counts}{left_out}"
    if record["not_finite"]:
        lost = f"{record['not_finite']:,} activations in {artifact.dtype} are not finite and count nowhere"
        yield f"{artifact.model}, {artifact.task}: {lost}"
    for reject in record.get("rejected", ()):
        yield f"{artifact.model}, {artifact.task}: rejected {reject}"
    if survey.unusable:
        yield f"{artifact.task}: {survey.unusable} places hold no text, the first is {survey.first_unusable}"


CONTEXTS = Product(
    name=PRODUCT,
    title="sets of contexts",
    stage="neurons",
    nodes=nodes,
    schema=lambda dtype: CONTEXTS_TEXTS,
    units=units,
    compute=compute,
    lines=lines,
    combine=combine,
    close=close,
    source=source,
)
