"""Tokenizers of the demo models, trained on the demo language.

* BERT has lower-cased WordPiece with [CLS] and [SEP].
* Causal models have byte-level BPE, whose tokens include the space before a word; Llama's adds a BOS.
* T5 has BPE over words that all begin with the same mark, so that an answer is the same token in a passage and by
  itself; texts end with an EOS.

Vocabularies are small: some nouns are several tokens, but every target and foil is one token. Any other English text
can be read too, as many short tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from closelook.evaluation.benchmark.demo import lexicon

_BPE_SIZE = 1200
_SPLIT_FROM = 6  # WordPiece splits the plurals of nouns with at least this many letters
_WHOLE_COPIES = 500  # how often each target is in the tokenizer's training text: enough for it to become one token
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:;?!'\"-()"

Trained = tuple[Tokenizer, dict[str, str]]  # a tokenizer, and its special tokens by role


def build(
    name: str, texts: list[str], max_length: int, whole: Sequence[str] = (), size: int = _BPE_SIZE
) -> PreTrainedTokenizerFast:
    """The tokenizer of the demo's bert, gpt2, llama or t5, trained on `texts`; equal texts give equal tokenizers.

    The words `whole`, by default the targets, become one token each; BPE has `size` entries. Raises ValueError if
    one of these words would be several tokens.
    """
    whole = [f" {word}" for word in whole or lexicon.targets()]
    corpus = [*texts, *whole * _WHOLE_COPIES]
    if name == "bert":
        cut, specials = _wordpiece(corpus)
    elif name == "t5":
        cut, specials = _marked(corpus, size)
    else:
        cut, specials = _byte_level(name, corpus, size)
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if name != "bert":
        inputs.remove("token_type_ids")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=cut, model_max_length=max_length, model_input_names=inputs, **specials
    )
    broken = [word.strip() for word in whole if len(tokenizer.tokenize(word)) != 1]
    if broken:
        raise ValueError(f"{name}: the targets {', '.join(broken)} are several tokens; enlarge the vocabulary")
    return tokenizer


def _wordpiece(corpus: list[str]) -> Trained:
    """BERT's tokenizer: every word of the corpus is an entry, except plurals that are split."""
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = {word for text in corpus for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    plurals, suffixes = _split_plurals()
    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    pieces = [*_LETTERS, *(f"##{letter}" for letter in _LETTERS if letter.isalnum()), *suffixes]
    entries = dict.fromkeys([*specials.values(), *pieces, *sorted(words - plurals)])
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer, specials


def _split_plurals() -> tuple[set[str], list[str]]:
    """The regular plurals of long nouns, which WordPiece splits into the noun and a suffix; and these suffixes."""
    nouns = [*lexicon.ANIMATE, *lexicon.THINGS]
    split = [(noun, plural) for noun, plural in nouns if plural.startswith(noun) and len(noun) >= _SPLIT_FROM]
    return {plural for _, plural in split}, sorted({f"##{plural.removeprefix(noun)}" for noun, plural in split})


def _byte_level(name: str, corpus: list[str], size: int) -> Trained:
    """The tokenizer of GPT-2 or Llama: BPE on bytes, with `size` entries."""
    end = "<|endoftext|>" if name == "gpt2" else "</s>"
    begin = end if name == "gpt2" else "<s>"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, corpus, size, [begin, end], pre_tokenizers.ByteLevel.alphabet())
    byte_level = processors.ByteLevel(trim_offsets=True)
    if name == "llama":
        bos = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
        tokenizer.post_processor = processors.Sequence([byte_level, bos])
    else:
        tokenizer.post_processor = byte_level
    return tokenizer, {"bos_token": begin, "eos_token": end, "pad_token": end}


def _marked(corpus: list[str], size: int) -> Trained:
    """T5's tokenizer: BPE with `size` entries, on words that begin with a mark."""
    pad, end, unknown = "<pad>", "</s>", "<unk>"
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    _train(tokenizer, corpus, size, [pad, end, unknown], [*_LETTERS, *_LETTERS.upper()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return tokenizer, {"pad_token": pad, "eos_token": end, "unk_token": unknown}


def _train(tokenizer: Tokenizer, corpus: list[str], size: int, specials: list[str], alphabet: list[str]) -> None:
    """Trains the merges of BPE."""
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(dict.fromkeys(specials)),
        initial_alphabet=sorted(set(alphabet)),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
