"""The process of one run of a sweep: told by the sweep what to run, it runs that, and ends with it.

It prints into a file, and goes on from the last checkpoint where the run has begun already.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from headway.core.types_opaque import JsonObject
from headway.runtimes.child_process_channel import Frame
from headway.runtimes.child_process_in_child import begin

FREE_WITHIN_S = 20.0
"""A run whose sweep was killed is gone after moments: so long its folder may still be held."""


def main(fd: int) -> None:
    channel = begin(fd, ignored=())
    frames = channel.frames()
    first = next(frames, None)
    if first is None:
        sys.exit(1)  # the sweep is gone before it said what to run
    job = json.loads(first[0])
    folder, path = Path(job["folder"]), Path(job["console"])
    for place in (folder, path.parent):
        place.mkdir(parents=True, exist_ok=True)
    console = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(console, stream)
    os.close(console)
    threading.Thread(target=_end_with_the_sweep, args=(frames,), daemon=True).start()
    from headway.cli import told_in_one_line

    code = told_in_one_line(lambda: _run(job["recipe"], folder, job["settings"]))
    sys.stdout.flush()
    sys.exit(code)


def _end_with_the_sweep(frames: Iterator[Frame]) -> None:
    """Where the kernel does not see to it: the channel ends with the sweep."""
    for _ in frames:
        pass
    os._exit(1)


def _run(recipe_name: str, path: Path, settings: JsonObject) -> int:
    from headway.cli.launch import launch_recipe, show_memory
    from headway.runs.config import read_values
    from headway.runs.folder import FolderInUse, RunFolder
    from headway.runs.launch_signals import answered_without_a_coordinator
    from headway.runs.recipes_package import load_recipe

    recipe, folder = load_recipe(recipe_name), RunFolder(path)
    with answered_without_a_coordinator(), ExitStack() as stack:
        until = time.monotonic() + FREE_WITHIN_S
        while True:
            try:
                stack.enter_context(folder.hold())
                break
            except FolderInUse:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        has_begun = folder.events.is_file() and folder.config.is_file()
        config = read_values(recipe.config, folder.read_config()[1] if has_begun else settings)
        show_memory(recipe, config)
        launch_recipe(recipe, recipe.stations(config), config, folder, resume=has_begun, quiet=True)
    return 0
