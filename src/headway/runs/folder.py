"""What a run leaves behind.

runs/functions-20260401-101500/     with --name warm-start: functions-20260401-101500-warm-start
    config.yaml       complete; `headway run --config` accepts it
    events.jsonl      every ticket's life, every version
    samples.jsonl     some of what was generated, as text, where the recipe generates any
    metrics.jsonl     the numbers that follow from it, a line every second or so
    environment.json  the machine, the versions of what is installed, when each session began
    trace.json        who did what when, for Perfetto
    report.html       what happened, as one page
    run.log           every ten seconds: how far it is, what each role does
    tensorboard/      the same for TensorBoard
    checkpoints/      what `headway resume` goes on from; best.weights, those that scored best
    summary.json      how it ended: scores, counts, times, the weights' fingerprint
    error.txt         the traceback, if a station raised
    run.lock          held for as long as a run lives, with the number of its process
    requests/         there for as long as it listens to `headway scale`; its owner's alone
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

import yaml

from headway.coordinator.state_files_whole_files import flush_folder, write_whole
from headway.core.types_opaque import JsonObject, SettingValue
from headway.runs.parsed_json import parsed

NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""How file systems without locks say so; the last one is NFS, which locks no folders."""


class FolderInUse(ValueError):
    """Another run lives in this folder. One line, with its process."""


class RecordedSettings(dict[str, SettingValue]):
    """The settings that a run was begun with: what would be refused today because it does nothing is let pass."""


class RunFolder:
    """The paths of one run, and files that appear whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples.jsonl"
        self.environment = path / "environment.json"
        self.trace = path / "trace.json"
        self.log = path / "run.log"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.error = path / "error.txt"
        self.token = path / "token"
        self.requests = path / "requests"
        self._lock = path / "run.lock"
        self._held: int | None = None  # a descriptor of the folder, while this process holds it

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def create(cls, root: Path, recipe: str, name: str | None = None) -> RunFolder:
        """A new folder, named after the recipe, the time, and what the run is called."""
        stamp, ending = time.strftime("%Y%m%d-%H%M%S"), "" if name is None else f"-{check_name(name)}"
        for attempt in range(1000):
            path = root / f"{recipe}-{stamp}{'' if attempt == 0 else f'-{attempt}'}{ending}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except NotADirectoryError as error:
                raise ValueError(f"cannot make a folder in {root}: {error.strerror}") from None
            flush_folder(root)
            return cls(path)
        raise FileExistsError(f"a thousand runs named {recipe}-{stamp} in {root}")

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that exists; anything else is one clear error."""
        folder = cls(path)
        if not path.is_dir():
            raise ValueError(f"no run folder at {path}")
        if not folder.config.is_file():
            raise ValueError(f"{path} is not a run folder: it has no config.yaml")
        return folder

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nobody else may run, resume or change what is here until the block ends, or this process does.

        The folder itself is locked, which cannot be replaced, and `run.lock`, which also works on NFS and holds the
        number of the process. Whoever holds it already may hold it again. Raises FolderInUse.
        """
        if self._held is not None:
            yield
            return
        with ExitStack() as stack:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            file = stack.enter_context(open(self._lock, "a+"))
            for lock in (folder, file.fileno()):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.seek(0)
                    raise FolderInUse(f"{self.path} is in use by process {file.read().strip() or '?'}") from None
                except OSError as error:
                    if error.errno not in NO_LOCKS_HERE:
                        raise
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            self._held, self._held_at = folder, self.path.resolve()
            try:
                yield
            finally:
                self._held = None

    def lost(self) -> tuple[bool, Path | None]:
        """Return whether the folder that this process holds was deleted or moved, and where it is now, if known."""
        if self._held is None:
            return False, None
        try:
            if os.path.samestat(os.stat(self._held_at), os.fstat(self._held)):
                return False, None
        except OSError:
            pass
        try:
            now = Path(os.readlink(f"/proc/self/fd/{self._held}"))
        except OSError:  # not Linux
            return True, None
        if now == self._held_at:  # a file system that numbers its folders anew, or does not answer
            return False, None
        return True, now if now.is_dir() else None

    def write_config(self, recipe: str, config: JsonObject) -> None:
        write_whole(self.config, whole_yaml({"recipe": recipe, **config}))

    def read_config(self) -> tuple[str, JsonObject]:
        """The recipe's name and its settings."""
        name, values = read_config(self.config)
        return name, RecordedSettings(values)

    def read_end(self) -> JsonObject | None:
        """The summary of a run that ended."""
        end: JsonObject | None = parsed(self.summary.read_text()) if self.summary.is_file() else None
        return end

    def recorded_fingerprint(self) -> str | None:
        """The weights a finished run ended with."""
        end = self.read_end()
        return None if end is None else str(end["fingerprint"])

    def recorded_winner(self) -> int | None:
        """The version that a finished run ended with because it reached the target score; others went beyond."""
        end = self.read_end() or {}
        return int(end["version"]) if str(end.get("stop_reason", "")).startswith("reached a score") else None

    def recorded_lines(self) -> dict[str, str]:
        """The weights that the other lines of a finished run ended with."""
        lines = (self.read_end() or {}).get("lines", {})
        return {name: str(line["fingerprint"]) for name, line in lines.items()}

    def note_session(self, environment: JsonObject, clock_s: float) -> None:
        """A session begins, with the clock of the event log at `clock_s`."""
        now = time.time()
        session = {"began_at": now, "clock_s": clock_s, "pid": os.getpid()}
        try:
            known = parsed(self.environment.read_text())
            sessions, began_at = [*known["sessions"], session], known["began_at"]
        except (OSError, ValueError, KeyError, TypeError):  # the first, or nothing that could be gone on with
            sessions, began_at = [session], now - clock_s
        content = {**environment, "began_at": began_at, "sessions": sessions}
        write_whole(self.environment, json.dumps(content, indent=1) + "\n")

    def write_error(self, text: str) -> None:
        write_whole(self.error, text)

    def write_summary(self, summary: JsonObject) -> None:
        write_whole(self.summary, json.dumps(summary, indent=1) + "\n")


