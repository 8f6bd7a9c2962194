"""Tiny language models made on the spot, for tests that need a real model and milliseconds.

The tokenizer knows every byte and a few words of its own, so any text can be encoded; the weights are random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
KINDS = ("llama", "qwen2", "qwen3", "gpt2")


def tiny_tokenizer() -> Any:
    """Bytes as tokens, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0])
    fast.add_special_tokens({"additional_special_tokens": list(SPECIAL[1:])})
    fast.chat_template = TEMPLATE
    return fast


def tiny_model(kind: str = "llama", *, seed: int = 0, context: int = 128, width: int = 32, head_dim: int = 16) -> Any:
    """A causal language model with two layers and the tokenizer's vocabulary."""
    from transformers import AutoConfig, AutoModelForCausalLM

    vocabulary = len(tiny_tokenizer())
    common: dict[str, Any] = {"vocab_size": vocabulary, "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0}
    if kind == "gpt2":
        shape = {"n_embd": width, "n_layer": 2, "n_head": 2, "n_positions": context}
    else:
        shape = {
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": head_dim,
            "max_position_embeddings": context,
            "tie_word_embeddings": kind == "llama",
        }
    config = AutoConfig.for_model(kind, **common, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


def save_tiny_model(folder: Path, kind: str = "llama", *, seed: int = 0, head_dim: int = 16) -> Path:
    """A folder that can be named where a model is asked for."""
    tiny_model(kind, seed=seed, head_dim=head_dim).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
