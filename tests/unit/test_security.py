"""What a stranger tries: another name for this machine, no token, a pickle. docs/security.md says what holds."""

from __future__ import annotations

import errno
import http.client
import json
import os
import pickle
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from waiting import patient, wait_until

from headway.cli import main
from headway.cli.options_output import say
from headway.core.text_messages import to_stderr
from headway.runs.folder import RunFolder
from headway.runs.local_server_strangers import MOST_STRANGERS, Strangers
from headway.runs.prometheus_sink import PrometheusSink
from headway.runs.sinks_metric_sinks import build_sinks, run_token

WAIT_S = patient(10)


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


@contextmanager
def prometheus(**options: str) -> Iterator[PrometheusSink]:
    sink = PrometheusSink(0, **options)
    try:
        yield sink
    finally:
        sink.close()


def ask(port: int, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_metrics_on_this_machine_are_not_for_a_page_that_calls_it_by_another_name() -> None:
    with prometheus(run="secret-run") as sink:
        for host in ("localhost", f"127.0.0.1:{sink.port}", "[::1]:9"):
            assert ask(sink.port, Host=host)[0] == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9100", " "):
            status, body = ask(sink.port, Host=host)
            assert status == 421 and b"secret-run" not in body, host


def test_metrics_for_other_machines_need_the_runs_token() -> None:
    with prometheus(host="0.0.0.0", token="right") as sink:
        assert ask(sink.port, Host="node7:9100", Authorization="Bearer right")[0] == 200
        for wrong in ("", "Bearer", "Bearer ", "Bearer wrong", "Bearer right ", "Basic right", "right", "Bearer rïght"):
            assert ask(sink.port, Authorization=wrong.strip())[0] == 401 or wrong == "Bearer right ", wrong
        assert ask(sink.port)[0] == 401
    with pytest.raises(ValueError, match=r"^prometheus_host='0\.0\.0\.0' can be reached from elsewhere"):
        PrometheusSink(0, host="0.0.0.0")


def test_the_token_of_a_run_is_its_owners_alone_and_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_TOKEN", raising=False)
    folder = RunFolder(tmp_path)
    token = run_token(folder)
    assert len(token) > 30 and run_token(folder) == token
    assert stat.S_IMODE(folder.token.stat().st_mode) == 0o600
    [sink] = build_sinks(folder, tensorboard=False, prometheus_port=0, prometheus_host="0.0.0.0")
    assert isinstance(sink, PrometheusSink)
    try:
        assert ask(sink.port, Authorization=f"Bearer {token}")[0] == 200
        assert ask(sink.port)[0] == 401
    finally:
        sink.close()
    monkeypatch.setenv("HEADWAY_TOKEN", "from the environment")
    assert run_token(folder) == "from the environment"


def test_a_run_on_this_machine_alone_writes_no_token(tmp_path: Path) -> None:
    [sink] = build_sinks(RunFolder(tmp_path), tensorboard=False, prometheus_port=0)
    sink.close()
    assert not (tmp_path / "token").exists()


def say_until_it_hangs_up(port: int, message: bytes) -> None:
    """Says `message` to a listener, which may hang up at any moment: in the middle of it, or before all is said."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as stranger:
        stranger.settimeout(WAIT_S)
        try:
            stranger.sendall(message)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        except OSError as gone:
            if gone.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise


def test_a_pickle_from_a_stranger_is_not_opened_by_anything_that_listens(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from headway.llm.weights.source_weight_source import WeightSource

    trap = pickle.dumps(Trap(tmp_path / "opened"))
    source = WeightSource()
    handle = source.offer({"w": torch.ones(3)})
    try:
        with prometheus() as sink:
            for port in (handle.source.port, sink.port):
                say_until_it_hangs_up(port, len(trap).to_bytes(4, "little") + trap + bytes(4096))
            assert ask(sink.port)[0] == 200
        assert handle.take()["w"].tolist() == [1, 1, 1], "it still serves those who know the token"
    finally:
        source.close()
    assert os.listdir(tmp_path) == []


@contextmanager
def crowd(port: int, many: int) -> Iterator[list[socket.socket]]:
    """Strangers who connect and say nothing."""
    with ExitStack() as closing:
        yield [closing.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S)) for _ in range(many)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def is_hung_up_on(stranger: socket.socket) -> bool:
    """Whatever was said to it before."""
    stranger.settimeout(WAIT_S)
    try:
        while stranger.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_strangers_who_connect_and_say_nothing_use_up_neither_descriptors_nor_threads(
    capfd: pytest.CaptureFixture[str],
) -> None:
    many = 5 * MOST_STRANGERS
    before, threads = descriptors(), threading.active_count()
    with prometheus() as sink, crowd(sink.port, many) as strangers:
        assert ask(sink.port)[0] == 200, "who means well is let in all the same"
        wait_until(lambda: descriptors() - before - many <= MOST_STRANGERS + 5, what="the oldest to be hung up on")
        wait_until(lambda: threading.active_count() - threads <= MOST_STRANGERS + 5, what="their threads to end")
        assert all(map(is_hung_up_on, strangers[: many - MOST_STRANGERS - 5]))
    assert capfd.readouterr().err == "", "nor is any of it worth a line"


def test_who_has_shown_who_they_are_is_not_hung_up_on() -> None:
    strangers = Strangers(2)
    with ExitStack() as closing:
        pairs = [[closing.enter_context(end) for end in socket.socketpair()] for _ in range(4)]
        known, *others = (ours for ours, _ in pairs)
        strangers.welcome(known)
        strangers.remove(known)
        for other in others:
            strangers.welcome(other)
        theirs = [end for _, end in pairs]
        assert is_hung_up_on(theirs[1]), "the oldest of three"
        for end in (theirs[0], *theirs[2:]):
            end.setblocking(False)
            with pytest.raises(BlockingIOError):
                end.recv(1)


SERVES = """
import resource, sys
import torch
from headway.llm.weights.source_weight_source import WeightSource
source = WeightSource()
handle = source.offer({"w": torch.ones(3)})
used = len(__import__("os").listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, used + 8))
print(handle.source.port, flush=True)
sys.stdin.readline()
print(handle.take()["w"].tolist(), flush=True)
source.close()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_weights_can_be_had_again_after_strangers_had_taken_every_descriptor() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", SERVES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdin is not None and serving.stdout is not None
        try:
            with crowd(int(serving.stdout.readline()), 20):
                taken = Path(f"/proc/{serving.pid}/fd")
                wait_until(lambda: len(os.listdir(taken)) >= limit_of(serving.pid), what="no descriptor to be left")
            wait_until(lambda: len(os.listdir(taken)) < limit_of(serving.pid) - 4, what="some to be free again")
            serving.stdin.write("\n")
            serving.stdin.flush()
            assert serving.stdout.readline() == "[1.0, 1.0, 1.0]\n"
        finally:
            serving.kill()


