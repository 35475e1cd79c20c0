"""Start, stop and look at the servers of a plumbline root. One server start is one boot, with a folder of its own.

``boots/<boot id>/`` holds spec.json (what was asked for), pid.json and exit.json (by the supervisor, see there),
server.log, supervisor.log, and measuring.json {pid, start, ...} while something measures this boot.
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Union

from ..errors import PlumblineError
from ..files import write_json
from ..ids import is_ulid
from . import boots, lease, ports
from .supervisor import alive, command_of, descendants, process_stat, send

PathLike = Union[str, Path]
# What a server gets from whoever starts it, by default: no locale, no proxy, no NCCL variable of a login shell.
INHERIT = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ")
START_S = 20.0  # for the supervisor to write pid.json on a busy machine


def environment_of(declared: Mapping[str, Any], inherit: Sequence[str] = INHERIT) -> Dict[str, str]:
    """The whole environment of a server: what is declared, as texts, over the inherited variables; C.UTF-8 as locale.

    A value of null takes a variable away."""
    out: Dict[str, Optional[str]] = {"LANG": "C.UTF-8"}
    out.update({name: os.environ[name] for name in inherit if name in os.environ})
    for name, value in declared.items():
        if isinstance(value, bool):  # YAML's true and yes: what was meant, "1", "true" or "True"?
            raise PlumblineError("a boolean is no value of an environment variable", f"environment: {name}", value,
                                 "a text or a number", f"put it in quotes: {name}: \"1\"")
        out[str(name)] = None if value is None else str(value)
    return {name: value for name, value in out.items() if value is not None}


def start(root: PathLike, boot: str, argv: Sequence[str], environment: Mapping[str, str], cwd: Optional[str] = None,
          ready_port: Optional[int] = None, holder: Optional[Mapping[str, Any]] = None, grace_s: float = 10.0,
          dry: bool = False) -> Dict[str, Any]:
    """Start the boot under its supervisor: {changed, boot_dir, pid, supervisor, log}.

    ``environment`` is the whole environment of the server. ``holder`` is the lease that this boot works under (as
    `lease.acquire` returns it): the server is stopped when that lease ends. A boot that runs with the same
    specification is left alone. Raises PlumblineError if it cannot be started, naming what is in the way.
    """
    folder = boots.folder(root, boot)
    spec = {
        "boot": boot, "argv": list(argv), "environment": {**environment, boots.MARK: boot},
        "cwd": cwd or str(folder),
        "log": str(folder / "server.log"), "grace_s": grace_s, "ready_port": ready_port,
        "lease": str(lease.path_of(root)) if holder else None, "run": holder["run"] if holder else None,
        "lease_ttl_s": float(holder.get("ttl_s", lease.TTL_S)) if holder else lease.TTL_S,
        "controller": {"pid": holder["controller_pid"], "start": holder["controller_start"],
                       "machine": holder["controller_machine"]}
        if holder and holder.get("controller_pid") and holder.get("controller_start") else None}
    now = boots.status(root, boot)
    if now["state"] == "running":
        return _already(now, spec)
    if now["state"] != "absent":
        raise PlumblineError(f"boot {boot} has been started before", str(folder), f"it is {now['state']}",
                             "a boot is one start of one server", "give a new boot id")
    _check(root, spec, dry)
    if dry:
        return {"changed": True, "boot_dir": str(folder), "pid": None, "supervisor": None, "log": spec["log"]}
    if holder:
        lease.renew(root, holder)
    write_json(folder / "spec.json", spec, 0o600)  # the environment may hold a token
    _launch(root, folder)
    started = _await_pid(boot, folder)
    return {"changed": True, "boot_dir": str(folder), "pid": started["server"], "supervisor": started["supervisor"],
            "log": spec["log"]}


def stop(root: PathLike, boot: str, timeout_s: float = 60.0, dry: bool = False) -> Dict[str, Any]:
    """Stop the boot and wait until none of its processes is left: {changed, exit: exit.json or null, killed: [..]}.

    The supervisor does the work; where it is gone, the server's session, its descendants and whatever still writes its
    log or carries its mark are ended here. Stopping what does not run changes nothing. Raises PlumblineError naming the
    processes that cannot be ended.
    """
    now = boots.status(root, boot)
    if now["state"] != "running" and ((now["exit"] or {}).get("clean") or not boots.remains(root, boot)):
        return {"changed": False, "exit": now["exit"], "killed": (now["exit"] or {}).get("killed", [])}
    if dry:
        return {"changed": True, "exit": None, "killed": []}
    supervisor = now["pids"]
    end = time.monotonic() + timeout_s
    if now["state"] == "running" and supervisor:
        send(supervisor["supervisor"], signal.SIGTERM)
        while alive(supervisor["supervisor"], supervisor["supervisor_start"]) and time.monotonic() < end:
            time.sleep(0.02)
    killed = _end(root, boot, end)
    result = boots.read_json(boots.folder(root, boot) / "exit.json")
    if result is None or killed:
        result = dict(result or {"code": None, "signal": None, "at": None, "reason": "supervisor_lost",
                                 "detail": "the supervisor was gone"}, clean=True, remaining=[])
        result["killed"] = list(result.get("killed", [])) + killed
        write_json(boots.folder(root, boot) / "exit.json", result)
    return {"changed": True, "exit": result, "killed": result["killed"]}


def stop_all(root: PathLike, timeout_s: float = 60.0, dry: bool = False, keep: Sequence[str] = ()) -> Dict[str, Any]:
    """End whatever a former run left on this host: {changed, stopped: [boot ids], measuring: [{boot, pid, command}]}.

    First the processes that measure (boots/<id>/measuring.json), then the servers; boots in ``keep`` are left alone.
    """
    stopped: List[str] = []
    ended: List[Dict[str, Any]] = []
    for boot in boots.known(root):
        if boot in keep:
            continue
        ended += _end_measuring(root, boot, dry)
        if stop(root, boot, timeout_s, dry)["changed"]:
            stopped.append(boot)
    return {"changed": bool(stopped or ended), "stopped": stopped, "measuring": ended}


def _already(now: Mapping[str, Any], spec: Mapping[str, Any]) -> Dict[str, Any]:
    same = ("argv", "environment", "cwd", "ready_port")
    differs = [key for key in same if now["spec"].get(key) != spec[key]]
    if differs:
        raise PlumblineError(
            f"boot {spec['boot']} runs already, started otherwise", now["boot_dir"],
            "; ".join(f"{key}: {now['spec'].get(key)}" for key in differs if key != "environment") or "environment",
            "; ".join(f"{key}: {spec[key]}" for key in differs if key != "environment") or "the environment given",
            "stop that boot, or give a new boot id")
    return {"changed": False, "boot_dir": now["boot_dir"], "pid": now["pids"]["server"],
            "supervisor": now["pids"]["supervisor"], "log": spec["log"]}


def _check(root: PathLike, spec: Mapping[str, Any], dry: bool) -> None:
    """Refuse what would fail later, after a load that takes minutes.

    In check mode build and supervisor need not be there: the tasks before only said that they would make them."""
    if not is_ulid(spec["boot"]):
        raise PlumblineError("a boot is named by a ULID", "boot", spec["boot"], "26 characters of Crockford's base 32")
    program = Path(spec["argv"][0]) if spec["argv"] else Path("/nonexistent")
    if not program.is_absolute() or not (dry or (program.is_file() and os.access(program, os.X_OK))):
        raise PlumblineError("the server's program cannot be run", "argv", str(program),
                             "the absolute path of an executable file", "build the engine first (role sglang_build)")
    supervisor = boots.supervisor_path(root)
    if not dry and not supervisor.is_file():
        raise PlumblineError("the supervisor is not installed", str(supervisor), "no such file", None,
                             "run the role sglang_server (tasks_from: main) on this host first")
    # The working folder of a boot is made with it; any other must be there.
    if spec["cwd"] != str(boots.folder(root, spec["boot"])) and not Path(spec["cwd"]).is_dir():
        raise PlumblineError("the server's working folder does not exist", "cwd", spec["cwd"], "a folder")
    bad = [name for name, value in spec["environment"].items()
           if not isinstance(value, str) or not name or "=" in name or "\0" in name + value]
    if bad:
        raise PlumblineError("these variables cannot be put into an environment", "environment", ", ".join(bad),
                             "names without '=', values that are texts")
    if spec["ready_port"] is not None:
        ports.check_free(spec["ready_port"])
        for other in boots.known(root):  # SGLang binds its port only after the load: nobody listens there yet
            found = boots.status(root, other)
            if found["state"] == "running" and found["spec"].get("ready_port") == spec["ready_port"]:
                raise PlumblineError(
                    f"port {spec['ready_port']} is promised to boot {other}, which runs already", "sglang_server_port",
                    f"process {found['pids']['server']}: {command_of(found['pids']['server'])}",
                    "a port that no other boot uses", f"stop boot {other} ('ansible-playbook playbooks/stop.yml')")


def _launch(root: PathLike, folder: Path) -> None:
    # Nothing of the module's may reach the supervisor: Ansible waits until all holders of its pipes are gone.
    with open(folder / "supervisor.log", "ab", buffering=0) as log:
        child = subprocess.Popen(
            [sys.executable, "-I", str(boots.supervisor_path(root)), str(folder)], stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True, close_fds=True, cwd="/")
    child.returncode = 0  # it outlives this process; nobody here waits for it


def _await_pid(boot: str, folder: Path) -> Dict[str, Any]:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        pids = boots.read_json(folder / "pid.json")
        if pids:
            return pids
        exit_ = boots.read_json(folder / "exit.json")
        if exit_:
            raise PlumblineError(f"the server of boot {boot} could not be started", str(folder), exit_["detail"])
        time.sleep(0.01)
    text = (folder / "supervisor.log").read_text(errors="replace")[-2000:]
    raise PlumblineError(f"the supervisor of boot {boot} did not start within {START_S:g} s",
                         str(folder / "supervisor.log"), text or "it wrote nothing")


def _end(root: PathLike, boot: str, end: float) -> List[Dict[str, Any]]:
    """SIGKILL what is left of a boot until nothing is; returns what was killed."""
    killed: List[Dict[str, Any]] = []
    seen: Set[int] = set()
    while True:
        left = boots.remains(root, boot)
        if not left:
            return killed
        if time.monotonic() > end + 10:
            raise PlumblineError(
                f"processes of boot {boot} cannot be ended", str(boots.folder(root, boot)),
                "; ".join(f"{pid} ({(process_stat(pid) or '?')[0]}): {command_of(pid)}" for pid in left), "none",
                "a process in state D waits in the kernel, most often in the GPU's driver: reset the GPU or reboot")
        for pid in left:
            if pid not in seen:
                killed.append({"pid": pid, "command": command_of(pid)})
                seen.add(pid)
            send(pid, signal.SIGKILL)
        time.sleep(0.05)


def _end_measuring(root: PathLike, boot: str, dry: bool) -> List[Dict[str, Any]]:
    """End the process that measures a boot although nobody waits for it any more."""
    path = boots.folder(root, boot) / "measuring.json"
    value = boots.read_json(path)
    if not value:
        return []
    pid, started = value.get("pid"), value.get("start")
    out: List[Dict[str, Any]] = []
    if isinstance(pid, int) and pid != os.getpid() and alive(pid, started):
        out.append({"boot": boot, "pid": pid, "command": command_of(pid)})
        if dry:
            return out
        below = [(child, (process_stat(child) or ("", 0, 0, 0))[3]) for child in descendants(pid)]
        send(pid, signal.SIGTERM)
        end = time.monotonic() + 2
        while alive(pid, started) and time.monotonic() < end:
            time.sleep(0.02)
        for number, ticks in [(pid, started), *below]:
            if alive(number, ticks):
                send(number, signal.SIGKILL)
    if not dry:
        path.unlink()
    return out
