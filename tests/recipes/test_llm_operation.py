"""Language models on the command line: bad input in one line, a signal in the middle, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_totals import audit
from running_processes import all_children, wait_until_gone
from waiting import patient

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.cli import main  # noqa: E402
from headway.runs.event_log import read_events  # noqa: E402
from headway.testing.tiny_models import save_tiny_model  # noqa: E402

PROMPTS = [{"prompt": f"Count to {n}.", "truth": str(n)} for n in range(40)]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("operation")
    save_tiny_model(root / "model")
    (root / "rewards.py").write_text("def score(prompt, response, truth, info):\n    return len(set(response))\n")
    (root / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    (root / "gsm8k").mkdir()
    row = json.dumps({"question": "1 + 1?", "answer": "It is 2.\n#### 2"})
    for name in ("train", "test"):
        (root / "gsm8k" / f"{name}.jsonl").write_text(f"{row}\n" * 20)
    return root


def words(folder: Path, recipe: str = "grpo", **more: Any) -> list[str]:
    """A tiny run."""
    values: dict[str, Any] = {
        "model": folder / "model",
        "max_tokens": 8,
        "max_prompt_tokens": 64,
        "tickets_per_batch": 2,
        "group_size": 3,
        "updates": 2,
        "max_lead": 1,
        "evaluate_every": 0,
        "device": "cpu",
    }
    if recipe == "grpo":
        values["task"] = f"jsonl:{folder / 'prompts.jsonl'}"
        values["task_options"] = f"{{reward: '{folder / 'rewards.py'}:score'}}"
    values |= more
    return ["run", recipe, *(word for name, value in values.items() for word in (f"--{name}", str(value)))]


# -- bad input --------------------------------------------------------------------------------------


def refused(words: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a wrong command ends with."""
    assert main([*words, "--runs", str(root / "runs"), "--quiet"]) in (1, 2)
    error = capsys.readouterr().err
    assert "Traceback" not in error
    lines = [line for line in error.splitlines() if line.startswith("headway: ")]
    assert len(lines) == 1, error
    return lines[0].removeprefix("headway: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{file} holds no samples"),
        ("\n\n", "{file} holds no samples"),
        ('{"prompt": "a", "truth": "b"}\n{"prompt": "c", \n', "{file}, line 2: not JSON: Expecting property name"),
        ('{"prompt": "a", "truth": "b"}\n\n[1, 2]\n', "{file}, line 3: a JSON object is allowed, received a list"),
        ('{"promt": "a", "truth": "b"}\n', "{file}, line 1: unknown field 'prompt'; did you mean 'promt'?"),
    ],
)
def test_a_broken_dataset_is_named_with_its_line_and_leaves_no_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    line = refused(words(folder, task=f"jsonl:{file}"), tmp_path, capsys)
    assert line.startswith(message.format(file=file))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "aritmetic"}, "unknown task 'aritmetic'; did you mean 'arithmetic'? allowed: "),
        ({"task": "jsonl"}, "task jsonl is written jsonl:FILE, received 'jsonl'"),
        ({"task": "jsonl:nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        ({"task_options": "{}"}, "task jsonl needs a reward function: reward=file.py:function or reward="),
        ({"task_options": "{rewrd: x}"}, "unknown option of task 'jsonl' 'rewrd'; did you mean 'reward'?"),
        ({"model": "/no/such/model"}, "model '/no/such/model' does not exist; allowed: 'smollm2', made:GAME, a folder"),
        ({"max_prompt_tokens": 8}, "tokens, more than max_prompt_tokens=8"),
        ({"max_prompt_tokens": 300}, "tokens do not fit the model's 128; lower max_prompt_tokens or max_tokens"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], message: str
) -> None:
    assert message in refused(words(folder, **values), tmp_path, capsys)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('x')", "failed on sample prompts/"),
        ("return float('nan')", "returned nan for sample prompts/"),
        ("return float('inf')", "returned inf for sample prompts/"),
        ("return 'good'", "returned 'good' (str) for sample prompts/"),
        ("return None", "returned None (NoneType) for sample prompts/"),
    ],
)
def test_a_reward_that_is_none_is_named_with_its_sample(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, message: str
) -> None:
    file = tmp_path / "bad_reward.py"
    file.write_text(f"def score(prompt, response, truth, info):\n    {body}\n")
    line = refused(words(folder, task_options=f"{{reward: '{file}:score'}}"), tmp_path, capsys)
    assert f"reward function {file}:score {message}" in line