def check_name(name: str) -> str:
    """What a run is called, if a folder's name can end so."""
    if re.fullmatch(r"\w[\w.-]{0,63}", name, re.ASCII) is None or name.endswith("."):
        allowed = "letters, digits, underscores, dashes and dots"
        raise ValueError(f"a name has up to 64 {allowed}, begins with no dash or dot and ends with no dot")
    return name


WHOLE = '# complete: the last line is "..."\n'
MOST_VALUES = 100_000
MOST_BYTES = 4 << 20


def whole_yaml(content: JsonObject) -> str:
    """Return YAML that shows it when its end is missing, which would be valid YAML too."""
    return WHOLE + yaml.safe_dump(content, sort_keys=False, explicit_end=True)


def load_yaml(path: Path) -> SettingValue:
    """Read a YAML file, by hand or from `whole_yaml`. ValueError: it is cut off, or larger than a file of settings."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES >> 20} MiB, which no file of settings is")
    text = path.read_text()
    if text.startswith(WHOLE) and "\n..." not in text:
        raise ValueError(
            f"{path} is cut off: its last line is not '...'; restore it, or check that every setting is there and add "
            "that line"
        )
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if _num_values(node, {}) > MOST_VALUES:
            raise ValueError(f"{path} holds more than {MOST_VALUES} values, with those that its aliases stand for")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _num_values(node: yaml.Node | None, known: dict[int, int]) -> int:
    """With those that aliases stand for, which take no room in the file."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        inside = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_num_values(one, known) for one in inside)
    return known[id(node)]


def read_config(path: Path) -> tuple[str, JsonObject]:
    """A config file, YAML or TOML: a mapping with `recipe` in it."""
    try:
        config = tomllib.loads(path.read_text()) if path.suffix == ".toml" else load_yaml(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply, or contains itself") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a mapping of names to values, received {type(config).__name__}")
    return str(config.pop("recipe", "")), config
