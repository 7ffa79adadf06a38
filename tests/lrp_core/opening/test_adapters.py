"""LoRA adapters: merged or beside their base, methods have the same numbers; those of another base are refused."""

import json
import warnings

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from closelook.alti import METHODS as VECTORS
from closelook.lrp_core import METHODS, Batch, UnsupportedMethod, UserError, load_model
from tests.adapters import TARGETS, adapted
from tests.tiny import ragged_rows, tiny_classifier, tiny_model

EVERY = {**METHODS, **VECTORS}
OF_WEIGHTS = tuple(VECTORS)
FEW = {
    "attnlrp_explicit": {"epsilon": 1e-12},
    "kernel_shap": {"samples": 8},
    "smoothgrad": {"samples": 2},
    "integrated_gradients": {"steps": 2},
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_methods_have_the_same_numbers_merged_or_not_and_those_that_read_weights_need_a_merge(name, tmp_path):
    bare = tiny_model(name, dtype="float32")
    bare.model.save_pretrained(tmp_path / "base")
    adapted(tmp_path / "adapter", bare)
    options = {"dtype": "float64", "adapter": tmp_path / "adapter"}
    merged = load_model(tmp_path / "base", **options)
    apart = load_model(tmp_path / "base", merge=False, **options)
    batch = Batch.collate(ragged_rows(merged), 0)
    delta = stock_delta(tmp_path / "adapter", name)
    for path, weight in delta.items():
        base = load_file(tmp_path / "base" / "model.safetensors")[f"{path}.weight"].double()
        torch.testing.assert_close(merged.model.get_parameter(f"{path}.weight"), base + weight)
    plain = load_model(tmp_path / "base", dtype="float64")
    for method in EVERY.values():
        if method.missing(merged.family.capabilities):
            continue
        asked = {**FEW.get(method.name, {}), **({"heads": True} if "heads" in method.gives else {})}
        of_merged, without = (method(view, batch, **asked) for view in (merged, plain))
        assert not torch.isclose(of_merged.explained, without.explained).any(), method.name
        if method.name in OF_WEIGHTS:
            with pytest.raises(UnsupportedMethod, match="merge the adapter"):
                method(apart, batch, **asked)
            continue
        of_apart = method(apart, batch, **asked)
        for numbers in ("tokens", "heads", "explained"):
            result, expected = getattr(of_apart, numbers), getattr(of_merged, numbers)
            if expected is not None:
                named = f"{method.name} {numbers}"
                torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-9, msg=named)


def stock_delta(folder, family) -> dict[str, torch.Tensor]:
    """alpha / r times B A, by the module that it is added to."""
    tensors = load_file(folder / "adapter_model.safetensors")
    paths = {key.removeprefix("base_model.model.").split(".lora_")[0] for key in tensors}
    pair = lambda p: (tensors[f"base_model.model.{p}.lora_{x}.weight"].double() for x in "BA")  # noqa: E731
    deltas = {path: 2 * b @ a for path in paths for b, a in [pair(path)]}
    return {path: delta.T if family == "gpt2" else delta for path, delta in deltas.items()}


def test_an_adapter_brings_the_head_of_a_classifier_to_a_language_model(tmp_path):
    tiny_model("llama", dtype="float32").model.save_pretrained(tmp_path / "base")
    classifier = tiny_classifier("llama", dtype="float32")
    body = load_file(tmp_path / "base" / "model.safetensors")
    classifier.model.load_state_dict(body, strict=False)
    adapted(tmp_path / "adapter", classifier, task_type="SEQ_CLS")
    for merge in (True, False):
        view = load_model(tmp_path / "base", adapter=tmp_path / "adapter", merge=merge)
        assert (view.kind.name, view.n_targets) == ("causal_classifier", 3)
        assert torch.equal(view.unembedding.weight, classifier.model.score.weight)
        batch = Batch.collate(ragged_rows(view), 0)
        for method in ("attnlrp", "alti_logit", "normxlogit") if merge else ("attnlrp",):
            assert EVERY[method](view, batch).tokens.isfinite().all()


#: What an adapter may have beside sums of weights, by GPT-2's names: biases, embeddings, whole modules.
SHAPES = {
    "biases of its layers": {"bias": "lora_only"},
    "all biases": {"bias": "all"},
    "embeddings": {"target_modules": ["wte", "c_attn"]},
    "unembedding": {"target_modules": ["lm_head", "c_attn"]},
    "both": {"target_modules": ["lm_head", "wte"]},
    "whole embeddings": {"modules_to_save": ["wte"]},
    "whole unembedding": {"modules_to_save": ["lm_head"]},
    "whole norms": {"modules_to_save": ["ln_1"]},
}
_OF_LLAMA = {"wte": "embed_tokens", "c_attn": "q_proj", "ln_1": "input_layernorm"}


