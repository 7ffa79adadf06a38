"""The shapes of the papers' models (Close Look, table 9, and later ones), for plans and dry runs without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lrp_core.families import FAMILIES, Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Geometry:
    """The sizes of a model: enough for its transformers config and for cost estimates."""

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
    constants: Mapping[str, Any] = field(default_factory=dict, hash=False, kw_only=True)  # further fields of the config

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
        """The transformers config of this geometry, with `labels` of a classifier, with one label of a regressor.

        Models of images always have labels: the rows of the head, as many as the vocabulary unless they are named.
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


#: Fields of config.json files beside the sizes, by the beginning of the names of their geometries.
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
#: The fields of `Geometry` in their order; those without `kv_heads` and `tied` have the defaults.
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
    return next((fields for beginning, fields in _CONSTANTS.items() if name.startswith(beginning)), {})


GEOMETRIES = {name: Geometry(name, *sizes, constants=_constants_of(name)) for name, *sizes in _TABLE}


def geometry_of(model_id: str, shape: str | None = None) -> Geometry | None:
    """The geometry of ``random/<name>`` or of a hub id with that geometry; of other models the one that `shape` names,
    if any.

    >>> geometry_of("openai-community/gpt2").layers
    12
    """
    if model_id.startswith("random/"):
        return GEOMETRIES.get(model_id.removeprefix("random/"))
    known = next((geometry for geometry in GEOMETRIES.values() if geometry.hub_id == model_id), None)
    return known if known is not None or shape is None else GEOMETRIES[shape]
