"""Tiny classifiers and regressors, files of their tasks, and runs of them."""

from functools import cache

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from closelook.evaluation.schema import CURVES, VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.products.curves import curves_of as curve_nodes
from closelook.jobs.store import Ledger
from closelook.lrp_core import load_model
from tests.tiny import tiny_classifier

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmn"]
METHODS = ["gradient_l2", "normxlogit", "random"]  # not gradient x input: rounding, in BERT
SST2 = [
    ("a b c d e f g h i j k l", 1),
    ("b d f", 0),
    ("k k a c", 1),
    ("l m n a", 0),
    ("c d e f g h", 1),
]
STS = [("a b c", "c d", 1.5), ("d", "d e f", 4.0), ("g h i j", "k", 0.25), ("a c e", "b", 3.0)]


def save(folder, family="bert", labels=("NEGATIVE", "Positive"), separator=True):
    """A classifier with a whitespace tokenizer, a regressor where it has one label."""
    view = tiny_classifier(family, len(labels), vocab_size=len(WORDS))
    if len(labels) > 1:
        view.model.config.id2label = dict(enumerate(labels))
        view.model.config.label2id = {label: at for at, label in enumerate(labels)}
    view.model.float().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if separator:
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    specials = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_input_names=names, **specials).save_pretrained(folder)
    return folder


def write_folders(root):
    """Published files of two tasks, a classifier, a causal one and a regressor, in `root`."""
    lines = "".join(f"{text}\t{label}\n" for text, label in SST2)
    (root / "sst2.tsv").write_text("sentence\tlabel\n" + lines)
    (root / "sts.csv").write_text("".join(f"{first},{second},{score}\n" for first, second, score in STS))
    save(root / "sentiment")
    save(root / "causal", "gpt2", separator=False)
    save(root / "score", labels=("score",))
    return root


def run_of(folders, root, models=("sentiment", "score"), **changes) -> RunConfig:
    settings = {
        "name": "labels",
        "root": str(root),
        "tasks": {
            "sst2": {"source": "sst2", "path": str(folders / "sst2.tsv")},
            "stsb": {"source": "stsb", "path": str(folders / "sts.csv")},
        },
        "models": [
            {"name": model, "id": str(folders / model)} if isinstance(model, str) else model for model in models
        ],
        "methods": METHODS,
        "explanations": ["target"],
        "embeddings": ["full"],
        "perturb": {},
        "report": {"samples": 2, "resamples": 20},
    }
    return RunConfig.load(settings | changes)


def views_of(config, store, task):
    model = next(model for model in make_plan(config, store).models if task in model.inputs)
    return model, store.read(model.inputs[task].folder, VIEW).to_pylist()


def curves_of(config, store, task):
    model, _ = views_of(config, store, task)
    cells = [node.artifact for node in curve_nodes(config, config.perturb, model) if node.artifact.task == task]
    return {cell.method: Ledger(store).read(cell, CURVES).to_pylist() for cell in cells}


loaded = cache(load_model)


def logits(folder, ids, types=None):
    view = loaded(folder)
    types = None if types is None else torch.tensor([types])
    return view.model(input_ids=torch.tensor([ids]), token_type_ids=types).logits[0].double().numpy()