def made(folder, name: str, shape: str, tied: bool) -> None:
    """A base and an adapter with random numbers in all that it brings."""
    settings = {
        field: [_OF_LLAMA.get(old, old) for old in value] if name == "llama" and isinstance(value, list) else value
        for field, value in SHAPES[shape].items()
    }
    bare = tiny_model(name, dtype="float32", tie_word_embeddings=tied, **_BIASES[name])
    bare.model.save_pretrained(folder / "base")
    adapted(folder / "adapter", bare, **settings)
    file = folder / "adapter" / "adapter_model.safetensors"
    generator = torch.Generator().manual_seed(2)
    tensors = load_file(file)
    for key, value in tensors.items():
        if ".lora_" not in key and ".base_layer.weight" not in key:
            tensors[key] = value + 0.2 * torch.randn(value.shape, generator=generator)
    save_file(tensors, file)


_BIASES = {"gpt2": {}, "llama": {"attention_bias": True, "mlp_bias": True}}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", _BIASES)
def test_whatever_an_adapter_brings_is_explained_as_peft_runs_it(name, shape, tied, tmp_path):
    made(tmp_path, name, shape, tied)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that are tied
        stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    shared = tied and any(part in SHAPES[shape].get("target_modules", ()) for part in ("wte", "lm_head"))
    if shared:
        message = refusal(tmp_path / "base", tmp_path / "adapter")
        assert "which another module shares, and merging would change both: keep it beside its base" in message
    for merge in (False,) if shared else (False, True):
        view = load_model(tmp_path / "base", adapter=tmp_path / "adapter", merge=merge)
        rows = ragged_rows(view)
        relevance = METHODS["lrp"](view, Batch.collate(rows, 0))
        for i, row in enumerate(rows):
            with torch.no_grad():
                logits = stock(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
            expected = logits[row["target_id"]] - logits[row["foil_id"]]
            torch.testing.assert_close(relevance.explained[i], expected, rtol=1e-4, atol=1e-4)
    if not shared:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that were tied
            merged = stock.merge_and_unload()
        assert type(view.model) is type(merged)
        for (path, weight), ours in zip(merged.named_parameters(), view.model.parameters(), strict=True):
            torch.testing.assert_close(ours, weight, msg=path)


def test_an_adapter_of_experts_is_merged(tmp_path):
    bare = tiny_model("mixtral", dtype="float32")
    bare.model.save_pretrained(tmp_path / "base")
    adapted(tmp_path / "adapter", bare, target_modules=[], target_parameters=["mlp.experts.down_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    view = load_model(tmp_path / "base", adapter=tmp_path / "adapter")
    rows = ragged_rows(view)
    relevance = METHODS["attnlrp"](view, Batch.collate(rows, 0))
    for i, row in enumerate(rows):
        with torch.no_grad():
            logits = stock(input_ids=torch.tensor([row["input_ids"]])).logits[0, row["position"]]
        expected = logits[row["target_id"]] - logits[row["foil_id"]]
        torch.testing.assert_close(relevance.explained[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["gradient_l1", "gradient_l2", "integrated_gradients", "smoothgrad"])
def test_gradients_at_one_table_of_embeddings_need_a_merge_of_an_adapter_of_embeddings(method, tmp_path):
    bare = tiny_model("llama", dtype="float32")
    bare.model.save_pretrained(tmp_path / "base")
    adapted(tmp_path / "adapter", bare, target_modules=["embed_tokens"])
    options = {"adapter": tmp_path / "adapter", "dtype": "float64"}
    merged, apart = (load_model(tmp_path / "base", merge=merge, **options) for merge in (True, False))
    batch = Batch.collate(ragged_rows(merged), 0)
    asked = FEW.get(method, {})
    assert METHODS[method](merged, batch, **asked).tokens.isfinite().all()
    with pytest.raises(UnsupportedMethod, match="looks its tokens up in several tables"):
        METHODS[method](apart, batch, **asked)
    same = [METHODS["attnlrp"](view, batch).tokens for view in (merged, apart)]
    torch.testing.assert_close(*same, rtol=1e-6, atol=1e-9)


def refusal(base, adapter, **options) -> str:
    with pytest.raises(UserError) as error:
        load_model(base, adapter=adapter, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_adapter_for_another_base_is_refused_in_one_line(tmp_path):
    view = tiny_model("gpt2", dtype="float32")
    view.model.save_pretrained(tmp_path / "base")
    adapted(tmp_path / "adapter", view)
    sizes = {"wider": ("hidden_size", 24), "deeper": ("num_hidden_layers", 3), "shallower": ("num_hidden_layers", 1)}
    for name, (field, size) in sizes.items():
        tiny_model("gpt2", dtype="float32", **{field: size}).model.save_pretrained(tmp_path / name)
        message = refusal(tmp_path / name, tmp_path / "adapter")
        assert message.startswith(f"the adapter {tmp_path / 'adapter'} is for another base than GPT2"), name
    tiny_model("bert", dtype="float32").model.save_pretrained(tmp_path / "bert")
    assert "is for another base than BertForMaskedLM" in refusal(tmp_path / "bert", tmp_path / "adapter")
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps(settings | {"base_model_name_or_path": "someone/their-gpt2"})
    )
    load_model(tmp_path / "base", adapter=tmp_path / "adapter")  # a folder may hold a copy of it
    from closelook.lrp_core.opening.adapters import check_base

    with pytest.raises(UserError, match="is for another base: someone/their-gpt2, not openai-community/gpt2"):
        check_base(tmp_path / "adapter", "openai-community/gpt2")


def test_an_adapter_that_the_hub_does_not_serve_is_not_called_incomplete(tmp_path):
    tiny_model("gpt2", dtype="float32").model.save_pretrained(tmp_path)
    says = refusal(tmp_path, "someone/their-adapter")
    assert says.startswith("cannot load adapter someone/their-adapter: not a local directory, and the hub says: ")


def test_what_is_no_adapter_or_could_not_be_put_on_is_refused_in_one_line(tmp_path):
    view = tiny_model("gpt2", dtype="float32")
    view.model.save_pretrained(tmp_path / "base")
    adapter = tmp_path / "adapter"
    assert refusal(tmp_path / "base", adapter) == (
        f"there is no adapter directory {adapter}: give an existing folder or an id of the hub"
    )
    adapted(adapter, view)
    base, (settings, weights) = (
        tmp_path / "base",
        (adapter / "adapter_config.json", adapter / "adapter_model.safetensors"),
    )
    assert "leave out max_memory" in refusal(base, adapter, max_memory={"cpu": "1GB"})
    written = json.loads(settings.read_text())
    for change, message in (
        ({"peft_type": "IA3"}, "is of the kind IA3, and only LORA is supported"),
        (
            {"init_lora_weights": "pissa"},
            "was initialised as 'pissa', which changes the base model: merge it, with peft's",
        ),
    ):
        settings.write_text(json.dumps(written | change))
        assert message in refusal(base, adapter)
    for name in ("use_dora", "lora_bias"):
        settings.write_text(json.dumps(written | {name: True}))
        assert "it can be merged only" in refusal(base, adapter, merge=False)
    settings.write_text(json.dumps(written | {"trainable_token_indices": [3, 4]}))
    assert "sets trainable_token_indices, which is not supported: merge it, with peft's" in refusal(base, adapter)
    settings.write_text(json.dumps(written))
    save_file(load_file(weights), adapter / "other.safetensors")
    weights.write_bytes(b"nothing")
    assert "adapter_model.safetensors cannot be read" in refusal(base, adapter)
    weights.unlink()
    assert "has no adapter_model.safetensors: save it with peft's save_pretrained" in refusal(base, adapter)


def test_an_adapter_of_a_classifier_without_its_head_is_refused(tmp_path):
    view = tiny_model("llama", dtype="float32")
    view.model.save_pretrained(tmp_path / "base")
    adapted(tmp_path / "adapter", view, task_type="SEQ_CLS", modules_to_save=None)
    message = "is for a classifier, but its file has no score.weight: use a base that has this head"
    assert message in refusal(tmp_path / "base", tmp_path / "adapter")


def test_an_adapter_of_a_classifier_is_refused_where_its_base_has_no_classifiers(tmp_path):
    view = tiny_model("t5", dtype="float32")
    view.model.save_pretrained(tmp_path / "base")
    adapted(tmp_path / "adapter", view, target_modules=["q", "v"])
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"task_type": "SEQ_CLS"}))
    message = "closelook knows no classifier of this base's family: use a base that is a classifier"
    assert message in refusal(tmp_path / "base", tmp_path / "adapter")
