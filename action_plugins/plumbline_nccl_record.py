"""Write NCCL proofs and sweeps into the results tree. Documentation: library/plumbline_nccl_record.py."""

from __future__ import annotations

from ansible.utils.display import Display
from plumbline.analysis import nccl_records, nccl_report
from plumbline.analysis.action import PlumblineAction


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "results_root": {"type": "path", "required": True},
        "proof": {"type": "dict"},
        "logs": {"type": "dict", "default": {}},
        "sweep": {"type": "str"},
        "records": {"type": "list", "elements": "dict", "default": []},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        dry = bool(self._task.check_mode)
        written: list[str] = []
        said: list[str] = []
        if arguments["proof"]:
            written += nccl_records.write_proof(arguments["results_root"], arguments["proof"], arguments["logs"], dry)
            said += nccl_report.proof_words(arguments["proof"])
        if arguments["sweep"]:
            done = nccl_records.write_sweep(arguments["results_root"], arguments["sweep"], arguments["records"], dry)
            written += done["written"]
            said += done["conclusions"]
        # What this play is run for: not to be hidden with the tasks that went well.
        for line in said:
            Display().display(f"{task_vars.get('inventory_hostname', '')}: {line}")
        return {"changed": bool(written), "written": written, "said": said}
