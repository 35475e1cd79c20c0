"""What the documentation of a module or an action says of its options is what the code takes."""
from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import ansible.module_utils
import pytest
import yaml
from plumbline.analysis.action import PlumblineAction

ROOT = Path(__file__).parents[3]
SHOWN = ("type", "required", "default", "choices", "elements")


class SpecError(Exception):
    """Carries the argument spec out of a module's main()."""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"documented_{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def core_as_on_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules import the core from where Ansible puts it."""
    monkeypatch.setattr(ansible.module_utils, "__path__", [*ansible.module_utils.__path__, str(ROOT / "module_utils")])


def taken(name: str) -> dict[str, Any]:
    """The options that the code takes: of the module, else of the action, which then does the work alone."""
    module = load(ROOT / "library" / f"{name}.py")
    if hasattr(module, "main"):
        def catch(argument_spec: dict, **_: Any) -> None:
            raise SpecError(argument_spec)
        module.AnsibleModule = catch  # type: ignore[attr-defined]
        with pytest.raises(SpecError) as caught:
            module.main()
        return caught.value.args[0]
    action = load(ROOT / "action_plugins" / f"{name}.py").ActionModule
    assert issubclass(action, PlumblineAction)
    return action.ARGUMENTS


def differences(taken: dict[str, Any], said: dict[str, Any], at: str = "") -> list[str]:
    found = [f"{at}{name}: taken, and not documented" for name in sorted(set(taken) - set(said))]
    found += [f"{at}{name}: documented, and not taken" for name in sorted(set(said) - set(taken))]
    for name in sorted(set(taken) & set(said)):
        for key in SHOWN:
            usual = {"type": "str", "required": False}.get(key)
            ours, theirs = taken[name].get(key, usual), said[name].get(key, usual)
            if ours != theirs and not (key == "default" and isinstance(ours, (list, dict, str)) and not ours
                                       and theirs is None):
                found.append(f"{at}{name}, {key}: {ours!r} is taken, {theirs!r} is documented")
        inner = taken[name].get("options")
        if inner:
            found += differences(inner, said[name].get("suboptions") or {}, f"{at}{name}.")
    return found


def test_each_is_in_the_architecture() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().split("## Modules")[1].split("\n## ")[0]
    named = re.findall(r"(?m)^\| (`plumbline_.*?) \| (action|both|module) \|", table)
    said = {name: kind for names, kind in named for name in re.findall(r"`(\w+)`", names)}
    for path in (ROOT / "library").glob("*.py"):
        action = (ROOT / "action_plugins" / path.name).exists()
        module = "def main(" in path.read_text()
        assert said.pop(path.stem) == {(True, False): "action", (True, True): "both"}.get((action, module), "module")
    assert not said


def test_every_package_of_the_core_is_in_the_architecture() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().split("| package |")[1].split("\n\n")[0]
    named = re.findall(r"`(?:analysis/)?(\w+)/`", table)
    packages = {p.parent.name for p in (ROOT / "module_utils" / "plumbline").glob("**/__init__.py")} - {"plumbline"}
    assert packages <= set(named)


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "library").glob("*.py")))
def test_options_are_documented_as_they_are_taken(name: str) -> None:
    said = yaml.safe_load(load(ROOT / "library" / f"{name}.py").DOCUMENTATION).get("options") or {}
    assert differences(taken(name), said) == []


MAY_HOLD_SECRETS = {"argv", "environment", "files", "server_args"}


@pytest.mark.parametrize("path", sorted((ROOT / "library").glob("*.py")), ids=lambda p: p.stem)
def test_arguments_that_may_hold_secrets_are_shown_without_them(path: Path) -> None:
    """Ansible shows what a module was given at -vvv, unless the module says what to show."""
    text = path.read_text()
    if "def main(" not in text or not set(taken(path.stem)) & MAY_HOLD_SECRETS:
        return
    ends = len(re.findall(r"module\.(?:exit|fail)_json\(", text))
    assert text.count("invocation=shown") == ends > 0
