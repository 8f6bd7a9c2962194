"""What runs in an engine's own process: one loop that answers messages between two steps of a model.

      socket ---> messages, all there are ---> one step, if anything runs and nothing is paused ---> socket
                     ask, drop, cut, apply, pause, resume        tokens, each with the version it was made by

One thread, so a message and a step never overlap. Weights are replaced by a message: every token of a step was made by
the weights that the last `apply` before it brought, and by no others. (vLLM's asynchronous scheduling would return the
tokens of the step before, so it is off.) When the socket ends, this process ends; when its parent dies, the kernel ends
it.

This file is also run as a script, in an environment where Headway is not installed: it imports vllm, torch and the
standard library, and speaks in plain values only, which any two versions of Python agree on. Workers of vLLM find the
class that takes weights under the name this file gives itself.

      parent -> host   start spec | ask key prompt seed sampling | drop keys | cut keys
                       apply number ... | pause number | resume number
      host -> parent   ready | broken why | sample key ... | failed key why | done number | refused number why | beat
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

MODULE = "headway_vllm_host"
if __name__ in ("__main__", "__mp_main__"):  # as a script, or in a worker that a script has spawned
    sys.modules[MODULE] = sys.modules[__name__]

HEADER = struct.Struct("<QB")  # bytes that follow, descriptors that came along
PICKLE = 4
Layout = list[tuple[str, str, tuple[int, ...], int]]
"""Name, dtype, shape and offset of each tensor in a file of weights."""
News = tuple[str, list[int], list[float], bool]
"""New tokens of one sample with their log-probabilities, and whether it has reached its longest length."""


# ---------------------------------------------------------------------------------------- messages


def pack(message: tuple[Any, ...], num_fds: int = 0) -> bytes:
    body = pickle.dumps(message, PICKLE)
    return HEADER.pack(len(body), num_fds) + body


class Inbox:
    """Messages with their descriptors, from a socket that somebody else writes to."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def take(self, wait: bool) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
        """All that have come; the first one is waited for if `wait`. Raises EOFError when the other side is gone."""
        while wait or self._has_come():
            wait = False
            header, fds, _, _ = socket.recv_fds(self._socket, HEADER.size, 1)
            if len(header) < HEADER.size:
                header += self._read(HEADER.size - len(header))
            size, _ = HEADER.unpack(header)
            yield pickle.loads(self._read(size)), fds

    def _has_come(self) -> bool:
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # the end counts as news, too
        except BlockingIOError:
            return False
        return True

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise EOFError("the other side is gone")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


# ---------------------------------------------------------------------------------------- the loop


