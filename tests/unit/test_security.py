"""What a stranger tries: another name for this machine, no token, a pickle. docs/security.md says what holds."""

from __future__ import annotations

import errno
import http.client
import os
import pickle
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import patient

from headway.launching.metric_sinks import build_sinks, run_token
from headway.observe.folder import RunFolder
from headway.observe.prometheus_sink import PrometheusSink

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
    from headway.publish.weight_source import WeightSource

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
