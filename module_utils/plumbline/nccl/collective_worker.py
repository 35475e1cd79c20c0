"""One rank of a timed, data-checked all-reduce. Runs alone, with a build's own Python (it needs torch unless
``backend`` is ``socket``).

    python collective_worker.py SPEC.json RANK PARENT_PID

SPEC: ``{world, backend: nccl|gloo|socket, folder, sizes: [bytes], dtype: bfloat16|float32, graph: bool, iterations:
null or n, fault: null or {rank, do: hang|wrong|crash|freeze, at: "init" or bytes}}`` (``fault`` is for tests and
recorded in the results). Into ``folder`` it writes ``rank<R>.heartbeat`` (step, phase, time: before everything that
can block) and appends a line to ``rank<R>.results`` for each size that is whole. It dies with the process that
started it.

Data: small integers that depend on rank and place, so that every sum is exact in bfloat16 for up to 60 ranks and a
value in the wrong place is seen; every element of the result is compared, in and out of a CUDA graph.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from array import array
from pathlib import Path
from typing import Any, Dict, List, Optional

SMALL = 1 << 20


class Rank:
    def __init__(self, spec: Dict[str, Any], rank: int) -> None:
        self.spec, self.rank, self.world = spec, rank, int(spec["world"])
        self.base = f"{spec['folder']}/rank{rank}"
        self.step = 0
        fault = spec.get("fault") or {}
        self.fault = fault if fault.get("rank") == rank else {}

    def beat(self, phase: str, size: Optional[int] = None) -> None:
        """Say what comes next, whole or not at all."""
        self.step += 1
        text = json.dumps(
            {
                "rank": self.rank,
                "pid": os.getpid(),
                "step": self.step,
                "phase": phase,
                "bytes": size,
                "at": time.time(),
            }
        )
        with open(f"{self.base}.heartbeat.new", "w") as f:
            f.write(text)
        Path(f"{self.base}.heartbeat.new").replace(f"{self.base}.heartbeat")

    def result(self, value: Dict[str, Any]) -> None:
        with open(f"{self.base}.results", "a") as f:
            f.write(json.dumps({"rank": self.rank, "pid": os.getpid(), **value}) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def misbehave(self, at: Any) -> None:
        """Test switch."""
        if self.fault.get("at") != at:
            return
        if self.fault["do"] == "hang":
            time.sleep(3600)
        if self.fault["do"] == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.fault["do"] == "crash":
            sys.stderr.write("RuntimeError: asked to crash\n")
            sys.stderr.flush()
            os._exit(7)

    def corrupts(self, at: Any) -> bool:
        return self.fault.get("do") == "wrong" and self.fault.get("at") == at


def value(place: int, rank: int) -> int:
    """What this rank puts into this place: -2 to 2."""
    return (place * 7 + rank * 3) % 5 - 2


def total(place: int, world: int) -> int:
    return sum(value(place, rank) for rank in range(world))


def middle(values: List[float]) -> Dict[str, float]:
    ordered = sorted(values)
    return {"median": round(ordered[len(ordered) // 2], 3), "min": round(ordered[0], 3), "max": round(ordered[-1], 3)}


# without torch


class Star:
    """All-reduce over loopback through rank 0, to rehearse a sweep where there is no torch. Its times mean
    nothing.
    """

    name = "socket"

    def __init__(self, me: Rank) -> None:
        self.me = me
        path = f"{me.spec['folder']}/port"
        if me.rank == 0:
            with socket.socket() as server:
                server.bind(("127.0.0.1", 0))
                server.listen(me.world)
                with open(path + ".new", "w") as f:
                    f.write(str(server.getsockname()[1]))
                Path(path + ".new").replace(path)
                self.peers: List[socket.socket] = [server.accept()[0] for _ in range(me.world - 1)]
            for peer in self.peers:
                self._send(peer, array("h"))  # all are here
        else:
            while not Path(path).exists():
                time.sleep(0.01)
            with open(path) as f:
                self.peers = [socket.create_connection(("127.0.0.1", int(f.read())))]
            self._receive(self.peers[0])

    def all_reduce(self, data: array) -> array:
        if self.me.rank:
            self._send(self.peers[0], data)
            return self._receive(self.peers[0])
        parts = [data, *(self._receive(peer) for peer in self.peers)]
        summed = array("h", [sum(column) for column in zip(*parts)])
        for peer in self.peers:
            self._send(peer, summed)
        return summed

    @staticmethod
    def _send(peer: socket.socket, data: array) -> None:
        peer.sendall(struct.pack("!I", len(data) * 2) + data.tobytes())

    @staticmethod
    def _receive(peer: socket.socket) -> array:
        def exactly(count: int) -> bytes:
            pieces = b""
            while len(pieces) < count:
                piece = peer.recv(count - len(pieces))
                if not piece:
                    raise ConnectionError("a peer went away")
                pieces += piece
            return pieces

        return array("h", exactly(struct.unpack("!I", exactly(4))[0]))

    def measure(self, size: int) -> Dict[str, Any]:
        count, me = size // 2, self.me
        mine = array("h", [value(i, me.rank) for i in range(count)])
        me.misbehave(size)
        me.beat("all-reduce", size)
        got = self.all_reduce(mine)
        if me.corrupts(size):
            got[count // 2] += 1
        wrong = sum(1 for i in range(count) if got[i] != total(i, me.world))
        me.beat("eager", size)
        times = []
        for _ in range(me.spec.get("iterations") or 5):
            began = time.perf_counter()
            self.all_reduce(mine)
            times.append((time.perf_counter() - began) * 1e6)
        return {
            "bytes": size,
            "elements": count,
            "eager_us": middle(times),
            "graph_us": None,
            "wrong": wrong,
            "wrong_in_graph": None,
        }

    def facts(self) -> Dict[str, Any]:
        return {"device": "CPU", "nccl": None, "torch": None}

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


# with torch


class Torch:
    """NCCL on GPUs, or gloo on the CPU."""

    def __init__(self, me: Rank) -> None:
        import torch
        import torch.distributed as dist

        self.me, self.torch, self.dist = me, torch, dist
        self.name = me.spec["backend"]
        self.cuda = self.name == "nccl"
        me.beat("device")
        if self.cuda:
            torch.cuda.set_device(me.rank)
            torch.zeros(1, device="cuda")
        else:
            torch.set_num_threads(1)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.device = torch.device("cuda", me.rank) if self.cuda else torch.device("cpu")
        self.dtype = getattr(torch, me.spec["dtype"])
        me.misbehave("init")
        me.beat("init")
        dist.init_process_group(
            self.name, init_method=f"file://{me.spec['folder']}/store", rank=me.rank, world_size=me.world
        )
        me.beat("first all-reduce")
        dist.all_reduce(torch.ones(8, dtype=self.dtype, device=self.device))
        self.sync()

    def sync(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def fill(self, count: int) -> Any:
        places = self.torch.arange(count, device=self.device, dtype=self.torch.int64)
        return ((places * 7 + self.me.rank * 3) % 5 - 2).to(self.dtype)

    def wanted(self, count: int) -> Any:
        places = self.torch.arange(count, device=self.device, dtype=self.torch.int64)
        summed = self.torch.zeros(count, device=self.device, dtype=self.torch.int64)
        for rank in range(self.me.world):
            summed += (places * 7 + rank * 3) % 5 - 2
        return summed.to(self.dtype)

    def measure(self, size: int) -> Dict[str, Any]:
        torch, dist, me = self.torch, self.dist, self.me
        count = size // torch.empty(0, dtype=self.dtype).element_size()
        wanted = self.wanted(count)
        data = self.fill(count)
        self.sync()
        me.misbehave(size)
        me.beat("all-reduce", size)
        dist.all_reduce(data)
        self.sync()
        if me.corrupts(size):
            data[count // 2] += 1
        found: Dict[str, Any] = {
            "bytes": size,
            "elements": count,
            "wrong": int((data != wanted).sum()),
            "graph_us": None,
            "wrong_in_graph": None,
        }
        me.beat("eager", size)
        found["eager_us"] = self.eager(count, size)
        if self.cuda and me.spec.get("graph", True):
            me.beat("graph", size)
            found.update(self.graph(count, size, wanted))
        return found

    def eager(self, count: int, size: int) -> Dict[str, float]:
        torch, dist = self.torch, self.dist
        data = torch.zeros(count, dtype=self.dtype, device=self.device)
        rounds = self.me.spec.get("iterations") or (200 if size <= SMALL else 30)
        for _ in range(min(20, rounds)):
            dist.all_reduce(data)
        self.sync()
        times = []
        for _ in range(5):
            if self.cuda:
                first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                first.record()
                for _ in range(rounds):
                    dist.all_reduce(data)
                last.record()
                torch.cuda.synchronize()
                times.append(first.elapsed_time(last) * 1000 / rounds)
            else:
                began = time.perf_counter()
                for _ in range(rounds):
                    dist.all_reduce(data)
                times.append((time.perf_counter() - began) * 1e6 / rounds)
        return middle(times)

    def capture(self, data: Any, times: int) -> Any:
        torch, dist = self.torch, self.dist
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                dist.all_reduce(data)
        return graph

    def graph(self, count: int, size: int, wanted: Any) -> Dict[str, Any]:
        torch = self.torch
        # The check: one all-reduce in a graph of its own, replayed on fresh data.
        data = self.fill(count)
        once = self.capture(data, 1)
        data.copy_(self.fill(count))
        once.replay()
        torch.cuda.synchronize()
        if self.me.corrupts(f"graph {size}"):
            data[0] += 1
        wrong = int((data != wanted).sum())
        data.zero_()
        many = 50 if size <= SMALL else 10
        timed = self.capture(data, many)
        for _ in range(3):
            timed.replay()
        torch.cuda.synchronize()
        times = []
        for _ in range(9):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            timed.replay()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) * 1000 / many)
        return {"graph_us": middle(times), "wrong_in_graph": wrong}

    def facts(self) -> Dict[str, Any]:
        torch = self.torch
        if not self.cuda:
            return {"device": "CPU", "nccl": None, "torch": torch.__version__}
        return {
            "device": torch.cuda.get_device_name(self.me.rank),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "torch": torch.__version__,
        }

    def close(self) -> None:
        self.dist.destroy_process_group()


def main(argv: List[str]) -> int:
    # PR_SET_PDEATHSIG: whoever started this is the one that limits its time.
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != int(argv[3]):  # it ended while this one started, before the kernel was told
        return 1
    with open(argv[1]) as f:
        spec = json.load(f)
    me = Rank(spec, int(argv[2]))
    me.beat("start")
    link: Any
    if spec["backend"] == "socket":
        me.misbehave("init")
        me.beat("init")
        link = Star(me)
    else:
        me.beat("import torch")
        link = Torch(me)
    me.beat("ready")
    me.result(
        {
            "facts": {
                **link.facts(),
                "backend": link.name,
                "fault": spec.get("fault"),
                "environment": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")},
            }
        }
    )
    for size in spec["sizes"]:
        me.result(link.measure(int(size)))
    me.beat("done")
    link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
