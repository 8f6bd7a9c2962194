"""headway export RUN --to FOLDER [--checkpoint best|last|VERSION] [--adapters true]

The trained language model of a run as a folder that transformers and vLLM load: the newest checkpoint, unless
another is named. Adapters are folded in, or with --adapters true written by themselves, for peft. Checkpoints are
pickles: export only runs you trust.
"""

from __future__ import annotations

from pathlib import Path

from headway.cli.output import say
from headway.cli.words import UsageError, one_run, read_options
from headway.observe.fingerprint import fingerprint
from headway.observe.folder import RunFolder
from headway.recipes.run_export import export


def command(words: list[str]) -> int:
    """The command."""
    folder, options = RunFolder.existing(one_run("export", words[:1])), read_options(words[1:])
    to = options.pop("to", True)
    if to is True:
        raise UsageError("export needs a folder to write to: headway export RUN --to FOLDER")
    done = export(folder, Path(str(to)), **options)
    kept = done.kept
    say(f"version {kept.version}, weights {fingerprint(kept.weights)}: {done.folder}")
    return 0
