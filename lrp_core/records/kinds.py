"""Kinds of models: loading, readout position, and possible changes of their input. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: Ways to remove a token: zero its embedding, put the mask token in its place, delete it, or put a random token in its
#: place. Ways to remove a patch of an image: zero its normalised pixels (ZERO), or make it black, which is zero before
#: normalisation (BLACK).
ZERO, MASK, DELETE, RESAMPLE, BLACK = "zero", "mask", "delete", "resample", "black"


@dataclass(frozen=True)
class Kind:
    """Properties that families of one kind have in common."""

    name: str
    title: str
    auto: str  # the class of transformers that loads such a model
    classes: str  # transformers' table of the models' own classes, by family
    causal: bool  # a token attends only to itself and to earlier tokens
    slot: bool  # the prediction is read at a mask token inside the text, else after the text
    perturbations: tuple[str, ...]  # ways to remove a token
    labels: bool = False  # it predicts a label, or a score if it has a single label; else it predicts a token
    reads: Literal["anywhere", "first", "last"] = "anywhere"  # the token of a sample that the head reads
    images: bool = False  # its input is pixels; its tokens are the class token, then one for each patch
    decoder: bool = False  # an encoder reads the text, and a decoder predicts the next token of its own text
    with_labels: Kind | None = None  # the kind of the same models with a classifier or a regressor on top


_LABELS: dict[str, Any] = {
    "auto": "AutoModelForSequenceClassification",
    "classes": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "slot": False,
    "labels": True,
}
CLASSIFIER = Kind(
    "classifier",
    "classifier or regressor on an encoder",
    causal=False,
    perturbations=(ZERO, MASK, RESAMPLE),
    reads="first",
    **_LABELS,
)
CAUSAL_CLASSIFIER = Kind(
    "causal_classifier",
    "classifier or regressor on a causal model",
    causal=True,
    perturbations=(ZERO, DELETE, RESAMPLE),
    reads="last",
    **_LABELS,
)
MASKED = Kind(
    "masked",
    "masked language model",
    auto="AutoModelForMaskedLM",
    classes="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    causal=False,
    slot=True,
    perturbations=(ZERO, MASK, RESAMPLE),
    with_labels=CLASSIFIER,
)
CAUSAL = Kind(
    "causal",
    "causal language model",
    auto="AutoModelForCausalLM",
    classes="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    causal=True,
    slot=False,
    perturbations=(ZERO, DELETE, RESAMPLE),
    with_labels=CAUSAL_CLASSIFIER,
)
IMAGE_CLASSIFIER = Kind(
    "image_classifier",
    "classifier of images",
    auto="AutoModelForImageClassification",
    classes="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    causal=False,
    slot=False,
    perturbations=(ZERO, BLACK),
    labels=True,
    reads="first",
    images=True,
)
ENCODER_DECODER = Kind(
    "encoder_decoder",
    "encoder-decoder",
    auto="AutoModelForSeq2SeqLM",
    classes="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    causal=False,
    slot=False,
    perturbations=(ZERO, DELETE, RESAMPLE),
    decoder=True,
)
KINDS = {kind.name: kind for kind in (MASKED, CAUSAL, CLASSIFIER, CAUSAL_CLASSIFIER, ENCODER_DECODER, IMAGE_CLASSIFIER)}
