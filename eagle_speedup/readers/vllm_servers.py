"""Which of a vLLM log's servers printed a record, and what each said of itself when it started."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..errors import InputError
from .log_fields import process, word

__all__ = ["Servers", "Start"]

_NAMED = 8  # processes that fit a note
_MAX_PROCESSES = 1000
_HEADER = re.compile(r"API server version|LLM engine \(v|non-default args")
_CONFIG = r"speculative_config['\"]?\s{0,9}[=:]\s{0,9}(\w{1,40}|[{'\"])"
_MODEL = r"\bmodel['\"]?\s{0,9}[=:]\s{0,9}['\"]([^'\"]{1,300})['\"]"
_DRAFTER = re.compile(r"speculative_config['\"]?\s{0,9}[=:]\s{0,9}['\"]?(?:\{[^}]{0,2000}|\w{1,40}\([^)]{0,2000})")
_PROCESS = re.compile(r"\s?\w+ pid=\d+$")

_S = TypeVar("_S")


@dataclass(slots=True)
class Start:
    """The header of one start of a server."""

    owner: str = ""
    """The process that began it."""
    over: bool = False
    """Whether that process has printed statistics since."""
    speculates: bool = False
    """Whether it says so."""
    setup: dict[str, str] = field(default_factory=dict)
    """``engine_version``, ``parallelism`` and ``model``."""

    def note(self, text: str) -> None:
        """One record that is none of statistics or speculation."""
        config = word(text, _CONFIG)
        if config is not None and config.lower() not in ("none", "null"):
            self.speculates = True
        version = word(text, r"API server version[: ]+v?([\w.+-]+)") or word(text, r"LLM engine \(v([\w.+-]+)\)")
        if version:
            self.setup["engine_version"] = version
        parallel = word(text, r"tensor_parallel_size['\"]?\s*[=:]\s*(\d+)")
        if parallel:
            self.setup["parallelism"] = f"tp{parallel}"
        model = word(_DRAFTER.sub("", text), _MODEL) if _HEADER.search(text) else None
        if model:
            self.setup["model"] = model


class Servers(Generic[_S]):
    """One scan per server of a log: two of them, mixed or one after the other, are no one server.

    Nor is one that was started again, with other settings maybe: a header after statistics begins the next.
    """

    def __init__(self, scan: Callable[[], _S]) -> None:
        self.scans: list[_S] = []
        self.starts: list[Start] = []
        """Per server, its header."""
        self._scan = scan
        self._server_of: dict[str, int] = {}
        self._names: list[tuple[int, str]] = []
        self._engines: list[dict[str, str]] = []
        """Per server, the process behind every engine number."""
        self._sealed = 0
        """Servers before this one take no new process."""
        self._latest = 0
        self._open: dict[str, Start] = {}
        """By container, the latest start in it."""
        self._overflow = scan()
        """For records of more processes than a log has; nothing is read from it."""

    def of(self, text: str, engine: str | None) -> _S:
        """The scan of the server that printed a record; ``engine`` None = a speculation line.

        Processes with unlike engine numbers are the ranks of one server, processes with the same one are servers of
        their own. A record without a prefix goes on with the server before it.
        """
        name = process(text)
        if name is not None and name not in self._server_of:
            if len(self._names) >= _MAX_PROCESSES:
                return self._overflow
            self._server_of[name] = self._home(engine)
            self._names.append((self._server_of[name], name))
        if name is not None:
            self._latest = self._server_of[name]
        start = self._open.setdefault(_container(name), Start())
        start.over = start.over or start.owner in ("", name) or "APIServer" not in start.owner
        while len(self.scans) <= self._latest:
            self.scans.append(self._scan())
            self.starts.append(start)
            self._engines.append({})
        if name is not None and engine is not None:
            self._engines[self._latest].setdefault(engine, name)
        return self.scans[self._latest]

    def header(self, text: str) -> None:
        """A record that is none of statistics or speculation: maybe that of a server that starts."""
        name = process(text)
        container = _container(name)
        start = self._open.get(container)
        known = name in self._server_of
        if _HEADER.search(text) and (start is None or start.over or known):
            # The engine's processes have no numbers in common with those that print statistics.
            self._forget(container, name if known or (name is not None and "APIServer" in name) else None)
            start = None
        if start is None:
            start = self._open[container] = Start(name or "")
        start.note(text)

    def _forget(self, container: str, name: str | None) -> None:
        """What comes next from a process, or from all of a container where it is None, is of a new server."""
        gone = {
            i for other, i in self._server_of.items() if (other == name if name else _container(other) == container)
        }
        self._server_of = {other: index for other, index in self._server_of.items() if index not in gone}
        self._sealed = self._latest = len(self.scans)

    def _home(self, engine: str | None) -> int:
        """The first server in which a new process can be a rank: whose ``engine`` nobody else is."""
        taken = (bool(engines) if engine is None else engine in engines for engines in self._engines)
        homes = (index for index, is_taken in enumerate(taken) if index >= self._sealed and not is_taken)
        return next(homes, len(self.scans))

    def setup(self, used: list[bool]) -> dict[str, str]:
        """What the headers say of the engine; ``used``: which servers gave points.

        Raises:
            InputError: they differ: no one node gave these points.
        """
        counted = [start.setup for start, is_used in zip(self.starts, used, strict=True) if is_used]
        found: dict[str, str] = {}
        for setup in counted or [start.setup for start in self._open.values()]:
            for key, value in setup.items():
                if counted and found.get(key, value) != value:
                    rule = (
                        f"differs from the {found[key]} of a server before it in the log: give each a file of its own"
                    )
                    raise InputError(key, value, rule)
                found[key] = value
        return found

    def notes(self) -> tuple[str, ...]:
        """Which servers there were, where there was more than one."""
        if len(self.scans) < 2:
            return ()
        names = "; ".join(f"{index + 1} = {name}" for index, name in self._names[:_NAMED])
        told = f" ({names})" if names else ""
        return (f"{len(self.scans)} servers in the log{told}: each has its own points",)


def _container(name: str | None) -> str:
    """The part of a process' name that all processes of its container share."""
    return "" if name is None else _PROCESS.sub("", name)
