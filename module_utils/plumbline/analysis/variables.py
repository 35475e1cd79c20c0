"""The variables that a command line may set with -e, and those that somebody meant.

Ansible takes any name without a word: `-e experimnt=x` would run another experiment, `-e targt=x` would stop all hosts.
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..errors import PlumblineError, nearest, unknown_name
from ..nccl.profile import DELIVERIES
from . import project

# Of the playbooks; README.md says which takes which.
SHORT = (
    "accept", "accept_length", "allow_reboot", "bad", "baseline_step_ms", "baseline_tok_s", "blocks", "concurrency",
    "confidence", "delivery", "description", "draft_tokens", "experiment", "full", "good", "margin", "modes", "now",
    "overwrite", "plan_only", "profile", "profiles", "prove", "results_root", "rollback", "run", "simulated_first_port",
    "simulated_root", "simulator_advance", "simulator_physics", "state", "states_folder", "step_ms", "steps", "strict",
    "sweep", "sweep_name", "target", "tok_s", "variant", "verify", "verify_tests", "was", "workload",
)
YES_OR_NO = ("allow_reboot", "full", "overwrite", "plan_only", "prove", "rollback", "strict", "sweep", "verify")
# As Ansible reads them; its filter `bool` takes every other word for false.
_BOOLEAN_WORDS = {"y", "yes", "on", "1", "true", "t", "1.0", "n", "no", "off", "0", "false", "f", "0.0"}
CATALOGUES = ("plumbline_models", "plumbline_nccl_profiles", "plumbline_variants", "plumbline_workloads")


def of_roles(folder: Path = project.ROOT / "roles") -> set[str]:
    """The documented variables of all roles."""
    found: set[str] = set()
    for file in folder.glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(file.read_text())["argument_specs"].values():
            found.update(entry.get("options") or {})
    return found


def fraction(name: str, value: Any) -> float:
    """``value`` as a number between 0 and 1, or PlumblineError naming ``-e name``."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1:
        raise PlumblineError(f"{name} is not a fraction", f"-e {name}", value, "a number between 0 and 1, such as "
                             + ("0.02" if name == "margin" else "0.99"))
    return number


def yes_or_no(name: str, value: Any) -> None:
    """Raise PlumblineError naming ``-e name`` unless ``value`` is a boolean or a word for one."""
    if str(value).strip().lower() not in _BOOLEAN_WORDS:
        raise PlumblineError(f"{name} is neither true nor false", f"-e {name}", value, "true or false")


def check(given: Mapping[str, Any], where: str = "the command line, -e") -> None:
    """Refuse names that are like a variable of Plumbline's and none, and values that a variable does not take; a lab's
    own names are its own affair.

    Raises one PlumblineError that lists all the names.
    """
    for name in ("margin", "confidence"):
        if name in given:
            fraction(name, given[name])
    for name in YES_OR_NO:
        if name in given:
            yes_or_no(name, given[name])
    if "delivery" in given and given["delivery"] not in DELIVERIES:
        raise unknown_name("delivery", str(given["delivery"]), DELIVERIES, "-e delivery")
    if "simulator_physics" in given:
        project.physics_file(str(given["simulator_physics"]))
    unknown = sorted(name for name in set(given) - set(SHORT) if not name.startswith("ansible_"))
    if not unknown:
        return
    known = {*SHORT, *CATALOGUES, *(f"{name}_lab" for name in CATALOGUES), *of_roles()}
    faults = [_fault(name, meant, where) for name in unknown if name not in known and (meant := _meant(name, known))]
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise PlumblineError("\n".join(map(str, faults)))


def _meant(name: str, known: set[str]) -> str | None:
    """What a name abbreviates or misspells, or None."""
    plain = name.replace("-", "_")
    if plain in known:
        return plain
    longer = sorted(k for k in SHORT if len(plain) > 2 and k.startswith(plain))
    return longer[0] if longer else nearest(plain, known, 0.8)


def _fault(name: str, meant: str, where: str) -> PlumblineError:
    return PlumblineError(f"no variable of Plumbline's is called {name!r}", where, name,
                          "the variables in README.md and in the READMEs of the roles",
                          f"did you mean {meant!r}? A variable of your own needs a name that is less like it")
