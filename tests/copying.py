"""A GPT-2 whose weights are set by hand so that it copies: after `ask KEY` it says what follows KEY in the prompt.

The stream is four parts: which token stands at a position, the position, the token before, and the token to say. The
first layer attends to the position before and writes its token; the second attends to the token whose predecessor is
the current token, and copies that token into what is said.
"""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS, POSITIONS = 64, 48
WIDTH = 3 * WORDS + POSITIONS
_TOKEN, _POSITION = slice(0, WORDS), slice(WORDS, WORDS + POSITIONS)
_BEFORE, _SAID = slice(_POSITION.stop, _POSITION.stop + WORDS), slice(_POSITION.stop + WORDS, WIDTH)
_SHARP = 25.0  # score of the token that is attended to
_CERTAIN = 1.2  # of logits, beside the last norm


def copying_model(directory: Path) -> Path:
    """A directory with the weights, their config and a tokenizer of white space."""
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=2,
        n_head=1,
        n_inner=8,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        core = model.transformer
        core.wte.weight[:, _TOKEN] = torch.eye(WORDS)
        core.wpe.weight[:, _POSITION] = torch.eye(POSITIONS)
        first, second = (block.attn for block in core.h)
        _attend(first, _POSITION, torch.eye(POSITIONS).roll(-1, dims=1), _POSITION, _BEFORE, hot=2)
        _attend(second, _TOKEN, torch.eye(WORDS), _BEFORE, _SAID, hot=3)
        model.lm_head.weight[:, _SAID] = _CERTAIN * torch.eye(WORDS)
    model.save_pretrained(directory)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=False).save_pretrained(directory)
    return directory


def _attend(attention, asks, shift, answers, writes, hot):
    """Queries of `asks`, through `shift`, meet keys of `answers`; the token is written into `writes`.

    `hot` parts of the stream are 1 where this layer reads: a norm makes of each about (width / hot) ** 0.5.
    """
    height = (WIDTH / hot) ** 0.5
    query, key, value = (attention.c_attn.weight[:, at * WIDTH : (at + 1) * WIDTH] for at in range(3))
    size = len(shift)
    query[asks, :size] = shift * _SHARP * WIDTH**0.5 / height**2
    key[answers, :size] = torch.eye(size)
    value[_TOKEN, writes] = torch.eye(WORDS) / height
    attention.c_proj.weight.copy_(torch.eye(WIDTH))


def copying_rows(passages=(4, 10, 9, 10), seed=0):
    """Prompts of passages KEY WORD WORD, a question for one of the keys, and what follows it, all of distinct words."""
    draw = random.Random(seed)
    rows = []
    for number in passages:
        words = [f"w{word}" for word in draw.sample(range(2, WORDS), 3 * number)]
        facts = [words[at : at + 3] for at in range(0, len(words), 3)]
        asked = draw.randrange(number)
        sources = [" ".join(fact) for fact in facts]
        prompt = f"w0 {' '.join(sources)} w1 {facts[asked][0]}"
        answer = " ".join(facts[asked][1:])
        rows.append({"prompt": prompt, "answer": answer, "sources": sources, "evidence": sources[asked]})
    return rows
