"""Replacements of tokens against plain counts of the texts' bigrams."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.schema import VIEW
from closelook.evaluation.scoring.faithfulness.resampling import START, TEXT_COLUMNS, Proposal
from closelook.lrp_core.records.types import UserError
from tests.oracles import faithfulness as oracle

KEPT = (2, 3)
SCHEMA = pa.schema([VIEW.field(name) for name in TEXT_COLUMNS])


def texts_of(n=30, words=12, seed=0):
    """Token ids and special masks of texts that begin with 1, with the tokens of KEPT among others."""
    draw = np.random.default_rng(seed)
    texts = []
    for _ in range(n):
        ids = [1, *(int(token) for token in draw.integers(2, words, draw.integers(1, 9)))]
        texts.append((ids, [True] + [False] * (len(ids) - 1)))
    return texts


def table_of(texts):
    rows = [dict(zip(TEXT_COLUMNS, text, strict=True)) for text in texts]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def special_of(ids, special):
    return np.array(special) | np.isin(ids, KEPT)


def test_every_replacement_is_that_of_plain_counts():
    texts = texts_of()
    proposal = Proposal.of([table_of(texts)], KEPT)
    seen = 0
    for ids, special in [*texts, ([1, 5, 11, 4], [True, False, False, False])]:
        drawn = proposal.replacements(ids, special_of(ids, special), 4, seed=7)
        assert drawn.tolist() == oracle.replacements(texts, KEPT, ids, special, 4, seed=7)
        seen += drawn.size
    assert seen > 400


def test_no_token_is_replaced_by_itself_lengths_stay_and_special_tokens_are_neither_proposed_nor_replaced():
    texts = texts_of()
    proposal = Proposal.of([table_of(texts)], KEPT)
    for ids, mask in texts:
        special = special_of(ids, mask)
        drawn = proposal.replacements(ids, special, 50, seed=0)
        assert drawn.shape == (50, len(ids))
        assert (drawn[:, special] == np.array(ids)[special]).all()
        assert (drawn[:, ~special] != np.array(ids)[~special]).all()
        assert not np.isin(drawn[:, ~special], [1, *KEPT]).any()


def test_draws_follow_the_counts_behind_the_original_left_neighbour():
    texts = texts_of(200, words=7)
    proposal, ids = Proposal.of([table_of(texts)], KEPT), [1, 4, 5]
    drawn = proposal.replacements(ids, [True, False, False], 20_000, seed=0)
    behind = Counter(b for text, _ in texts for a, b in pairwise(text) if a == 4)
    for token in (2, 3, 5):
        del behind[token]
    shares = {token: count / behind.total() for token, count in behind.items()}
    assert {4, 6} == set(shares)
    for token, share in shares.items():
        assert (drawn[:, 2] == token).mean() == pytest.approx(share, abs=0.02)


def test_the_first_token_of_a_text_has_the_start_as_its_left_neighbour():
    texts = [([4, 5], [False] * 2), ([6, 5], [False] * 2), ([5, 7, 7, 7], [False] * 4)]
    drawn = Proposal.of([table_of(texts)], ()).replacements([5, 9], [False] * 2, 200, seed=0)
    assert START not in drawn
    assert set(drawn[:, 0].tolist()) == {4, 6}, "what texts begin with"
    assert set(drawn[:, 1].tolist()) == {7}, "what follows 5"


def test_behind_an_unseen_neighbour_and_where_nothing_else_follows_it_single_tokens_are_drawn():
    texts = [([4, 5], [False] * 2), ([4, 5], [False] * 2), ([6, 7], [False] * 2)]
    proposal = Proposal.of([table_of(texts)], ())
    only = proposal.replacements([4, 5], [False] * 2, 300, seed=0)
    assert set(only[:, 1].tolist()) == {4, 6, 7}
    unseen = proposal.replacements([9, 5], [False] * 2, 300, seed=0)
    assert set(unseen[:, 1].tolist()) == {4, 6, 7}
    assert (unseen[:, 1] == 4).mean() == pytest.approx(1 / 2, abs=0.1)


def test_a_proposal_does_not_depend_on_files_order_or_pieces_and_its_digest_tells_counts_apart():
    texts = texts_of()
    whole = Proposal.of([table_of(texts)], KEPT)
    pieces = [
        table_of(texts[20:]),
        table_of(texts[:7]),
        pa.concat_tables([table_of(texts[7:13]), table_of(texts[13:20])]),
    ]
    assert Proposal.of(pieces, KEPT).digest == whole.digest
    sliced = [table_of(texts).slice(0, 11), table_of(texts).slice(11)]
    assert Proposal.of(sliced, KEPT).digest == whole.digest
    assert Proposal.of([table_of(texts[1:])], KEPT).digest != whole.digest
    assert Proposal.of([table_of(texts)], KEPT[:1]).digest != whole.digest
    assert whole.tokens == 8


def test_a_sample_alone_decides_its_draws_and_more_draws_begin_alike():
    texts = texts_of()
    proposal, (ids, mask) = Proposal.of([table_of(texts)], KEPT), max(texts, key=lambda text: len(text[0]))
    special = special_of(ids, mask)
    few, many = (proposal.replacements(ids, special, draws, seed=0) for draws in (2, 5))
    np.testing.assert_array_equal(few, many[:2])
    assert (proposal.replacements(ids, special, 5, seed=1) != many).any()
    assert (many[0] != many[1]).any()
    fewer = special | (np.arange(len(ids)) < 4)
    rest = ~fewer
    np.testing.assert_array_equal(proposal.replacements(ids, fewer, 5, seed=0)[:, rest], many[:, rest])


def test_texts_of_a_single_token_have_no_replacement():
    proposal = Proposal.of([table_of([([4, 4], [False] * 2)])], ())
    assert proposal.tokens == 1
    with pytest.raises(UserError, match="all tokens of the task's texts are equal"):
        proposal.replacements([4, 4], [False] * 2, 1, seed=0)
    assert Proposal.of([table_of([])], ()).tokens == 0
    assert Proposal.of([table_of([([4, 4], [True] * 2)])], ()).tokens == 0
