"""Build SGLang's small kernels side by side, before the first server would build them one after the other.

<build>/venv/bin/python kernels.py HEADS_KV_PER_RANK
"""

from __future__ import annotations

import subprocess
import sys

HEAD_BYTES = 128 * 2


def calls(heads: int) -> dict[str, str]:
    """Name -> Python that builds it: those that a Llama of head size 128 in bfloat16 needs."""
    jit = "import torch; from sglang.jit_kernel import"
    return {
        "activation": f"{jit} activation as m; m._jit_activation_module(torch.bfloat16)",
        "rope": f"{jit} rope as m; m._jit_fused_rope_module(True, 128, torch.bfloat16)",
        "rotary": f"{jit} rope as m; m._jit_rotary_embedding_module()",
        "kvcache": f"{jit} kvcache as m; m._jit_kvcache_module({heads * HEAD_BYTES})",
        "clamp64": f"{jit} clamp_position as m; m._jit_clamp_position_module(torch.int64)",
        "clamp32": f"{jit} clamp_position as m; m._jit_clamp_position_module(torch.int32)",
    }


def main() -> None:
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for name, text in calls(int(sys.argv[1])).items()
    }
    for name, process in running.items():
        said, _ = process.communicate()
        print(f"kernel {name}: {'built' if process.returncode == 0 else 'NOT built: ' + said[-300:]}")


if __name__ == "__main__":
    main()
