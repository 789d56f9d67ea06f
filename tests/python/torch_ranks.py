"""Worker processes of torch.distributed for the tests, joined by gloo through a file: one set for each world size."""

import contextlib
import datetime
import multiprocessing
import os
import sys
import tempfile
import traceback
from multiprocessing import connection, forkserver
from pathlib import Path

START_SECONDS, CALL_SECONDS = 300, 300  # far more than either takes: two cores may have other work


def serve(rank, world_size, file, pipe):
    """A worker's life: calls what comes through the pipe, and says how it went."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=CALL_SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size, timeout=timeout)
    pipe.send((True, None))
    while (call := pipe.recv()) is not None:
        function, arguments = call
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


def forking_context():
    """Processes from a server that has imported once, before anything starts threads, what all of them need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sharded_checks", "sharded_training"])
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([path] if path else [])])
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if path is not None:
            os.environ["PYTHONPATH"] = path
    return context


class Ranks:
    """A process for each rank."""

    def __init__(self, world_size):
        self.directory = tempfile.TemporaryDirectory()
        file = str(Path(self.directory.name) / "meeting")
        context = forking_context()
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, world_size, file, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.is_started = False

    def run(self, function, *arguments):
        """function(*arguments) on every rank: the results by rank. AssertionError, with the words, where one failed."""
        if not self.is_started:
            self._answers(START_SECONDS)
            self.is_started = True
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return self._answers(CALL_SECONDS)

    def _answers(self, seconds):
        waiting, results = dict(enumerate(self.pipes)), {}
        while waiting:
            ready = connection.wait(waiting.values(), seconds)
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                try:
                    is_good, results[rank] = waiting.pop(rank).recv()
                except EOFError:
                    is_good, results[rank] = False, "its process ended"
                if not is_good:
                    self.kill()  # the others may wait in a collective
                    raise AssertionError(f"rank {rank} of {len(self.pipes)}: {results[rank]}")
            if not ready:
                self.kill()
                raise AssertionError(f"ranks {sorted(waiting)} of {len(self.pipes)} gave no answer")
        return [results[rank] for rank in range(len(self.pipes))]

    @property
    def are_alive(self):
        return all(process.is_alive() for process in self.processes)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()

    def close(self):
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(10)
        self.kill()
        self.directory.cleanup()


class Pools:
    """Ranks of every world size that was asked for; new ones where a failure has ended the old."""

    def __init__(self):
        self.pools = {}

    def __call__(self, world_size):
        pool = self.pools.get(world_size)
        if pool is None or not pool.are_alive:
            if pool is not None:
                pool.close()
            pool = self.pools[world_size] = Ranks(world_size)
        return pool

    def close(self):
        for pool in self.pools.values():
            pool.close()