def limit_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))


def test_engines_find_the_learner_through_a_crowd_of_strangers() -> None:
    torch = pytest.importorskip("torch")
    from headway.llm.weights.source_weight_source import WeightSource

    source = WeightSource()
    handle = source.offer({"w": torch.ones(3)})
    try:
        with crowd(handle.source.port, 4 * MOST_STRANGERS) as strangers:
            assert handle.take()["w"].tolist() == [1, 1, 1]
            assert all(map(is_hung_up_on, strangers[:MOST_STRANGERS]))
            assert handle.take()["w"].tolist() == [1, 1, 1]
    finally:
        source.close()


# -- the folder of a stranger -----------------------------------------------------------------------

DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000
STEERS = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    at_once = ["--collect_ms", "0", "--train_ms", "0", "--updates", "3", "--evaluate_every", "0", "--report", "false"]
    assert main(["run", "functions", *at_once, "--runs", str(folder), "--tensorboard", "false", "--quiet"]) == 0
    return next(folder.iterdir())


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("command", ["status", "doctor", "report", "trace"])
@pytest.mark.parametrize("file", ["summary.json", "environment.json", "events.jsonl"])
def test_a_file_that_is_nested_without_end_is_refused_in_a_line(
    folder: Path, file: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / file).write_text(f"{DEEP}\n")
    assert main([command, str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("headway: ") and str(folder / file) in said
    assert said.count("\n") == 1 and len(said) < 500


@pytest.mark.parametrize("command", ["status", "doctor", "report"])
def test_a_line_of_many_megabytes_is_refused_and_not_printed(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = folder / "events.jsonl"
    log.write_text('{"t":0,"e":"' + "x" * (20 << 20) + f'"}}\n{log.read_text()}')
    assert main([command, str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"headway: {log}, line ") and said.endswith(": longer than 16 MiB, which no event is\n")
    assert len(said) < 500


def test_what_a_run_ended_with_is_printed_as_far_as_anyone_reads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(folder / "events.jsonl", "a") as log:
        log.write(json.dumps({"t": 9.0, "e": "busy", "r": "r" * 10**6, "w": "learn"}) + "\n")
        log.write(json.dumps({"t": 9.0, "e": "fail", "why": "x" * 10**6}) + "\n")
    assert main(["status", str(folder)]) == 0
    assert len(capsys.readouterr().out) < 200_000


@pytest.mark.parametrize("command", ["status", "doctor", "report", "samples"])
def test_a_strangers_text_cannot_steer_the_terminal(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "recipe": f"functions{STEERS}", "name": STEERS}))
    told = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**told, "host": STEERS, "cpu": STEERS}))
    with open(folder / "events.jsonl", "a") as log:
        log.write(json.dumps({"t": 9.0, "e": "busy", "r": STEERS, "w": STEERS}) + "\n")
    main([command, str(folder)])
    output = "".join(capsys.readouterr())
    assert not [sign for sign in STEERS if sign in output and not sign.isprintable()]
    assert "owned" in output or command in ("report", "doctor"), "it is shown all the same"


def test_watching_prints_nothing_that_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"you see {STEERS}")
    to_stderr(f"no {STEERS}")
    printed = capsys.readouterr()
    escaped = r"\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
    assert (printed.out, printed.err) == (f"you see {escaped}\n", f"headway: no {escaped}\n")
