"""Models that predict labels or a score: read where their head reads, explained as the stock model computes."""

from dataclasses import replace

import pytest
import torch

from closelook.alti import METHODS as VECTORS
from closelook.lrp_core import (
    METHODS,
    Batch,
    ModelView,
    UnsupportedModel,
    UnusableRows,
    UserError,
    load_model,
    random_model,
)
from closelook.lrp_core.readers.predictions import with_predictions
from tests.asked import CLOSE, close, explain, in_turn
from tests.oracles import methods as oracles
from tests.oracles import states as oracles_states
from tests.tiny import MORE, TINY, ragged_rows, tiny_classifier, tiny_config

pytestmark = pytest.mark.numeric
HEADS = ["bert", "megatron-bert", "distilbert", "electra", "gpt2", "llama", "modernbert", "roberta"]
EVERY = sorted(TINY | MORE)


@pytest.fixture(params=HEADS)
def view(request) -> ModelView:
    return tiny_classifier(request.param)


@pytest.fixture
def rows(view) -> list[dict]:
    return ragged_rows(view)


def paired(rows: list[dict]) -> list[dict]:
    """The same tokens, the second half of each row as a second segment."""
    return [
        row | {"token_type_ids": [int(2 * t >= n) for t in range(n)]} for row in rows for n in [len(row["input_ids"])]
    ]


def known(view: ModelView) -> list:
    methods = (*METHODS.values(), *VECTORS.values())
    return [method for method in methods if not method.missing(view.family.capabilities)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("labels", [3, 1])
@pytest.mark.parametrize("name", EVERY)
def test_logits_of_labels_equal_the_stock_forward_with_padding_on_either_side(name, labels):
    view = tiny_classifier(name, labels)
    rows = ragged_rows(view)
    for side in ("left", "right"):
        logits = view.logits(Batch.collate(rows, 0, side))
        for row, ours in zip(rows, logits, strict=True):
            ids = [row["target_id"], *([row["foil_id"]] if labels > 1 else [])]
            torch.testing.assert_close(ours, oracles.logits(view, row)[ids], **CLOSE)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("name", "side"), in_turn(HEADS, ["left", "right"]))
def test_every_method_gives_a_padded_classifier_batch_what_it_gives_single_samples(name, side):
    """Every family and every method; the side, which both know from other tests, in turn."""
    view = tiny_classifier(name)
    rows = ragged_rows(view)
    rows = paired(rows) if view.family.segment_embedding and view.config.type_vocab_size > 1 else rows
    for method in known(view):
        together = method(view, Batch.collate(rows, 0, side))
        for i, row in enumerate(rows):
            alone, length = method(view, Batch.collate([row], 0)), len(row["input_ids"])
            kept = together.tokens[i, -length:] if side == "left" else together.tokens[i, :length]
            torch.testing.assert_close(kept, alone.tokens[0], rtol=1e-6, atol=1e-7, msg=method.name)
            stock = oracles.logits(view, row)
            torch.testing.assert_close(together.logit_target[i], stock[row["target_id"]], **CLOSE)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo", "gpt_neox", "llama", "opt"])
def test_a_head_that_skips_padding_tokens_is_read_where_the_stock_model_reads(name):
    view = tiny_classifier(name)
    row = ragged_rows(view, lengths=(7,))[0]
    row["input_ids"][-2:] = [view.config.pad_token_id] * 2
    with pytest.raises(
        UnusableRows, match=r"reads at the last token alone: .* \(padding tokens of the text do not count"
    ):
        METHODS["lrp"](view, Batch.collate([row], 0))
    relevance = METHODS["lrp"](view, Batch.collate([row | {"position": 4}], 0))
    stock = oracles.stock(view, input_ids=torch.tensor([row["input_ids"]])).logits[0]
    torch.testing.assert_close(relevance.logit_target[0], stock[row["target_id"]], **CLOSE)
    torch.testing.assert_close(relevance.logit_foil[0], stock[row["foil_id"]], **CLOSE)


@pytest.mark.thinned(4)
def test_the_model_is_bit_identical_afterwards(view, rows):
    ids = torch.tensor([rows[0]["input_ids"]])
    before = view.model(input_ids=ids).logits
    for method in known(view):
        method(view, Batch.collate(rows, 0))
        assert torch.equal(view.model(input_ids=ids).logits, before), method.name


