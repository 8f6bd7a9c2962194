"""Helper processes: they start with one line or an error, speak in frames, and never outlive who started them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from running_processes import is_running
from waiting import wait_until

from headway.llm.engine import vllm_host
from headway.runtimes.child_process_channel import Channel, HungUp
from headway.runtimes.child_process_child import Child, Command
from headway.runtimes.child_process_memory import read_value, write_value

pytestmark = pytest.mark.timeout(60)


def script(text: str) -> Command:
    """A helper that begins as all do and then runs `text` with `channel`."""
    begin = "import os, signal, sys, time\nfrom headway.runtimes.child_process_in_child import begin\n"
    program = begin + "channel = begin(*map(int, sys.argv[1:]))\n" + textwrap.dedent(text)
    return lambda fds: [sys.executable, "-c", program, *map(str, fds)]


ECHO = """
for body, fds in channel.frames():
    channel.send(body, fds)
"""
STUBBORN = """
channel.send(b"up")
time.sleep(600)
"""


def receive(channel: Channel) -> list[tuple[bytes, list[int] | None]]:
    assert channel.wait(30.0)
    return channel.receive()


def test_a_helper_answers_ends_when_nobody_speaks_to_it_and_says_how() -> None:
    child = Child(script(ECHO), {})
    channel = Channel(child.socket)
    table, fd = write_value({"w": np.arange(5.0), "name": "a"})
    channel.send(table, [fd])
    ((body, fds),) = receive(channel)
    assert fds is not None
    value = read_value(body, fds[0])
    value["w"] += 1  # a view of its own: the memory is not changed
    assert read_value(table, fd)["w"].tolist() == [0, 1, 2, 3, 4] and value["w"].tolist() == [1, 2, 3, 4, 5]
    for one in (fd, *fds):
        os.close(one)
    child.hang_up()
    assert child.how_it_ended(30.0) == "exited with code 0"
    child.end()


def test_a_helper_that_does_not_listen_is_killed_with_its_own_children() -> None:
    child = Child(
        script("pid = os.fork()\nif pid: channel.send(str(pid).encode())\ntime.sleep(600)"), {}, own_group=True
    )
    ((pid, _),) = receive(Channel(child.socket))
    assert is_running(int(pid))
    child.end(grace_s=0.05)
    assert child.is_over and child.how_it_ended(0.0) == "was killed by SIGKILL"
    wait_until(lambda: not is_running(int(pid)), what="its own child gone")
    child.end()


def test_a_stopped_helper_is_still_there_after_the_time_it_is_given() -> None:
    child = Child(script(STUBBORN), {})
    receive(Channel(child.socket))
    os.kill(child.pid, signal.SIGSTOP)
    assert child.how_it_ended(0.05) == "closed its end and does not exit"
    assert child.how_it_ended(0.05, "does not answer any more") == "does not answer any more"
    child.end()
    assert not is_running(child.pid)


def test_a_helper_that_cannot_be_started_leaves_nothing_behind() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        Child(lambda fds: ["/no/such/program"], {}, has_lifeline=True)
    assert os.listdir("/proc/self/fd") == before


def test_who_hung_up_is_no_connection_error_of_the_work() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    channel = Channel(ours)
    with pytest.raises(HungUp) as sending:
        channel.send(b"x")
    with pytest.raises(EOFError):
        channel.receive()
    assert not isinstance(sending.value, ConnectionError) and list(channel.frames()) == []
    channel.close()


@pytest.mark.parametrize("has_lifeline", [False, True])
def test_no_helper_outlives_a_killed_parent(has_lifeline: bool, tmp_path: Path) -> None:
    """With a lifeline, not even where the thread that started it is gone and a fork of the parent lives on."""
    program = f"""
    import os, sys, threading, time
    from headway.runtimes.child_process_channel import Channel
    from headway.runtimes.child_process_child import Child
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from test_children import STUBBORN, script
    started = []
    start = lambda: started.append(Child(script(STUBBORN), {{}}, has_lifeline={has_lifeline}))
    if {has_lifeline}:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    else:
        start()
    (child,) = started
    Channel(child.socket).receive()
    other = os.fork()
    if other == 0:
        time.sleep(600)
    print(child.pid, other, flush=True)
    time.sleep(600)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        helper, other = map(int, parent.stdout.readline().split())
        assert is_running(helper)
        parent.kill()
        wait_until(lambda: not is_running(helper), what="the helper gone")
        os.kill(other, signal.SIGKILL)


def test_the_host_of_vllm_needs_no_installed_headway() -> None:
    """Nothing but the standard library is there: what is missing is vllm itself, and it says so."""
    command = sys.executable, "-I", "-S", vllm_host.__file__
    child = Child(lambda fds: [*command, *map(str, fds)], {}, stdout=subprocess.DEVNULL)
    channel = Channel(child.socket)
    channel.send(pickle.dumps(("start", {"arguments": {}})))
    ((body, _),) = receive(channel)
    assert pickle.loads(body) == ("broken", (0, 0, 0), "ModuleNotFoundError: No module named 'vllm'")
    child.end(30.0)
