"""The ranked rules of the failure classifier: what each class looks like in a log, what it means, what mends it.

`RULES` is in the order of precedence: causes that name themselves first. `WEAK` only counts where no rule matches and
no traceback shows an exception of its own. Patterns are searched in lines without their indentation."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Match, NamedTuple, Optional, Pattern, Sequence, Tuple

Facts = Callable[[Match[str], Sequence[str]], Dict[str, Any]]


class Rule(NamedTuple):
    """One class of failure.

    ``phase`` where the class itself tells it; ``not_in`` matches lines that look alike and are harmless; ``facts``
    reads more from the first matching line and the whole log; ``least`` is how many lines it takes."""

    cls: str
    pattern: Pattern[str]
    detail: str
    remedy: str
    phase: Optional[str] = None
    not_in: Optional[Pattern[str]] = None
    facts: Optional[Facts] = None
    least: int = 1


def _rule(cls: str, patterns: Sequence[str], detail: str, remedy: str, **more: Any) -> Rule:
    return Rule(cls, re.compile("|".join(patterns)), detail, remedy, **more)


def _argument(found: Match[str], _lines: Sequence[str]) -> Dict[str, Any]:
    named = re.search(r"(?:ambiguous option:|unrecognized arguments:|argument|required:) (-{1,2}[\w-]+)", found.string)
    could = re.search(r"could match (.+)$", found.string)
    return {
        "option": named.group(1) if named else None,
        "exit_code": 2,
        "candidates": [name.strip() for name in could.group(1).split(",")] if could else [],
    }


def _nccl_token(found: Match[str], lines: Sequence[str]) -> Dict[str, Any]:
    quoted = re.search(r'nrecognized (?:element|prefix) token "([^"]*)"(?: when parsing "([^"]*)")?', found.string)
    token, value = (quoted.group(1), quoted.group(2)) if quoted else (None, None)
    out: Dict[str, Any] = {"token": token, "value": value}
    for line in lines:
        given = re.search(r"\b(NCCL_\w+) set by environment to (.+?)\.?$", line)
        if given and (value in (None, given.group(2)) or token in re.split(r"[,;:^]", given.group(2))):
            out["variable"] = given.group(1)
            break
    return out


def _driver_cuda(found: Match[str], _lines: Sequence[str]) -> Dict[str, Any]:
    number = re.search(r"found version (\d+)", found.string)
    return {"found_cuda": f"{int(number.group(1)) // 1000}.{int(number.group(1)) % 1000 // 10}" if number else None}


def _driver_versions(_found: Match[str], lines: Sequence[str]) -> Dict[str, Any]:
    text = "\n".join(lines)
    client = re.search(r"client has (?:the )?version:? ([\d.]+\d)", text) or re.search(
        r"NVML library version: ([\d.]+\d)", text
    )
    kernel = re.search(r"kernel (?:module|driver) has (?:the )?version:? ([\d.]+\d)", text)
    return {
        "client_version": client.group(1) if client else None,
        "kernel_version": kernel.group(1) if kernel else None,
    }


def _oom(found: Match[str], _lines: Sequence[str]) -> Dict[str, Any]:
    tried = re.search(r"Tried to allocate ([\d.]+ \w+)", found.string)
    gpu = re.search(r"GPU (\d+) has a total capacity of ([\d.]+ \w+)(?: of which ([\d.]+ \w+) is free)?", found.string)
    return {
        "tried": tried.group(1) if tried else None,
        "gpu": int(gpu.group(1)) if gpu else None,
        "capacity": gpu.group(2) if gpu else None,
        "free": gpu.group(3) if gpu else None,
    }


def _port(found: Match[str], _lines: Sequence[str]) -> Dict[str, Any]:
    port = re.search(r"\('[^']*', (\d+)|dist_init_port=(\d+)|at (\d+) is not available|[Pp]ort:? (\d+)", found.string)
    return {"port": int(next(p for p in port.groups() if p)) if port else None}


XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


def _xid(found: Match[str], lines: Sequence[str]) -> Dict[str, Any]:
    every = [m for m in map(XID.search, lines) if m]
    pid = re.search(r"pid='?(\d+)", found.string)
    name = re.search(r"name=([^,\s]+)", found.string)
    return {
        "xid": int(every[0].group(2)) if every else None,
        "gpu": every[0].group(1) if every else None,
        "pid": int(pid.group(1)) if pid else None,
        "process": name.group(1) if name else None,
        "xids": sorted({int(m.group(2)) for m in every}),
    }


def _named(*names: str) -> Facts:
    """Facts that are named groups of the rule's own pattern; digits become numbers."""

    def facts(found: Match[str], _lines: Sequence[str]) -> Dict[str, Any]:
        groups = {name: found.groupdict()[name] for name in names}
        return {name: int(text) if text and text.isdigit() else text for name, text in groups.items()}

    return facts


# Files that a model may lack: SGLang says so and goes on.
_OPTIONAL_FILE = re.compile(r"generation[ _]config|Proceeding without|chat[ _]template|processor_config", re.I)
# What stands before an exception's name at the end of a traceback: nothing, or the modules it is from.
_RAISED = r"^(?:\w+\.)*"