@pytest.mark.thinned(4)
@pytest.mark.parametrize("explanation", ["contrastive", "target", "log_prob"])
def test_gradient_x_input_of_a_classifier_is_that_of_the_stock_model(view, rows, explanation):
    relevance = explain("gradient_x_input", view, rows, explanation=explanation, embedding="partial")
    expected = []
    for row in rows:
        token = oracles.tokens(view, row)
        expected.append((oracles.gradient(view, row, token, explanation) * token).sum(-1))
    if view.embedding_norm is not None and view.family.position_embedding is None:
        # a norm undoes any scaling of the token's embedding, to which nothing was added: next to nothing is left
        for ours, stock in zip(relevance, expected, strict=True):
            torch.testing.assert_close(ours, stock, **CLOSE)
            assert stock.abs().max() < 1e-2
        return
    close(relevance, expected)


@pytest.mark.thinned(4)
def test_perturbation_methods_of_a_classifier_equal_one_forward_a_token(view, rows):
    close(explain("occlusion", view, rows), [oracles.occlusion(view, row, "contrastive", "zero") for row in rows])
    if view.kind.causal:
        relevance = explain("occlusion", view, rows, how="delete")
        close(relevance, [oracles.occlusion(view, row, "contrastive", "delete") for row in rows])
    relevance = explain("atman", view, rows, score="logit")
    close(relevance, [oracles.atman(view, row, "contrastive", 0.9, False) for row in rows])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("score", ["log_prob", "logit"])
def test_atman_of_a_regressor_is_the_drop_of_its_score(family, score):
    view = tiny_classifier(family, 1)
    rows = ragged_rows(view)
    relevance = METHODS["atman"](view, Batch.collate(rows, 0), score=score)
    close(explain("atman", view, rows, score=score), [oracles.atman(view, row, "target", 0.9, False) for row in rows])
    assert torch.equal(relevance.explained, relevance.logit_target)


@pytest.mark.thinned(3)
def test_attention_methods_of_a_classifier_equal_their_formulas(view, rows):
    maps = [oracles.attention_maps(view, row, "contrastive") for row in rows]
    expected = [
        oracles.grad_attention_rollout(*of_row)[row["position"]] for of_row, row in zip(maps, rows, strict=True)
    ]
    close(explain("grad_attention_rollout", view, rows), expected)
    expected = [
        oracles.rollout(m, seen, 1.0, 0.0)[row["position"]] for (m, _, seen), row in zip(maps, rows, strict=True)
    ]
    close(explain("attention_rollout", view, rows), expected)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "labels"), in_turn(EVERY, [3, 1]))
def test_lrp_conserves_the_logit_of_a_label_when_biases_are_zero(name, labels):
    """The head's tanh passes relevance as it is: its ratio is held constant, as that of every activation."""
    view = tiny_classifier(name, labels)
    for path, parameter in view.model.named_parameters():
        if path.endswith("bias"):
            parameter.zero_()
    residual = METHODS["lrp"](view, Batch.collate(ragged_rows(view), 0)).residual
    torch.testing.assert_close(residual, torch.zeros_like(residual), atol=1e-10, rtol=0)


@pytest.mark.thinned(3)
def test_explicit_attnlrp_of_a_classifier_agrees_with_modified_gradients(view, rows):
    relevance = explain("attnlrp_explicit", view, rows, epsilon=1e-12)
    torch.testing.assert_close(relevance, explain("attnlrp", view, rows), rtol=1e-6, atol=1e-9)


def test_contributions_of_alti_logit_sum_to_the_label_of_a_causal_classifier():
    for name in ("gpt2", "llama"):
        view = tiny_classifier(name)
        relevance = VECTORS["alti_logit"](view, Batch.collate(ragged_rows(view), 0))
        torch.testing.assert_close(relevance.contributions.total(), relevance.explained)


@pytest.mark.thinned(3)
def test_logat_is_the_stock_head_on_each_token_as_if_it_were_read(view, rows):
    relevance = METHODS["logat"](view, Batch.collate(rows, 0), layers=True).layers
    for i, row in enumerate(rows):
        for layer, state in enumerate(oracles_states.hidden_states(view, row)[1:]):
            pair = oracles_states.logat(view, row, state)
            torch.testing.assert_close(relevance[i, layer, : len(pair)], pair[:, 0] - pair[:, 1], **CLOSE)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", HEADS)
