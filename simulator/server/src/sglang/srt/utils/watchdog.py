"""See the ranks die or fall silent, and a step that takes too long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Callable, Optional

from sglang.simulation.lines import watchdog_line
from sglang.srt.utils.logs import log

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Boot
    from sglang.srt.managers.scheduler import Scheduler

PING_EVERY_S, RANK_SILENT_S = 1.0, 3.0
# A busy machine may hold up an event loop for seconds: a scaled watchdog must not bark at that.
SHORTEST_WATCHDOG_S = 5.0


def order(pipe: Any, what: str) -> None:
    """Tell a rank something, if it is still there."""
    try:
        pipe.send(what)
    except OSError:
        return


class Ranks:
    """The processes of a running server. A rank that does not answer holds up every step, as a collective does."""

    def __init__(
        self, boot: Boot, loop: asyncio.AbstractEventLoop, ending: Callable[[], bool], fail: Callable[[], None]
    ) -> None:
        """``ending()`` says whether the server is stopping; ``fail()`` is called when a process has crashed."""
        self._boot, self._loop, self._ending, self._fail = boot, loop, ending, fail
        self._asked = [0.0] * len(boot.pipes)
        self._owed = [False] * len(boot.pipes)

    def answer(self) -> bool:
        """Whether every rank has answered what it was asked."""
        late = self._loop.time() - RANK_SILENT_S
        return not any(owed and asked < late for owed, asked in zip(self._owed, self._asked))

    async def watch(self) -> None:
        """Ask each rank from time to time; runs for ever."""
        for place, pipe in enumerate(self._boot.pipes):
            self._loop.add_reader(pipe.fileno(), self._pong, place)
        for place, process in enumerate(self._boot.processes):
            self._loop.add_reader(process.sentinel, self._died, place)
        while True:
            for place, pipe in enumerate(self._boot.pipes):
                if not self._owed[place]:
                    self._owed[place], self._asked[place] = True, self._loop.time()
                    order(pipe, "ping")
            await asyncio.sleep(PING_EVERY_S)

    def _pong(self, place: int) -> None:
        try:
            self._boot.pipes[place].recv()
            self._owed[place] = False
        except (EOFError, OSError):
            self._loop.remove_reader(self._boot.pipes[place].fileno())

    def _died(self, place: int) -> None:
        process = self._boot.processes[place]
        self._loop.remove_reader(process.sentinel)
        if self._ending():
            return
        process.join(timeout=1)
        if process.exitcode:
            log(
                f"Subprocess {self._boot.names[place]} (pid={process.pid}) crashed with exit code {process.exitcode}. "
                "Triggering SIGQUIT for cleanup..."
            )
            self._fail()


async def watch_steps(scheduler: Scheduler, limit: Optional[float], boot: Boot, fail: Callable[[], None]) -> None:
    """Call ``fail`` when a step takes longer than ``limit`` seconds of the load's clock; runs for ever."""
    tag = "TP0" if boot.physics["ranks"] > 1 else ""
    while limit:
        await asyncio.sleep(PING_EVERY_S)
        silent = scheduler.loop.time() - scheduler.fed_at
        if scheduler.unfinished and silent > max(SHORTEST_WATCHDOG_S, limit / boot.scale):
            log(watchdog_line(boot.physics["log_version"], limit), tag)
            fail()
