"""Runtimes by their names."""

from __future__ import annotations

from headway.core.protocols import Runtime
from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue

RUNTIMES = ("inline", "threads", "processes", "ray")


def build_runtime(name: str, *, start_s: float | None = None, **ray_options: SettingValue) -> Runtime:
    """A runtime by name. `start_s` is how long the coordinator lets a role be built: no runtime gives up much earlier.
    `RayActors` says what `ray_options` there are; no other runtime has any."""
    if ray_options and name != "ray":
        raise ValueError(f"{', '.join(ray_options)}: for the runtime 'ray' only, received {name!r}")
    if name == "inline":
        from headway.runtimes.inline import Inline

        return Inline()
    if name == "threads":
        from headway.runtimes.threads import Threads

        return Threads()
    if name == "processes":
        from headway.runtimes.processes import Processes

        return Processes() if start_s is None else Processes(start_s)
    if name == "ray":
        try:
            from headway.runtimes.ray_actors import RayActors
        except ModuleNotFoundError as error:
            raise ValueError(f"the runtime 'ray' needs {error.name}: pip install 'headway[ray]'") from None
        if start_s is not None:  # before the coordinator gives up: it can say what was lacking
            ray_options["start_s"] = 5 / 6 * start_s
        return RayActors(**ray_options)
    raise ValueError(unknown("runtime", name, RUNTIMES))