def test_logat_of_a_score_is_the_distance_to_the_prediction_or_its_reverse(name):
    view = tiny_classifier(name, labels=1)
    rows = ragged_rows(view)
    norms = explain("embedding_norm", view, rows)
    expected = []
    for row in rows:
        read = oracles_states.logat(view, row, oracles_states.hidden_states(view, row)[-1])[:, 0]
        expected.append((read - oracles.logits(view, row)[0]).abs())
    close(explain("logat", view, rows), expected)
    close(explain("logat", view, rows, reverse=True), [-x for x in expected])
    close(explain("normxlogit", view, rows, reverse=True), [-x * n for x, n in zip(expected, norms, strict=True)])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", HEADS)
def test_value_zeroing_of_a_classifier_reads_the_row_of_its_head(name):
    view = tiny_classifier(name)
    rows = ragged_rows(view)
    maps = [oracles_states.value_zeroing(view, row) for row in rows]
    expected = [torch.linalg.multi_dot(m[::-1])[row["position"]] for m, row in zip(maps, rows, strict=True)]
    close(explain("value_zeroing", view, rows), expected, rtol=1e-5, atol=1e-6)


def test_pairs_carry_token_types():
    view = tiny_classifier("bert")
    rows = paired(ragged_rows(view))
    batch = Batch.collate(rows, 0, "left")
    logits = view.logits(batch)
    for row, ours in zip(rows, logits, strict=True):
        ids = {name: torch.tensor([row[name]]) for name in ("input_ids", "token_type_ids")}
        torch.testing.assert_close(ours[0], view.model(**ids).logits[0, row["target_id"]])
        alone = row | {"token_type_ids": None}
        assert not torch.isclose(ours[0], oracles.logits(view, alone)[row["target_id"]])


def test_token_types_that_a_model_does_not_know_are_refused():
    view = tiny_classifier("bert")
    batch = Batch.collate(paired(ragged_rows(view)), 0)
    broken = batch.token_type_ids.clone()
    broken[1, 0] = 2
    with pytest.raises(
        IndexError, match="row 1 of the batch: token type out of range, the number of the model's segments is 2"
    ):
        METHODS["lrp"](view, replace(batch, token_type_ids=broken))
    with pytest.raises(UserError, match="gpt2 models with labels have no segments: leave token_type_ids out"):
        METHODS["lrp"](other := tiny_classifier("gpt2"), Batch.collate(paired(ragged_rows(other)), 0))
    with pytest.raises(UserError, match="some rows of the batch have token types and some have none"):
        Batch.collate([*paired(ragged_rows(view)), *ragged_rows(view)], 0)


def test_a_position_where_the_head_does_not_read_is_an_error_that_names_the_rows(view, rows):
    batch = Batch.collate(rows, 0)
    with pytest.raises(
        UnusableRows, match=f"row 1 of the batch: the model's head reads at the {view.kind.reads} token"
    ):
        METHODS["lrp"](
            view,
            replace(batch, position=batch.position + torch.tensor([0, 1 if view.kind.reads == "first" else -1, 0])),
        )


def test_a_label_that_the_model_does_not_have_is_an_error(view, rows):
    with pytest.raises(
        IndexError, match="row 0 of the batch: label out of range, the number of the model's labels is 3"
    ):
        METHODS["lrp"](view, replace(Batch.collate(rows, 0), target_ids=torch.tensor([3, 1, 2])))


def test_a_score_has_no_probability():
    view = tiny_classifier("bert", labels=1)
    with pytest.raises(UserError, match="a score has no probability: explain it by 'target'"):
        METHODS["lrp"](view, Batch.collate(ragged_rows(view), 0), explanation="log_prob")


@pytest.mark.thinned(3)
def test_rows_without_a_target_get_the_label_that_the_model_predicts(view, rows):
    predicted = with_predictions(view, [row | {"target_id": None} for row in rows])
    assert [row["target_id"] for row in predicted] == [int(oracles.logits(view, row).argmax()) for row in rows]


@pytest.mark.thinned(3)
def test_the_kind_is_read_from_the_checkpoint(view, rows, tmp_path):
    view.model.float().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.kind, loaded.n_targets) == (view.kind, 3)
    torch.testing.assert_close(
        loaded.model(torch.tensor([rows[0]["input_ids"]])).logits[0], oracles.logits(view, rows[0])
    )


def test_labels_that_do_not_exclude_each_other_are_refused():
    config = tiny_config(
        "bert", architectures=["BertForSequenceClassification"], problem_type="multi_label_classification"
    )
    with pytest.raises(
        UnsupportedModel, match=r"bert models with labels are supported with problem_type=.* only, not multi_l"
    ):
        random_model(config)
