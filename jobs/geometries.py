"""The sizes of the papers' models (Close Look, table 9, and others), for models of random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from closelook.lrp_core.families import FAMILIES, Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Geometry:
    """The sizes of a model: enough for its transformers config."""

    name: str
    hub_id: str
    family: str  # transformers' model_type
    layers: int
    heads: int
    width: int
    vocabulary: int  # tokens; for models of images, labels
    max_length: int  # positions in the model's config
    feed_forward: int
    kv_heads: int | None = None
    tied: bool = True  # unembedding shares the embedding's weights
    constants: Mapping[str, Any] = field(default_factory=dict, hash=False, kw_only=True)  # further fields of the config

    @property
    def model_family(self) -> Family:
        """The record of the family."""
        return FAMILIES[self.family]

    @property
    def parameters(self) -> int:
        """All weights of the model; biases, norms and positions are not counted. Decoders are as deep as encoders."""
        mlp = self.width * self.feed_forward * (2 if self.model_family.gate is None else 3)
        kv_share = (self.kv_heads or self.heads) / self.heads
        of_block = self.width**2 * (2 + 2 * kv_share) + mlp
        if self.model_family.decoder is not None:
            of_block += 8 * self.width**2 + mlp
        return int(self.layers * of_block) + self.vocabulary * self.width * (1 if self.tied else 2)

    def shrunk(self) -> Geometry:
        """A tiny geometry of the same family: 2 layers of width 64."""
        kv_heads = 2 if self.kv_heads else None
        return replace(self, layers=2, heads=4, width=64, feed_forward=128, kv_heads=kv_heads)

    def config(self, labels: Sequence[str] = ()) -> PretrainedConfig:
        """The transformers config of this geometry; with `labels`, that of a classifier, with one label a regressor.

        A model of images always has labels: without `labels`, LABEL_0 and so on, `vocabulary` of them.
        """
        from transformers import AutoConfig
        from transformers.models.auto import modeling_auto

        family = self.model_family
        fields: dict[str, Any] = {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            family.feed_forward_field: self.feed_forward,
        }
        if family.kind.images:
            labels = labels or [f"LABEL_{at}" for at in range(self.vocabulary)]
        else:
            fields["vocab_size"] = self.vocabulary
            fields["tie_word_embeddings"] = self.tied
            fields[family.max_length_field] = self.max_length
            if labels:
                head = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[self.family]
                fields |= {"architectures": [head], "pad_token_id": 0}
        if family.grouped:
            fields["num_key_value_heads"] = self.kv_heads or self.heads
        if labels:
            fields["id2label"] = dict(enumerate(labels))
            fields["label2id"] = {label: at for at, label in enumerate(labels)}
        return AutoConfig.for_model(self.family, **fields, **self.constants)


#: Further fields of the models' config.json, by the beginning of the geometry's name.
_CONSTANTS: dict[str, dict[str, Any]] = {
    "Llama-3": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "deberta-v3": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 256,
        "max_relative_positions": -1,
    },
    "flan-t5": {"d_kv": 64, "feed_forward_proj": "gated-gelu", "pad_token_id": 0, "decoder_start_token_id": 0},
}
#: The fields of each Geometry in their order; `kv_heads` and `tied` may be left out.
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("bert-base", "google-bert/bert-base-uncased", "bert", 12, 12, 768, 30522, 512, 3072),
    ("bert-large", "google-bert/bert-large-uncased", "bert", 24, 16, 1024, 30522, 512, 4096),
    ("deberta-v3-base", "microsoft/deberta-v3-base", "deberta-v2", 12, 12, 768, 128100, 512, 3072),
    ("roberta-base", "FacebookAI/roberta-base", "roberta", 12, 12, 768, 50265, 514, 3072),
    ("gpt2", "openai-community/gpt2", "gpt2", 12, 12, 768, 50257, 1024, 3072),
    ("gpt2-medium", "openai-community/gpt2-medium", "gpt2", 24, 16, 1024, 50257, 1024, 4096),
    ("gpt2-large", "openai-community/gpt2-large", "gpt2", 36, 20, 1280, 50257, 1024, 5120),
    ("gpt2-xl", "openai-community/gpt2-xl", "gpt2", 48, 25, 1600, 50257, 1024, 6400),
    ("Llama-3.2-1B", "meta-llama/Llama-3.2-1B", "llama", 16, 32, 2048, 128256, 131072, 8192, 8, True),
    ("Llama-3.2-3B", "meta-llama/Llama-3.2-3B", "llama", 28, 24, 3072, 128256, 131072, 8192, 8, True),
    ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "llama", 32, 32, 4096, 128256, 131072, 14336, 8, False),
    ("flan-t5-xl", "google/flan-t5-xl", "t5", 24, 32, 2048, 32128, 512, 5120, None, False),
    ("vit-base-patch16-224", "google/vit-base-patch16-224", "vit", 12, 12, 768, 1000, 197, 3072),
    ("Llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama", 32, 32, 4096, 32000, 4096, 11008, None, False),
)


def _constants_of(name: str) -> dict[str, Any]:
    """The further config fields of a geometry; {} if there are none."""
    for beginning, fields in _CONSTANTS.items():
        if name.startswith(beginning):
            return fields
    return {}


GEOMETRIES = {name: Geometry(name, *sizes, constants=_constants_of(name)) for name, *sizes in _TABLE}


def geometry_of(model_id: str) -> Geometry | None:
    """The geometry of the model ``random/<name>`` or of a known hub id, else None."""
    if model_id.startswith("random/"):
        return GEOMETRIES.get(model_id.removeprefix("random/"))
    return next((geometry for geometry in GEOMETRIES.values() if geometry.hub_id == model_id), None)
