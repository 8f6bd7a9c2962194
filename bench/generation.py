"""Tokens per second of the in-process engine next to transformers' `generate`, same model, prompts and lengths.

    python bench/generation.py [--batches 64,256] [--prompt 128] [--new 256] [--repeats 3] [--model smollm2]
    python bench/generation.py --engine vllm --model smollm2 [--vllm-python PYTHON]    # vLLM as a third, same run

Without --model: random weights in the shape of SmolLM2-135M, which take as long as trained ones. Every sample runs
to its full length. Peer and engines alternate in one run; the table gives medians and the spread. Before anything is
timed, each engine's log-probabilities are compared with a plain forward pass over what it generated.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from figures import spread

from headway.llm.engine.protocol_engine import Engine, Request, Sampling
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder


class Words:
    """Stands for a tokenizer where no text is needed."""

    eos_token_id = None

    def decode(self, tokens: list[int]) -> str:
        return ""


def load(name: str | None, device: str, dtype: torch.dtype, *, layers: int = 30) -> Any:
    if name is not None:
        from headway.llm.model.loading_models import load_model

        return load_model(name, dtype=dtype, device=device)
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        rope_theta=100000.0,
    )
    return LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model")
    parser.add_argument("--burst", type=int, default=16)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--engine", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--vllm-python")
    parser.add_argument("--threads", type=int, help="of torch, for every one of them")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(options.model, device, torch.bfloat16 if device == "cuda" else torch.float32)
    sizes = [int(text) for text in options.batches.split(",")]
    decoder = build_decoder(model, rows=max(sizes), context=options.prompt + options.new, burst=options.burst)
    engine = TransformersEngine(decoder, Words(), ())
    prompts = torch.randint(5, 40000, (max(sizes), options.prompt), generator=torch.Generator().manual_seed(0))
    engines: dict[str, Engine] = {"engine": engine}
    if options.engine == "vllm":
        engines["vllm"] = vllm(options, max(sizes), device)
    for name, one in engines.items():
        check(name, model, one, prompts[:8], min(32, options.new), device)
    print(f"{'batch':>6} {'generate':>22} " + " ".join(f"{name:>24} {'ratio':>14}" for name in engines))
    for size in sizes:
        measured: dict[str, list[float]] = {"peer": [], **{name: [] for name in engines}}
        for one in engines.values():
            ours(one, prompts[:size], options.new)  # graphs are captured, kernels compiled
        for _ in range(options.repeats):
            if not options.no_peer:
                measured["peer"].append(size * options.new / theirs(model, prompts[:size].to(device), options.new))
            for name, one in engines.items():
                measured[name].append(size * options.new / ours(one, prompts[:size], options.new))
        columns = []
        for name in engines:
            ratios = [b / a for a, b in zip(measured["peer"], measured[name], strict=False)]
            columns.append(f"{spread(measured[name]):>24} {spread(ratios, 1):>14}")
        print(f"{size:>6} {spread(measured['peer']):>22} " + " ".join(columns), flush=True)


def vllm(options: argparse.Namespace, rows: int, device: str) -> Engine:
    if options.model is None:
        raise SystemExit("vLLM loads its model by itself: name one with --model")
    from headway.llm.engine.vllm_engine import VLLMEngine

    return VLLMEngine(
        options.model,
        Sampling(),
        context=options.prompt + options.new,
        rows=rows,
        device=device,
        threads=options.threads or torch.get_num_threads(),
        python=options.vllm_python,
        deadline_s=600,
        start_s=600,
    )


def ours(engine: Engine, prompts: torch.Tensor, new: int) -> float:
    sampling = Sampling(max_tokens=new, min_tokens=new)
    requests = [Request(str(n), tuple(row), 1, n, sampling) for n, row in enumerate(prompts.tolist())]
    began = time.perf_counter()
    samples = engine.generate_all(requests)
    seconds = time.perf_counter() - began
    assert all(len(sample.tokens) == new for group in samples for sample in group)
    return seconds


def theirs(model: Any, prompts: torch.Tensor, new: int) -> float:
    began = time.perf_counter()
    out = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        max_new_tokens=new,
        min_new_tokens=new,
        top_k=0,
        pad_token_id=0,
        eos_token_id=None,
    )
    if out.is_cuda:
        torch.cuda.synchronize()
    assert out.shape[1] == prompts.shape[1] + new
    return time.perf_counter() - began


@torch.no_grad()
def check(name: str, model: Any, engine: Engine, prompts: torch.Tensor, new: int, device: str) -> None:
    requests = [Request(str(n), tuple(row), 1, n, Sampling(max_tokens=new)) for n, row in enumerate(prompts.tolist())]
    worst = 0.0
    for request, (sample,) in zip(requests, engine.generate_all(requests), strict=True):
        whole = torch.tensor([[*request.prompt, *sample.tokens.tolist()]], device=device)
        logs = torch.log_softmax(model(whole).logits[0].float(), -1)[len(request.prompt) - 1 : -1]
        chosen = logs.gather(1, whole[0, len(request.prompt) :, None])[:, 0].cpu()
        worst = max(worst, float((chosen - torch.from_numpy(sample.log_probs)).abs().max()))
    dtype = next(model.parameters()).dtype
    print(f"{name}: log-probabilities differ from a forward pass by at most {worst:.2g} ({dtype})")


if __name__ == "__main__":
    main()
