"""Fixtures: folders of published data, if there are any, and small tokenizers of every kind, trained when asked for."""

import string

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaTokenizerFast,
)

from closelook.lrp_core.records import kinds

#: How Llama 3 splits a text: words with the space before them, digits in groups of three, a space before digits alone.
LLAMA_3 = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = (
    "The keys to the cabinet are on the table . Some teachers admired themselves , herself , himself . "
    "Context: Rollo was the leader of the Normans in the 10th century. Question: Who led the Normans? Answer: Rollo "
    "include includes has have the old bridge crosses cross résumé naïve"
)


def _trained(kind: str) -> PreTrainedTokenizerFast:
    corpus = [WORDS] * 3
    if kind == "wordpiece":  # BERT, uncased
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        letters = [f"{letter} x{letter}" for letter in string.ascii_lowercase]  # first and further in a word
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=specials)
        tokenizer.train_from_iterator([*corpus, *letters], trainer)
        ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", mask_token="[MASK]")
    if kind == "metaspace":  # Llama 2: words carry a leading ▁, also the first
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", *bytes_])
        tokenizer.train_from_iterator(corpus, trainer)
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")
    tokenizer = Tokenizer(models.BPE())
    split = {"bpe_bos": Regex(LLAMA_3), "spaced": Regex(r"\s")}.get(kind)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split is not None:
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(split, "isolated"), bytes_alone])
        corpus = [*corpus, "1998 1995 1066 " * 3]
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(corpus, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in specials]
    if kind == "bpe_bos":  # Llama 3
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=ends)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
    if kind == "roberta":  # a mask token that swallows the space before it
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
        fast.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True, special=True)})
        return fast
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")  # GPT-2 and "spaced": no template


KINDS = ("wordpiece", "roberta", "bpe", "bpe_bos", "metaspace")
MASKED = ("wordpiece", "roberta")


def kind_of(tokenizer: str) -> kinds.Kind:
    """The kind of the models that read with this one of KINDS."""
    return kinds.MASKED if tokenizer in MASKED else kinds.CAUSAL


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Of every kind, and one whose spaces are tokens of their own."""
    return {kind: _trained(kind) for kind in (*KINDS, "spaced")}


@pytest.fixture(scope="session")
def published(shared) -> dict[str, PreTrainedTokenizerBase]:
    """The vocabularies of BERT and GPT-2, and one of single characters."""
    return {
        "bert": AutoTokenizer.from_pretrained(shared / "models" / "bert-wordpiece"),
        "gpt2": AutoTokenizer.from_pretrained(shared / "models" / "gpt2-bpe", tokenizer_type="gpt2"),
        "letters": AutoTokenizer.from_pretrained(shared / "models" / "babyllama-char"),
    }


@pytest.fixture(scope="session")
def tiny_coref(tmp_path_factory):
    """A random fastcoref model with its tokenizer, in a directory."""
    folder = tmp_path_factory.mktemp("coref")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["Susan revealed herself ."], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    RobertaTokenizerFast(tokenizer_object=tokenizer, add_prefix_space=True).save_pretrained(folder)
    head = {"max_segment_len": 32, "max_span_length": 5, "top_lambda": 0.5, "ffnn_size": 16, "dropout_prob": 0.0}
    config = RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        coref_head=head,
    )
    from fastcoref.coref_models.modeling_fcoref import FCorefModel

    FCorefModel.all_tied_weights_keys = {}
    FCorefModel(config).save_pretrained(folder)
    return str(folder)
