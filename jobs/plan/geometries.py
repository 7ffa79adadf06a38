"""The shapes of the papers' models, Close Look's from its table 9, so that plans and dry runs need no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lrp_core.families import FAMILIES, Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from jobs.config import ModelConfig


@dataclass(frozen=True)
class Geometry:
    """What a transformers config needs to build the model, and what cost estimates read."""

    name: str
    hub_id: str
    family: str  # transformers' model_type
    layers: int
    heads: int
    width: int
    vocabulary: int  # of models of images, how many labels there are
    max_length: int  # positions that the config gives
    feed_forward: int
    kv_heads: int | None = None
    tied: bool = True  # unembedding shares the embedding's weights
    constants: Mapping[str, Any] = field(default_factory=dict, hash=False)  # further fields of the config

    @property
    def model_family(self) -> Family:
        return FAMILIES[self.family]

    @property
    def block_parameters(self) -> int:
        """Weights of the blocks, up to biases and norms, that are used once for every token of the text.

        Of an encoder-decoder's decoder, with as many blocks, these are the keys and values of what it reads.
        """
        kv_share = (self.kv_heads or self.heads) / self.heads
        attention = self.width**2 * (2 + 2 * kv_share)
        read = 0 if self.model_family.decoder is None else 2 * self.width**2
        return int(self.layers * (attention + self._mlp + read))

    @property
    def _mlp(self) -> int:
        return self.width * self.feed_forward * (2 if self.model_family.gate is None else 3)

    @property
    def parameters(self) -> int:
        """All weights, up to biases and norms."""
        seldom = 0 if self.model_family.decoder is None else self.layers * (6 * self.width**2 + self._mlp)
        return self.block_parameters + seldom + self.vocabulary * self.width * (1 if self.tied else 2)

    def shrunk(self) -> Geometry:
        """A geometry of this family, small enough to check that something runs."""
        kv_heads = 2 if self.kv_heads else None
        return replace(self, layers=2, heads=4, width=64, feed_forward=128, kv_heads=kv_heads)

    def config(self, labels: Sequence[str] = ()) -> PretrainedConfig:
        """The transformers config of this geometry; with `labels`, of a classifier, with one of them of a regressor."""
        from transformers import AutoConfig

        family = self.model_family
        if family.kind.images:
            return self._of_images(labels)
        sizes = {family.feed_forward_field: self.feed_forward, family.max_length_field: self.max_length}
        if family.grouped:
            sizes["num_key_value_heads"] = self.kv_heads or self.heads
        return AutoConfig.for_model(
            self.family,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            hidden_size=self.width,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            **(_head(self.family, labels) if labels else {}),
            **sizes,
            **self.constants,
        )

    def _of_images(self, labels: Sequence[str]) -> PretrainedConfig:
        """The config of a model that reads images: its labels are the head's rows, with `labels` by these names."""
        from transformers import AutoConfig

        names = labels or [f"LABEL_{at}" for at in range(self.vocabulary)]
        family = self.model_family
        return AutoConfig.for_model(
            self.family,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            hidden_size=self.width,
            id2label=dict(enumerate(names)),
            label2id={name: at for at, name in enumerate(names)},
            **{family.feed_forward_field: self.feed_forward},
            **self.constants,
        )


def _head(family: str, labels: Sequence[str]) -> dict[str, Any]:
    """Fields of the config of models with these labels."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSES

    return {
        "architectures": [CLASSES[family]],
        "id2label": dict(enumerate(labels)),
        "label2id": {label: at for at, label in enumerate(labels)},
        "pad_token_id": 0,
    }


_LLAMA_3 = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
#: What their config.json say beside the sizes.
_ROBERTA = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
_DEBERTA_V3 = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_buckets": 256,
    "max_relative_positions": -1,
}
_FLAN_T5 = {"d_kv": 64, "feed_forward_proj": "gated-gelu", "pad_token_id": 0, "decoder_start_token_id": 0}


def _bert(name: str, hub_id: str, layers: int, heads: int, width: int) -> Geometry:
    return Geometry(name, hub_id, "bert", layers, heads, width, 30522, 512, 4 * width)


def _gpt2(name: str, layers: int, heads: int, width: int) -> Geometry:
    return Geometry(name, f"openai-community/{name}", "gpt2", layers, heads, width, 50257, 1024, 4 * width)


def _llama(name: str, layers: int, heads: int, width: int, feed_forward: int, tied: bool) -> Geometry:
    hub_id = f"meta-llama/{name}"
    return Geometry(name, hub_id, "llama", layers, heads, width, 128256, 131072, feed_forward, 8, tied, _LLAMA_3)


GEOMETRIES = {
    geometry.name: geometry
    for geometry in (
        _bert("bert-base", "google-bert/bert-base-uncased", 12, 12, 768),
        _bert("bert-large", "google-bert/bert-large-uncased", 24, 16, 1024),
        Geometry(
            "deberta-v3-base",
            "microsoft/deberta-v3-base",
            "deberta-v2",
            12,
            12,
            768,
            128100,
            512,
            3072,
            constants=_DEBERTA_V3,
        ),
        Geometry(
            "roberta-base", "FacebookAI/roberta-base", "roberta", 12, 12, 768, 50265, 514, 3072, constants=_ROBERTA
        ),
        _gpt2("gpt2", 12, 12, 768),
        _gpt2("gpt2-medium", 24, 16, 1024),
        _gpt2("gpt2-large", 36, 20, 1280),
        _gpt2("gpt2-xl", 48, 25, 1600),
        _llama("Llama-3.2-1B", 16, 32, 2048, 8192, tied=True),
        _llama("Llama-3.2-3B", 28, 24, 3072, 8192, tied=True),
        _llama("Llama-3.1-8B", 32, 32, 4096, 14336, tied=False),
        Geometry(
            "flan-t5-xl",
            "google/flan-t5-xl",
            "t5",
            24,
            32,
            2048,
            32128,
            512,
            5120,
            tied=False,
            constants=_FLAN_T5,
        ),
        Geometry("vit-base-patch16-224", "google/vit-base-patch16-224", "vit", 12, 12, 768, 1000, 197, 3072),
        Geometry("Llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama", 32, 32, 4096, 32000, 4096, 11008, tied=False),
    )
}


def geometry_of(model_id: str) -> Geometry | None:
    """The geometry of ``random/<name>`` or of the hub id of one of them; None for other models."""
    if model_id.startswith("random/"):
        return GEOMETRIES.get(model_id.removeprefix("random/"))
    return next((geometry for geometry in GEOMETRIES.values() if geometry.hub_id == model_id), None)


def shape_of(model: ModelConfig) -> Geometry | None:
    """What estimates of a model's cost take for its geometry: that of its id, else the one that its config names."""
    known = geometry_of(model.id)
    return known if known is not None or model.shape is None else GEOMETRIES[model.shape]
