"""Notebooks for tests, each in a process of its own: the client libraries leave sockets behind.

notebook_kernels.py notebook FOLDER    reads cells from standard input, as JSON; prints what the last expressions are
notebook_kernels.py answers FOLDER     runs them one after another; prints how each ended
notebook_kernels.py interrupt FOLDER   the same, and interrupts the first as soon as FOLDER/begun is there

The kernel is this interpreter, `sys.executable -m ipykernel`, whatever is installed in a home directory or elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

WAIT_S = 90.0


def in_a_kernel(what: str, folder: Path, *cells: str) -> list[str]:
    """What the cells print or come to, with a home directory that is empty."""
    (home := folder / "home").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
    environment |= {"HOME": str(home), "JUPYTER_PLATFORM_DIRS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, what, str(folder)],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        env=environment,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, list)
    return said


def run_notebook(folder: Path, cells: list[str]) -> list[str]:
    import nbclient
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    manager = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), kernel_name="python3")
    client = nbclient.NotebookClient(notebook, km=manager, timeout=int(WAIT_S), startup_timeout=int(WAIT_S))
    client.execute(cwd=str(folder))
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    return [output["data"]["text/plain"] for output in outputs if "data" in output]


def run_cells(folder: Path, cells: list[str], interrupts: bool = False) -> list[str]:
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), kernel_name="python3")
    manager.start_kernel(cwd=str(folder))
    client = manager.client()
    answers = []
    try:
        client.start_channels()
        client.wait_for_ready(timeout=WAIT_S)
        if interrupts:
            client.execute(cells.pop(0))
            wait_for(folder / "begun")
            manager.interrupt_kernel()
            answers.append(client.get_shell_msg(timeout=WAIT_S))
        for cell in cells:
            answers.append(client.execute_interactive(cell, timeout=WAIT_S, output_hook=lambda message: None))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return [
        " ".join([content["status"], content.get("ename", ""), content.get("evalue", "")]).strip()
        for content in (answer["content"] for answer in answers)
    ]


def run_and_interrupt(folder: Path, cells: list[str]) -> list[str]:
    return run_cells(folder, cells, interrupts=True)


def wait_for(path: Path) -> None:
    begun_at = time.monotonic()
    while not path.exists():
        if time.monotonic() - begun_at > WAIT_S:
            raise TimeoutError(f"{path} is not there after {WAIT_S:g} s")
        time.sleep(0.01)


if __name__ == "__main__":
    chosen = {"notebook": run_notebook, "answers": run_cells, "interrupt": run_and_interrupt}[sys.argv[1]]
    print(json.dumps(chosen(Path(sys.argv[2]), json.load(sys.stdin))))
