"""Two processes that share a gloo group for the whole test session."""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed, multiprocessing

ROOT = Path(__file__).resolve().parents[2]


class GlooPool:
    """Runs a function on every rank; the processes start at the first use."""

    def __init__(self, world: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")  # imports once what every rank needs
        context.set_forkserver_preload(["lightning.pytorch", "eagle_speedup.callbacks.speedup_monitor"])
        self._pipes, self._processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, world, str(folder / "rendezvous")), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function, *args, timeout=120):
        """Results of ``function(*args)``, one per rank. The function must be importable; raises what a rank raised."""
        for pipe in self._pipes:
            pipe.send((function, args))
        results = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(timeout):
                self.close()
                raise TimeoutError(f"rank {rank} hangs in {function.__name__}")
            ok, result = pipe.recv()
            if not ok:
                self.close()
                raise AssertionError(f"rank {rank}:\n{result}")
            results.append(result)
        return results

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rank: int, world: int, rendezvous: str) -> None:
    sys.path.insert(0, str(ROOT))
    torch.set_num_threads(1)
    # What Lightning looks for to believe that a launcher has started its processes.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE=str(world))
    os.environ.update(
        LOCAL_WORLD_SIZE=str(world), TORCHELASTIC_RUN_ID="tests", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    )
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, function(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
