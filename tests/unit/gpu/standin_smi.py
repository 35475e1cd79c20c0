#!/usr/bin/env python3
"""In place of nvidia-smi on a machine without a GPU: prints what STANDIN (a JSON file) says, in nvidia-smi's formats.

STANDIN: {gpus: n, row: [cells of --query-gpu], counters: [us of SW power capping at each call], apps: [[bus, pid,
name, mib]], memory: [MiB], old: bool}.
"""

import json
import os
import sys
import time

path = os.environ["STANDIN"]
with open(path) as f:
    say = json.load(f)
argv = sys.argv[1:]
if "-q" in argv:
    calls = say.setdefault("calls", 0)
    say["calls"] += 1
    with open(path, "w") as f:
        json.dump(say, f)
    print("==============NVSMI LOG==============\n\nDriver Version : 580.95.05\nCUDA Version : 13.0\n")
    for gpu in range(say["gpus"]):
        print(f"GPU 00000000:0{gpu + 1}:00.0\n    Performance State                   : P0")
        if say.get("counters"):
            value = say["counters"][min(calls, len(say["counters"]) - 1)]
            print("    Clocks Event Reasons Counters")
            print(f"        SW Power Capping                    : {value} us")
            print("        HW Thermal Slowdown                 : 70 us")
elif argv and argv[0].startswith("--query-compute-apps"):
    print("gpu_bus_id, pid, process_name, used_gpu_memory [MiB]")
    for app in say.get("apps", []):
        print(", ".join(map(str, app)))
elif argv and argv[0].startswith("--query-gpu="):
    fields = argv[0].split("=", 1)[1].split(",")
    if say.get("old") and any(f.startswith("clocks_event") for f in fields):
        print('Field "clocks_event_reasons.active" is not a valid field to query.')
        sys.exit(2)
    if fields == ["index", "memory.used"]:
        for gpu, mib in enumerate(say.get("memory", [])):
            print(f"{gpu}, {mib}")
        sys.exit(0)
    print(", ".join(fields), flush=True)
    while True:
        for gpu in range(say["gpus"]):
            print(", ".join([str(gpu), *say["row"]]), flush=True)
        time.sleep(float(argv[argv.index("-lms") + 1]) / 1000)
else:
    sys.exit(6)