RULES: Tuple[Rule, ...] = (
    _rule(
        "bad_arguments",
        [
            r"^\S.*: error: (?:ambiguous option|unrecognized arguments|argument |invalid choice)",
            r"^\S.*: error: the following arguments are required",
        ],
        "the server's argument parser refused an argument",
        "use the option that this SGLang version has; --help lists them",
        phase="arguments",
        facts=_argument,
    ),
    _rule(
        "not_enough_memory",
        [r"Not enough memory\. Please try to increase --mem-fraction-static"],
        "no memory is left for the KV cache after the weights",
        "raise mem_fraction_static (the opposite of an OOM in graph capture)",
        phase="kv_pool",
    ),
    _rule(
        "nccl_bad_config",
        [r"[Uu]nrecognized (?:element|prefix) token", r"All entries except the first"],
        "NCCL refused the value of a variable",
        "correct the NCCL variable; NCCL 2.26 and newer stop at an unknown token",
        phase="distributed_init",
        facts=_nccl_token,
    ),
    _rule(
        "nccl_shm_too_small",
        [r"Error while creating shared memory segment /dev/shm/nccl-"],
        "NCCL could not make its shared memory segment",
        "enlarge /dev/shm (container: --shm-size or --ipc=host)",
        phase="distributed_init",
    ),
    _rule(
        "sm120_unsupported",
        [
            r"no kernel image is available",
            r"with CUDA capability sm_\d+ is not compatible",
            r"Value 'sm_\d+a?' is not defined",
            r"No supported CUDA architectures found",
            r"Unsupported architecture",
        ],
        "a build has no kernels for this GPU's architecture",
        "use a build of torch, sglang-kernel and FlashInfer for this architecture",
    ),
    _rule(
        "driver_too_old",
        [r"The NVIDIA driver on your system is too old", r"\bError 803\b", r"CUDA driver version is insufficient"],
        "the NVIDIA driver is older than this build's CUDA needs",
        "update the driver (CUDA 13 needs 580 or newer) or use a build for an older CUDA",
        facts=_driver_cuda,
    ),
    _rule(
        "driver_mismatch",
        [r"Driver/library version mismatch", r"NVRM: API mismatch"],
        "the loaded kernel module and the user-space libraries of the driver differ in version",
        "reboot, or (in a container) install the user-space libraries of exactly the kernel module's version",
        facts=_driver_versions,
    ),
    _rule(
        "cuda_oom",
        [
            r"CUDA out of memory",
            r"torch\.OutOfMemoryError",
            r"torch\.cuda\.OutOfMemoryError",
            r"CUDA error: out of memory",
            r"cudaErrorMemoryAllocation",
        ],
        "a GPU ran out of memory",
        "lower mem_fraction_static or the captured batch sizes",
        facts=_oom,
    ),
    _rule(
        "port_in_use",
        [
            r"error while attempting to bind on address",
            r"Port is already in use",
            r"is not available in \d+ seconds",
            r"[Aa]ddress already in use",
        ],
        "a port that the server needs is taken",
        "stop the process that owns the port, or give another port",
        facts=_port,
    ),
    _rule(
        "gpu_xid",
        [r"NVRM: Xid \("],
        "the driver reported a GPU error (Xid)",
        "look the Xid up in NVIDIA's catalogue; most need a GPU reset or a reboot",
        facts=_xid,
    ),
    _rule(
        "weights_missing",
        [
            r"Cannot find any model weights with",
            r"does not appear to have a file named",
            r"No safetensors (?:weights|files) found",
            r"No such file or directory: '[^']*(?:\.safetensors|\.bin|config\.json)'",
            r"Error no file named .* found in directory",
        ],
        "the model's directory lacks its weights or its configuration",
        "place the model's files and check their digests",
        phase="weight_load",
        not_in=_OPTIONAL_FILE,
    ),
    _rule(
        "unbalanced",
        [r"The memory capacity is unbalanced"],
        "the GPUs have different amounts of free memory",
        "end the stray process that holds a GPU's memory",
        phase="distributed_init",
    ),
    _rule(
        "nccl_error",
        [
            r"NCCL error",
            r"DistBackendError",
            r"nccl(?:Internal|UnhandledCuda|System|Remote)Error",
            r"Watchdog caught collective operation timeout",
        ],
        "a collective operation of NCCL failed",
        "read NCCL's own lines with NCCL_DEBUG=WARN; check P2P, IOMMU and /dev/shm",
    ),
    _rule(
        "watchdog_timeout",
        [r"[Ww]atchdog timeout \(self\.watchdog_timeout(?:=(?P<timeout_s>\d+))?"],
        "a forward pass did not end in time: the scheduler hangs",
        "read the stack dump; if NCCL hangs over PCIe, NCCL_P2P_DISABLE=1 shows it",
        phase="serving",
        facts=_named("timeout_s"),
    ),
    _rule(
        "host_oom",
        [r"Out of memory: Killed process \d+", r"oom-kill:", r"invoked oom-killer", r"Memory cgroup out of memory"],
        "the kernel killed a process for want of host memory",
        "free host memory, or load with fewer threads",
    ),
    _rule(
        "disk_full",
        [r"No space left on device", r"Disk quota exceeded"],
        "a file system is full",
        "free space where the line says so",
    ),
    _rule(
        "too_many_files",
        [r"Too many open files"],
        "the limit of open files was reached",
        "raise LimitNOFILE (ulimit -n) of the server",
    ),
    _rule(
        "hub_unreachable",
        [
            r"We couldn't connect to '?https?://",
            r"LocalEntryNotFoundError",
            r"Repository Not Found for url",
            r"Cannot access gated repo",
            r"is not a local folder and is not a valid model identifier",
            r"Repo id must be in the form",
            r"offline mode is enabled",
        ],
        "the model is neither a local directory nor to be had from the hub",
        "place the model locally and give its directory",
        phase="starting",
    ),
    _rule(
        "no_gpu",
        [
            r"No CUDA GPUs are available",
            r"Found no NVIDIA driver on your system",
            r"No accelerator \(.*\) is available",
            r"NVML Shared Library Not Found",
            r"Failed to initialize NVML: (?!Driver/library)",
            r"CUDA-capable device\(s\) is/are busy",
            r"no CUDA-capable device is detected",
            r"invalid device ordinal",
        ],
        "no (free) GPU is to be seen",
        "check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's devices",
    ),
    _rule(
        "version_too_old",
        [r"is installed with version \S+, which is less than the minimum required version"],
        "a dependency is older than SGLang requires",
        "rebuild from a lock that pins the version that SGLang asks for",
        phase="starting",
    ),
    _rule(
        "unsupported_model",
        [
            r"Model architectures? \[.*\] (?:is|are) not supported",
            r"not recognize this architecture",
            r"Unsupported (?:model )?architectures?: ",
            r"has no SGLang implementation",
            r"Unknown quantization method",
        ],
        "this SGLang version cannot serve this model",
        "use a version that knows the model's architecture and quantisation",
    ),
    _rule(
        "cuda_error",
        [
            r"CUDA error: (?!out of memory|no kernel image)",
            r"CUDA_ERROR_",
            r"cudaErrorIllegalAddress",
            r"CUBLAS_STATUS_(?!SUCCESS)",
            r"CUDNN_STATUS_(?!SUCCESS)",
            r"torch\.AcceleratorError",
        ],
        "a CUDA call failed",
        "look for an Xid of the same time in the kernel log; CUDA_LAUNCH_BLOCKING=1 finds the kernel",
    ),
    _rule(
        "library_missing",
        [
            _RAISED
            + r"(?:ImportError|OSError): .*(?:cannot open shared object file|undefined symbol|GLIBC\w*_\S+ not found)"
        ],
        "a shared library is missing or does not fit",
        "rebuild: the build's binary packages do not belong together",
    ),
    _rule(
        "module_missing",
        [_RAISED + r"(?:ModuleNotFoundError|ImportError): (?P<what>.*)"],
        "a Python module is missing in the build",
        "rebuild from a lock that has the module",
        facts=_named("what"),
    ),
    _rule(
        "crash_signal",
        [
            r"Fatal Python error: (?P<what>Segmentation fault|Aborted|Bus error|Illegal instruction)",
            r"\(core dumped\)",
            r"\bsegfault at\b",
        ],
        "a process was ended by a fault in native code",
        "look at the stack under the line",
        facts=_named("what"),
    ),
)

