"""Ask an installed SGLang which server options it has, instead of knowing it by heart.

A build's own Python imports SGLang's argument parser and describes each option. Options are then validated by
equality against that list: argparse takes abbreviations, so a removed flag could silently mean a longer one.
"""

from __future__ import annotations

from typing import Any, Dict, List

# Run by the build's Python as `python -c SCRIPT FILE`: the answer goes to FILE, since importing SGLang may print.
SCRIPT = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
options = {}
for action in parser._actions:
    takes_value = action.nargs != 0
    choices = None
    if action.choices is not None and takes_value:
        choices = [str(choice) for choice in action.choices]
        if isinstance(action.choices, (set, frozenset)):
            choices.sort()  # a set has another order in each process
    for name in action.option_strings:
        options[name] = {
            "takes_value": takes_value,
            "choices": choices,
            "nargs": action.nargs if takes_value else None,
            "dest": action.dest,
            "deprecated": "deprecated" in type(action).__name__.lower(),
        }
with open(sys.argv[1], "w") as f:
    json.dump(options, f)
"""


def argv(python: str, answer: str) -> List[str]:
    """The command that writes the option list of ``python``'s SGLang to the file ``answer``."""
    return [python, "-c", SCRIPT, answer]


def tidy(options: Dict[str, Any]) -> Dict[str, Any]:
    """The answer in a fixed order, as it stands in a manifest:
    ``{"--flag": {takes_value: bool, choices: [str]|null, nargs: null|int|"?"|"*"|"+", dest: str, deprecated:
    bool}}``."""
    return {name: options[name] for name in sorted(options)}