class Stepper(Protocol):
    """A model that makes one step for all samples under way."""

    def add(self, key: str, prompt: Sequence[int], seed: int, sampling: dict[str, Any], salt: str) -> None: ...

    def step(self) -> Iterable[News]: ...

    def drop(self, keys: list[str]) -> None: ...

    def check(self, layout: Layout) -> None:
        """Refuse weights that cannot be taken, before anything is changed."""
        ...

    def load(self, path: str, layout: Layout) -> None: ...

    def forget(self, running_too: bool) -> None:
        """Let no later sample use what earlier weights left in the cache."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def close(self) -> None: ...


class _Sample:
    """One sample under way."""

    def __init__(self, prompt: Sequence[int], seed: int, sampling: dict[str, Any]) -> None:
        self.prompt = prompt
        self.seed = seed
        self.sampling = sampling
        self.tokens = array("i")
        self.log_probs = array("f")
        self.versions = array("i")


class Host:
    """Samples under way, and the version that makes their tokens."""

    def __init__(self, sock: socket.socket, stepper: Stepper, spec: dict[str, Any]) -> None:
        self._socket = sock
        self._stepper = stepper
        self._stops = frozenset(spec["stop_tokens"])
        self._recompute: bool = spec["recompute"]
        self._beat_s: float = spec["beat_s"]
        self._version: int = spec["version"]
        self._applied = 0  # how often; what a sample's cache is salted with
        self._samples: dict[str, _Sample] = {}
        self._is_paused = False
        self._tokens = self._steps = 0
        self._said_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self._is_paused or not self._samples

    def handle(self, message: tuple[Any, ...], fds: list[int]) -> None:
        kind, *rest = message
        try:
            getattr(self, f"_on_{kind}")(*rest, *fds)
        finally:
            for fd in fds:
                os.close(fd)

    def step(self) -> None:
        """One token, or a few, for all who have a place; what is whole goes out."""
        whole = []
        for key, tokens, log_probs, is_longest in self._stepper.step():
            if key not in self._samples:
                continue
            sample = self._samples[key]
            finish = self._extend(sample, tokens, log_probs)
            if finish or is_longest:
                self._send_sample(key, sample, finish or "length")
                if not is_longest:
                    whole.append(key)
        self._stepper.drop(whole)
        self._steps += 1
        if time.monotonic() - self._said_at > self._beat_s:
            self.say("beat")

    def say(self, kind: str, *rest: Any) -> None:
        self._said_at = time.monotonic()
        self._socket.sendall(pack((kind, (self._tokens, self._steps, len(self._samples)), *rest)))

    # -- messages -----------------------------------------------------------------------------------

    def _on_ask(self, key: str, prompt: Sequence[int], seed: int, sampling: dict[str, Any]) -> None:
        self._samples[key] = _Sample(prompt, seed, sampling)
        try:
            self._begin(key)
        except ValueError as error:  # this one cannot be; the others go on
            self._fail(key, _first_line(error))

    def _on_drop(self, keys: list[str]) -> None:
        here = [key for key in keys if self._samples.pop(key, None) is not None]
        self._stepper.drop(here)

    def _on_cut(self, keys: list[str]) -> None:
        """What there is of these samples is the samples; one without a token is lost."""
        here = [key for key in keys if key in self._samples]
        self._stepper.drop(here)
        for key in here:
            sample = self._samples[key]
            if sample.tokens:
                self._send_sample(key, sample, "deadline")
            else:
                self._fail(key, "")

    def _on_apply(self, number: int, version: int, layout: Layout, fd: int) -> None:
        try:
            self._stepper.check(layout)
        except ValueError as error:
            return self.say("refused", number, f"{type(error).__name__}: {error}")
        # By its name in /proc, so that a worker of vLLM in another process can open it as well.
        self._stepper.load(f"/proc/{os.getpid()}/fd/{fd}", layout)
        self._version = version
        self._applied += 1
        self._begin_again()
        self.say("done", number)
        return None

    def _on_pause(self, number: int) -> None:
        self._is_paused = True
        self.say("done", number)

    def _on_resume(self, number: int) -> None:
        self._is_paused = False
        self.say("done", number)

    # -- samples ------------------------------------------------------------------------------------

    def _begin(self, key: str) -> None:
        sample = self._samples[key]
        salt = f"{self._version}/{self._applied}"  # a version may come back, but not its cache: others have used it
        self._stepper.add(key, sample.prompt, sample.seed, sample.sampling, salt)

    def _begin_again(self) -> None:
        """Samples without a token read their prompts with the new weights; the others go on, or read again as well."""
        unread = [key for key, sample in self._samples.items() if not sample.tokens]
        self._stepper.drop(unread)
        self._stepper.forget(running_too=self._recompute)
        for key in unread:
            self._begin(key)

    def _extend(self, sample: _Sample, tokens: list[int], log_probs: list[float]) -> str:
        """Take tokens up to the end of the sample, if it is among them."""
        sampling = sample.sampling
        for token, log_prob in zip(tokens, log_probs, strict=True):
            sample.tokens.append(token)
            sample.log_probs.append(log_prob if sampling["temperature"] > 0 else 0.0)
            sample.versions.append(self._version)
            self._tokens += 1
            if len(sample.tokens) >= sampling["min_tokens"] and (token in self._stops or self._says_stop(sample)):
                return "stop"
        return ""

    def _says_stop(self, sample: _Sample) -> bool:
        stop = sample.sampling["stop"]
        if not stop:
            return False
        tail = self._stepper.decode(sample.tokens[-max(map(len, stop)) - 4 :].tolist())
        return any(text in tail for text in stop)

    def _fail(self, key: str, why: str) -> None:
        del self._samples[key]
        self.say("failed", key, why)

    def _send_sample(self, key: str, sample: _Sample, finish: str) -> None:
        del self._samples[key]
        parts = (sample.tokens.tobytes(), sample.log_probs.tobytes(), sample.versions.tobytes())
        self.say("sample", key, *parts, finish)


def serve(fd: int, build: Callable[[dict[str, Any]], Stepper]) -> None:
    """The whole life of the process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever coordinates the run gets those too, and decides
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    sock = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=sock.close)
    inbox = Inbox(sock)
    stepper: Stepper | None = None
    try:
        ((_, spec), _) = next(inbox.take(wait=True))
        try:
            stepper = build(spec)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it
            traceback.print_exc()
            sock.sendall(pack(("broken", (0, 0, 0), f"{type(error).__name__}: {_first_line(error)}")))
            return
        host = Host(sock, stepper, spec)
        host.say("ready")
        while True:
            for message, fds in inbox.take(wait=host.is_idle):
                host.handle(message, fds)
            if not host.is_idle:
                host.step()
    except (EOFError, ConnectionError):
        pass  # the parent is gone, or needs this process no longer
    except Exception as error:  # noqa: BLE001 - the parent replaces this process, and says why
        traceback.print_exc()
        sock.sendall(pack(("broken", (0, 0, 0), f"{type(error).__name__}: {_first_line(error)}")))
    finally:
        if stepper is not None:
            stepper.close()
        sys.stderr.flush()
        os._exit(0)  # threads of the libraries below have nothing to save


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "no message").splitlines()[0]


# ---------------------------------------------------------------------------------------- weights


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

    def headway_pack_tied_head(self) -> None:
        """On a CPU a layer keeps a packed copy of its weights. A head that shares the embedding's is not loaded by
        itself, so nothing would pack it anew."""
        worker: Any = self
        model = worker.get_model()
        head: Any = getattr(model, "lm_head", None)
        if hasattr(head, "cpu_linear") and getattr(model.config, "tie_word_embeddings", False):
            head.quant_method.process_weights_after_loading(head)


# ---------------------------------------------------------------------------------------- vLLM


class VLLMStepper:
    """vLLM's engine in this process, stepped by hand."""

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
        self._delta = RequestOutputKind.DELTA
        self._tokenizer: Any = None
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

    def step(self) -> Iterable[News]:
        for output in self._engine.step():
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
        if keys:
            self._engine.abort_request(keys)

    def check(self, layout: Layout) -> None:
        pass  # the parent has compared them with the model

    def load(self, path: str, layout: Layout) -> None:
        self._engine.collective_rpc("headway_load", args=(path, layout))

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
