"""Tiny language models made on the spot, for tests that need a real model and milliseconds.

The tokenizer knows every byte and a few words of its own, so any text can be encoded; the weights are random.

Each kind stands for a family of models: plain attention, a sliding window of WINDOW tokens in some layers or all,
logits that are scaled or capped, places that are counted by the model itself, and memory that is not attention.
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
PLAIN_KINDS = ("llama", "qwen2", "qwen3", "gpt2")
WINDOW = 8
_WINDOWED = {"sliding_window": WINDOW}
_OTHERS: dict[str, dict[str, Any]] = {
    "mistral": _WINDOWED,
    "gemma2": {**_WINDOWED, "query_pre_attn_scalar": 16, "final_logit_softcapping": 2.0},
    "gemma3_text": {**_WINDOWED, "query_pre_attn_scalar": 16},
    "gpt_oss": {
        **_WINDOWED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "phi3": _WINDOWED,
    "cohere": {},
    "granite": {"logits_scaling": 4.0},
    "opt": {"ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "init_std": 0.15},
    "bloom": {"n_layer": 2, "n_head": 2},
    "mpt": {"n_layers": 2, "n_heads": 2},
    "gptj": {"n_layer": 2, "n_head": 2, "rotary_dim": 8},
    "mamba": {"num_hidden_layers": 2, "state_size": 8},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        **{f"linear_num_{part}_heads": 2 for part in ("key", "value")},
        **{f"linear_{part}_head_dim": 16 for part in ("key", "value")},
        **{"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32},
        "shared_expert_intermediate_size": 32,
    },
}
ROWS_KINDS = ("bloom", "mpt", "mamba", "qwen3_next")
"""Those that cannot be read in trees."""
RECURRENT_KINDS = ("mamba", "qwen3_next")
"""Those whose memory is more than keys and values."""
KINDS = (*PLAIN_KINDS, *_OTHERS)


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
    shape: dict[str, Any]
    if kind == "gpt2":
        shape = {"n_embd": width, "n_layer": 2, "n_head": 2, "n_positions": context}
    elif kind in ("bloom", "mamba"):
        shape = {"hidden_size": width}
    elif kind == "mpt":
        shape = {"d_model": width, "max_seq_len": context}
    elif kind == "opt":
        shape = {"hidden_size": width, "word_embed_proj_dim": width, "max_position_embeddings": context}
    elif kind == "gptj":
        shape = {"n_embd": width, "n_positions": context}
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
    if kind in _OTHERS:  # more than their own 0.02: who sees what must make a difference
        shape |= {"initializer_range": 0.15, **_OTHERS[kind]}
    config = AutoConfig.for_model(kind, **common, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


def save_tiny_model(folder: Path, kind: str = "llama", *, seed: int = 0, head_dim: int = 16) -> Path:
    """A folder that can be named where a model is asked for."""
    tiny_model(kind, seed=seed, head_dim=head_dim).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_tiny_reward_model(folder: Path, *, seed: int = 0, context: int = 128) -> Path:
    """A folder with a Llama of two layers whose head is one number."""
    from transformers import AutoModelForSequenceClassification

    config = tiny_model("llama", context=context).config
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config)
        torch.nn.init.normal_(model.score.weight, std=1.0)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
