"""vLLM in a process of its own: the model that engine_host.py steps.

This file is run as a script, in an environment where Headway need not be installed: it imports vllm, torch and the
standard library, and of Headway only what needs nothing else, from the folder it lies in. Workers of vLLM find the
class that takes weights under the name this file gives itself.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "headway_vllm_host"
if __name__ in ("__main__", "__mp_main__"):  # as a script, or in a worker that a script has spawned
    sys.modules[MODULE] = sys.modules[__name__]
    sys.modules["headway"] = ModuleType("headway")  # its folder, and nothing that it imports
    sys.modules["headway"].__path__ = [str(Path(__file__).parents[2])]

from headway.llm.engine.engine_host import Layout, News, serve  # noqa: E402


def open_weights(path: str, layout: Layout) -> Iterator[tuple[str, Any]]:
    """Tensors over the memory that the trainer's side wrote: nothing is copied until a model takes it."""
    import torch

    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch knows no read-only memory
    for name, dtype, shape, offset in layout:
        count = 1
        for size in shape:
            count *= size
        yield name, torch.frombuffer(memory, dtype=getattr(torch, dtype), count=count, offset=offset).reshape(shape)


class TakesWeights:
    """Joined to vLLM's worker class: called in every worker, through collective_rpc."""

    def headway_load(self, path: str, layout: Layout) -> None:
        worker: Any = self
        worker.reload_weights(weights_iterator=open_weights(path, layout))
        self.headway_pack_tied_head()

    def headway_clean_cache(self) -> None:
        """Weights that were broken leave numbers in the cache that are none. Whoever gets such a place next multiplies
        what stands behind its own tokens by zero, which does not make them go away."""
        worker: Any = self
        for cache in worker.model_runner.kv_caches:
            cache.nan_to_num_(nan=0.0)

    def headway_pack_tied_head(self) -> None:
        """On a CPU a layer keeps a packed copy of its weights. A head that shares the embedding's is not loaded by
        itself, so nothing would pack it anew."""
        worker: Any = self
        model = worker.get_model()
        head: Any = getattr(model, "lm_head", None)
        if hasattr(head, "cpu_linear") and getattr(model.config, "tie_word_embeddings", False):
            head.quant_method.process_weights_after_loading(head)


class VLLMStepper:
    """vLLM's engine in this process, stepped by hand."""

    _is_broken = False  # the weights have said what is not a number

    def __init__(self, spec: dict[str, Any]) -> None:
        import vllm
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = vllm.EngineArgs(
            **spec["arguments"],
            worker_extension_cls=f"{MODULE}.{TakesWeights.__name__}",
            async_scheduling=False,
            disable_log_stats=True,
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._params = vllm.SamplingParams
        self._delta, self._final = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
        self._tokenizer: Any = None
        self._known: dict[str, tuple[list[int], list[int], str]] = {}  # prompt, continuation and salt, by the key
        self._warm_up()

    def add(self, key: str, prompt: Sequence[int], seed: int, sampling: dict[str, Any], salt: str) -> None:
        params = self._params(
            temperature=sampling["temperature"],
            top_k=sampling["top_k"],
            top_p=sampling["top_p"],
            max_tokens=sampling["max_tokens"],
            seed=seed,
            logprobs=0,  # of the token that was drawn, and of no other
            ignore_eos=True,  # the loop above judges where a sample ends: vLLM would forbid a stop token to come early
            detokenize=False,
            output_kind=self._delta,
        )
        self._engine.add_request(key, {"type": "token", "prompt_token_ids": list(prompt), "cache_salt": salt}, params)

    def add_known(self, key: str, prompt: Sequence[int], continuation: Sequence[int], salt: str) -> None:
        self._known[key] = list(prompt), list(continuation), salt
        self._read_known(key, from_cache=True)

    def _read_known(self, key: str, *, from_cache: bool) -> None:
        """vLLM says the log-probabilities of a prompt's tokens, but for those of a prefix that it has in its cache:
        of its own accord it reads no cache then. Here only the prompt of many continuations is to come from it."""
        prompt, continuation, salt = self._known[key]
        params = self._params(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,  # of the token that is there, and of no other
            skip_reading_prefix_cache=not from_cache,
            detokenize=False,
            output_kind=self._final,
        )
        text = {"type": "token", "prompt_token_ids": [*prompt, *continuation], "cache_salt": salt}
        self._engine.add_request(key, text, params)

    def _known_news(self, output: Any) -> Iterable[News]:
        """Nothing yet where the cache held more than the prompt: the same continuation was asked for before."""
        prompt, continuation, _ = self._known[output.request_id]
        cached = output.num_cached_tokens
        if cached is None or cached >= len(prompt):
            # Its first token is predicted by the prompt's last one, which was not computed.
            self._read_known(output.request_id, from_cache=False)
            return
        del self._known[output.request_id]
        steps = output.prompt_logprobs[-len(continuation) :]  # what came from the cache may be left out, or stale
        log_probs = [step[token].logprob for token, step in zip(continuation, steps, strict=True)]
        yield output.request_id, continuation, log_probs, True

    def step(self) -> Iterable[News]:
        for output in self._engine.step():
            for news in self._known_news(output) if output.request_id in self._known else self._drawn_news(output):
                self._is_broken |= any(map(math.isnan, news[2]))
                yield news

    def _drawn_news(self, output: Any) -> Iterable[News]:
        (reply,) = output.outputs
        tokens = list(reply.token_ids)
        log_probs = [step[token].logprob for token, step in zip(tokens, reply.logprobs or (), strict=True)]
        yield output.request_id, tokens, log_probs, output.finished

    def _warm_up(self) -> None:
        """What is compiled or captured with the first sample belongs to the start, not to the first request."""
        sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_tokens": 2}
        self.add("warm-up", [0], 0, sampling, "warm-up")
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def drop(self, keys: list[str]) -> None:
        for key in keys:
            self._known.pop(key, None)
        if keys:
            self._engine.abort_request(keys)

    def check(self, layout: Layout) -> None:
        pass  # the parent has compared them with the model

    def load(self, path: str, layout: Layout) -> None:
        self._engine.collective_rpc("headway_load", args=(path, layout))
        if self._is_broken:
            self._engine.collective_rpc("headway_clean_cache")
            self._is_broken = False

    def forget(self, running_too: bool) -> None:
        # With samples under way the cache cannot be emptied; those that begin from now on have another salt.
        if running_too or not self._engine.has_unfinished_requests():
            self._engine.reset_prefix_cache(running_too)

    def decode(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is None:
            self._tokenizer = self._engine.get_tokenizer()
        return str(self._tokenizer.decode(list(tokens)))

    def close(self) -> None:
        self._engine.engine_core.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]), VLLMStepper)