# Only of weight where nothing else is found, in this order.
WEAK: Tuple[Rule, ...] = (
    _rule(
        "scheduler_died",
        [
            r"scheduler died during initialization",
            r"Rank \d+ scheduler is dead",
            r"Subprocess scheduler\w* \(pid=\d+\) (?:crashed|exited|died)",
        ],
        "a scheduler process died and left no cause in the log",
        "exit code -9: look for the OOM killer in the kernel log (dmesg -T | grep -i oom)",
    ),
    _rule(
        "subprocess_died",
        [r"Subprocess \w+ \(pid=\d+\) (?:crashed|exited|died)"],
        "a process of the server died and left no cause in the log",
        "look into the kernel log",
    ),
    _rule(
        "warmup_failed",
        [r"Initialization failed\. warmup error"],
        "the server came up but could not answer its own first request",
        "read the traceback under the line",
        phase="warm_up",
    ),
    _rule(
        "health_check_failed",
        [r"Health check failed\. Server couldn't get a response from detokenizer"],
        "the server does not answer its own health check any more",
        "three in a row mean a hang: restart; a single one happens under a long prefill",
        phase="serving",
        least=3,
    ),
    _rule(
        "secondary",
        [
            r"could finish the model loading, but there are other ranks",
            r"Received sigquit from a child",
            r"SIGQUIT received\.",
        ],
        "another rank or process failed first; this log does not show why",
        "look at the other ranks' logs and the kernel log",
    ),
)