@pytest.mark.parametrize("kind", ["absent", "without vllm", "no program"])
def test_a_vllm_that_is_not_there_is_one_line_and_leaves_no_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    python = tmp_path / "python"
    if kind != "absent":
        python.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n" if kind == "without vllm" else "nothing")
        python.chmod(0o755)
    command = [*words(folder, engine="vllm", vllm_python=python), "--runs", str(tmp_path / "runs"), "--quiet"]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    says = "is not a Python interpreter that can be run" if kind == "absent" else "engine 'vllm' is not installed for "
    assert line.startswith("headway: ") and says in line and str(python) in line
    assert not (tmp_path / "runs").exists()


# -- their file, as it is ---------------------------------------------------------------------------

THEIRS = """
async_training: {{staleness_threshold: 1, max_staleness_allowed: 2, max_queue_size: 100, min_batch_count: 1}}
actor_rollout_ref:
  model: {{path: {root}/model}}
  actor: {{ppo_mini_batch_size: 2, optim: {{lr: 1e-5}}}}
  rollout: {{name: hf, n: 3, response_length: 8, prompt_length: 110}}
algorithm: {{adv_estimator: grpo}}
data: {{train_files: {root}/gsm8k/train.jsonl, val_files: {root}/gsm8k/test.jsonl, train_batch_size: 4}}
trainer: {{total_epochs: 1, save_freq: 2, test_freq: -1, device: cpu, nccl_timeout: 600, logger: console}}
"""


def test_a_nested_file_is_run_as_it_is(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "theirs.yaml").write_text(THEIRS.format(root=folder))
    root = tmp_path / "runs"
    command = ["run", "gsm8k", "--config", str(tmp_path / "theirs.yaml"), "--runs", str(root), "--quiet"]
    assert main([*command, "actor_rollout_ref.rollout.n=2"]) == 0
    said = capsys.readouterr().out
    assert "trainer.nccl_timeout=600 has no effect: nothing waits for NCCL" in said
    assert "Train iterations: 5" in said  # 20 prompts, 4 a batch
    (run,) = root.iterdir()
    assert main(["resume", str(run), "--quiet"]) == 0  # its own file says the same


# -- signals ----------------------------------------------------------------------------------------


def wait_for_updates(run_root: Path, updates: int, is_alive: Callable[[], bool]) -> Path:
    """The folder of the run, once it has made so many."""
    deadline = time.monotonic() + patient(120)
    while time.monotonic() < deadline and is_alive():
        for run in run_root.glob("*/metrics.jsonl"):
            points = [json.loads(line) for line in run.read_text().splitlines()]
            if points and points[-1].get("run/updates", 0) >= updates:
                return run.parent
        time.sleep(0.05)
    raise AssertionError(f"no {updates} updates in {run_root}")


def goes_on(run: Path, number: signal.Signals, output: str) -> None:
    """What was said, and that the run can be resumed without losing or repeating a prompt."""
    assert f"{number.name}: saving and ending after this update" in output
    assert f"Stopped: interrupted by {number.name}" in output
    assert f"to go on: headway resume {run}" in output
    done = json.loads((run / "summary.json").read_text())["updates"]
    assert done >= 2
    assert main(["resume", str(run), "--updates", str(done + 3), "--quiet"]) == 0
    seen = audit(read_events(run / "events.jsonl"))
    assert sorted(seen.learned) == list(range(2 * (done + 3)))
    assert set(seen.learned.values()) == {1}


ENDLESS = {"updates": 100_000, "metrics_interval_s": 0, "max_lead": 2}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_saves_and_ends_and_the_run_goes_on_later(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    over = threading.Event()
    run: list[Path] = []

    def send() -> None:
        run.append(wait_for_updates(tmp_path, 2, lambda: not over.is_set()))
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert main([*words(folder, **ENDLESS), "--runs", str(tmp_path), "--quiet"]) == 0
    finally:
        over.set()
        sender.join()
    seen = capsys.readouterr()
    goes_on(run[0], number, seen.out + seen.err)


def interrupted_run(folder: Path, root: Path, number: int, runtime: str) -> tuple[Path, str]:
    """A run in a process of its own, which gets a signal after two updates."""
    options = words(folder, runtime=runtime, **ENDLESS)
    command = [sys.executable, "-m", "headway.cli", *options, "--runs", str(root), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            run = wait_for_updates(root, 2, lambda: process.poll() is None)
            family = all_children(process.pid)
            assert bool(family) == (runtime == "processes")
            process.send_signal(number)
            output, _ = process.communicate(timeout=patient(60))
            assert process.returncode == 0, output
        finally:
            process.kill()
    wait_until_gone(family)
    return run, output


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_a_signal_to_a_run_of_its_own_leaves_no_process_behind(folder: Path, tmp_path: Path, runtime: str) -> None:
    run, output = interrupted_run(folder, tmp_path, signal.SIGTERM, runtime)
    goes_on(run, signal.SIGTERM, output)
