#!/usr/bin/env python3
"""Trains lily-nano's byte-level BPE and writes its tokenizer files.

  python tokenizer.py --out OUT [--chats 60000]

The text is what the generators make. Pattern, normal form and control tokens are those of the model
family's tokenizer: letters with their marks form words, every digit stands alone.
"""

import argparse
import json
import random
import shutil
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import chat
from config import CONTROL_TOKENS, NANO, VISIBLE_TOKENS
from data import mix

HERE = Path(__file__).resolve().parent
TEMPLATE = HERE.parents[1] / "crates/lily-text/src/synth/chat_template.jinja"
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts(count, seed):
    """Conversations without their control tokens."""
    rng = random.Random(seed)
    for _ in range(count):
        text = "".join(t for t, _ in chat.pieces(mix.draw_short(rng)))
        for token in CONTROL_TOKENS:
            text = text.replace(token, "\n")
        yield text


def train(count, seed=7, vocab=NANO.vocab_size):
    """A tokenizer with `vocab` ids, the control tokens last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    level = dict(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(**level)]
    )
    tokenizer.decoder = decoders.ByteLevel(**level)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False, **level)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(CONTROL_TOKENS),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(count, seed), trainer)
    tokenizer.add_tokens([AddedToken(t, special=t not in VISIBLE_TOKENS, normalized=False) for t in CONTROL_TOKENS])
    return tokenizer


def save(tokenizer, out):
    """The four files beside the weights."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    ids = {t: tokenizer.token_to_id(t) for t in CONTROL_TOKENS}
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "add_prefix_space": False,
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "unk_token": None,
                "model_max_length": NANO.max_position_embeddings,
                "clean_up_tokenization_spaces": False,
            },
            indent=1,
        )
        + "\n"
    )
    (out / "generation_config.json").write_text(
        json.dumps(
            {
                "bos_token_id": ids["<|endoftext|>"],
                "do_sample": False,
                "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
                "pad_token_id": ids["<|endoftext|>"],
            },
            indent=1,
        )
        + "\n"
    )
    shutil.copy(TEMPLATE, out / "chat_template.jinja")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=HERE / "tokenizer")
    arguments.add_argument("--chats", type=int, default=60000)
    a = arguments.parse_args()
    tokenizer = train(a.chats)
    print(tokenizer.get_vocab_size(), "ids")
    save(tokenizer, a.out)


if __name__ == "__main__":
    main()
