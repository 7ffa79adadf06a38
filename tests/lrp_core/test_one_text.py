"""Several predictions of one text: one forward and a backward each say what every prediction alone says."""

import pytest
import torch

from closelook.lrp_core import Batch, UserError, attribute
from closelook.lrp_core.methods import METHODS
from tests.tiny import tiny_model

FAMILIES = ("t5", "bart", "gpt2", "llama")
SHARING = ("attnlrp", "lrp", "gradient_x_input", "gradient_l1", "lrp_identity_softmax")
READ, SAID = [5, 9, 17, 8, 33], [12, 40, 7, 21]  # after the text, or by the decoder behind its start token
FOILS = [30, 31, 32, 33]


@pytest.fixture(params=FAMILIES)
def view(request):
    return tiny_model(request.param)


def rows(view, whole):
    """The predictions of SAID one after the other: each with what was read before, or all with the `whole`."""
    start = view.config.decoder_start_token_id if view.kind.decoder else None
    for at, (target, foil) in enumerate(zip(SAID, FOILS, strict=True)):
        before = SAID[: len(SAID) - 1 if whole else at]
        if view.kind.decoder:
            read = {"input_ids": READ, "decoder_input_ids": [start, *before], "position": at}
        else:
            read = {"input_ids": [*READ, *before], "position": len(READ) - 1 + at}
        yield {**read, "target_id": target, "foil_id": foil}


def both(view, method, **asked):
    together = attribute(method, view, Batch.collate(list(rows(view, True)), 0), texts=1, **asked)
    return together, [attribute(method, view, Batch.collate([row], 0), **asked) for row in rows(view, False)]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("method", SHARING)
def test_each_prediction_is_explained_as_alone(view, method):
    for explanation in ("contrastive", "log_prob"):
        together, alone = both(view, method, explanation=explanation, heads=True)
        for at, single in enumerate(alone):
            for name in ("tokens", "decoder_tokens"):
                if getattr(single, name) is not None:
                    result = getattr(together, name)[at]
                    length = getattr(single, name).shape[1]
                    torch.testing.assert_close(result[:length], getattr(single, name)[0], rtol=1e-6, atol=1e-9)
                    assert not result[length:].any(), "what stands behind a prediction has no part in it"
            for name in ("explained", "logit_target", "logit_foil", "heads"):
                torch.testing.assert_close(getattr(together, name)[at], getattr(single, name)[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("method", ["normxlogit", "logat", "embedding_norm"])
def test_the_head_reads_each_prediction_as_alone(family, method):
    together, alone = both(tiny_model(family), method, layers=True)
    for at, single in enumerate(alone):
        length = single.tokens.shape[1]
        torch.testing.assert_close(together.tokens[at, :length], single.tokens[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(together.layers[at, :, :length], single.layers[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(together.explained[at], single.explained[0], rtol=1e-9, atol=1e-12)
        assert not together.tokens[at, length:].any(), "what stands behind a prediction has no part in it"


def test_neurons_and_boundaries_are_those_of_each_prediction():
    view = tiny_model("llama")
    together, alone = both(view, "lrp", neurons=True, boundaries=True)
    for at, single in enumerate(alone):
        for name in ("neurons", "neuron_positions", "neuron_values", "boundaries", "kept"):
            torch.testing.assert_close(getattr(together, name)[at], getattr(single, name)[0], rtol=1e-6, atol=1e-9)


def test_they_share_one_forward_of_one_row(view):
    seen = []
    block = view.blocks[0].module
    hook = block.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    both_rows = Batch.collate(list(rows(view, True)), 0)
    METHODS["attnlrp"](view, both_rows, texts=1)
    hook.remove()
    assert seen == [1]


def test_rows_of_several_texts_and_methods_that_read_each_alone_are_refused(view):
    samples = list(rows(view, True))
    with pytest.raises(UserError, match=r"with texts=1, row i \+ 1 must hold the same text as row i \(equal tokens"):
        attribute(
            "lrp",
            view,
            Batch.collate([samples[0], {**samples[1], "input_ids": samples[1]["input_ids"][::-1]}], 0),
            texts=1,
        )
    with pytest.raises(UserError, match="gradcam has no option 'texts'"):
        attribute("gradcam", view, Batch.collate(samples, 0), texts=1)
