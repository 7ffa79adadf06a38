"""The sources of one answer by several methods: claims, the further prompts that are run, and the judgement."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from closelook.evaluation.ablations import claims
from closelook.evaluation.ablations.claims import Claim, Sample
from closelook.evaluation.ablations.running import answers_of_masks
from closelook.evaluation.ablations.units import of_units
from closelook.jobs.plan.node import Part
from closelook.jobs.products.answers.ablations import SourcesNode, ablated_of
from closelook.jobs.products.controls.controlled import BASELINE
from closelook.jobs.products.explaining import with_span
from closelook.jobs.products.record import Opened, Row
from closelook.jobs.products.relevance import explainer_of
from closelook.jobs.runner.rows import that_fits
from closelook.lrp_core.methods.record import Method
from closelook.lrp_core.records.ablated import Ablated
from closelook.lrp_core.records.explained import LOG_PROB

TokenMaps = Mapping[str, np.ndarray]  # relevance of tokens [T] by explanation
Nodes = Mapping[Part, SourcesNode]
Entries = dict[Part, list[Row]]  # rows of schema SOURCES
OfSentences = dict[Part, dict[str, list[list[float]]]]  # by explanation: the units' relevance to each sentence


def entries_of(
    opened: Opened,
    nodes: Nodes,
    row: Row,
    way: str,
    record: Row,
    maps: Mapping[Part, TokenMaps],
) -> Entries:
    """Rows of schema SOURCES for one sample and one way of removal, by part, without parts that cannot be fitted to it.

    `record` is the sample's row of ablations, `maps` has the relevance of its tokens [T] by part and explanation.
    """
    first = next(iter(nodes.values()))
    sample = _sample(row, record, first.seed)
    methods = {part: _method(opened, node) for part, node in nodes.items()}
    nodes = {part: node for part, node in nodes.items() if claims.is_fitted(sample, methods[part])}
    claims_by_part = {part: _claims(sample, node, methods[part], row, maps[part]) for part, node in nodes.items()}
    run = _with_drops(opened, row, way, sample, [claim for of_method in claims_by_part.values() for claim in of_method])
    parts = _parts(opened, nodes, methods, row, sample) if max(row["answer_parts"]) else {}
    entries: Entries = {}
    for part, of_method in claims_by_part.items():
        by_chance = methods[part].family == BASELINE
        entries[part] = []
        for claim in of_method:
            columns = {"sample_id": row["sample_id"], "way": way, **claims.judged(sample, claim, run, by_chance)}
            if claim.is_whole:
                columns["parts"] = parts.get(part, {}).get(claim.explanation)
            entries[part].append(columns)
    return entries


def _sample(row: Row, record: Row, seed: int) -> Sample:
    """The sample as claims are judged on it."""
    digest = hashlib.sha256(f"ties:{seed}:{row['sample_id']}".encode()).digest()
    ties = np.random.default_rng(int.from_bytes(digest[:8])).permutation(len(row["unit_spans"]))
    random = {gone: np.array(masks) for gone, masks in zip(record["random_gone"], record["random"], strict=True)}
    evidence = None if row["unit_evidence"] is None else np.array(row["unit_evidence"])
    return Sample(ablated_of(record), record["swapped"], random, ties, evidence)


def _method(opened: Opened, node: SourcesNode) -> Method:
    """The record of a node's method, with the options that were chosen."""
    return opened.options.methods[node.artifact.method].configured(**node.chosen)


def _claims(sample: Sample, node: SourcesNode, method: Method, row: Row, maps: TokenMaps) -> list[Claim]:
    """The claims of a method. Those of methods that need rules, as AttnLRP, are also screened by leave-one-out."""
    if not node.requests:
        return list(claims.of_ablations(sample, method))
    of_method = []
    for explanation, tokens in maps.items():
        claim = claims.of_tokens(sample, explanation, _pooled(node, row, tokens))
        of_method.append(claim)
        if method.is_ruled and explanation == LOG_PROB.name:
            of_method += claims.screened(sample, claim)
    return of_method


def _pooled(node: SourcesNode, row: Row, tokens: np.ndarray) -> np.ndarray:
    """The relevance of a prompt's units, pooled from that of its tokens [T]."""
    return of_units(tokens, np.array(row["units"]), len(row["unit_spans"]), node.pool)


def _with_drops(opened: Opened, row: Row, way: str, sample: Sample, every: Sequence[Claim]) -> Ablated:
    """The sample's ablations, and in addition those without the units that claims find most relevant."""
    masks = claims.masks_to_run(sample, every)
    if not len(masks):
        return sample.ablated
    run = partial(answers_of_masks, opened.view, opened.tokenizer, row, masks, way)
    numbers, _ = that_fits(run, opened.token_budget)
    ablated = sample.ablated
    kept = np.concatenate([ablated.kept, masks])
    logits = np.concatenate([ablated.logits, numbers.logits])
    log_odds = np.concatenate([ablated.log_odds, numbers.log_odds])
    return replace(ablated, kept=kept, logits=logits, log_odds=log_odds)


def _parts(
    opened: Opened,
    nodes: Nodes,
    methods: Mapping[Part, Method],
    row: Row,
    sample: Sample,
) -> OfSentences:
    """The relevance of the prompt's units to each sentence of an answer, if the report shows the sample."""
    relevance_by_part: OfSentences = {part: {} for part in nodes}
    of_tokens = {part: node for part, node in nodes.items() if row["sample_id"] in node.shown and node.requests}
    numbers = np.array(row["answer_parts"])
    sentences = range(int(numbers.max(initial=0)) + 1)
    for part, node in nodes.items():
        if row["sample_id"] in node.shown and not node.requests:
            for sentence in sentences:
                fold = sample.folds[0].of_tokens(numbers == sentence)
                for explanation, relevance in methods[part].of_units(fold).values.items():
                    relevance_by_part[part].setdefault(explanation, []).append(relevance.tolist())
    if of_tokens:
        explainer = explainer_of(opened, list(of_tokens.values()))
        for sentence in sentences:
            explained = explainer.batch([with_span(row, sentence)])
            for part, node in of_tokens.items():
                for request in node.requests:
                    tokens = explained.relevance[request].tokens[0].double().numpy()
                    of_sentences = relevance_by_part[part].setdefault(request.explanation, [])
                    of_sentences.append(_pooled(node, row, tokens).tolist())
    return relevance_by_part
