"""Names that -e may set: those that the playbooks and roles read, no misspelt ones, and a lab's own."""
from __future__ import annotations

import re

import pytest
from ansible.vars.reserved import is_reserved_name
from plumbline.analysis import project, variables
from plumbline.errors import PlumblineError

ROOT = project.ROOT
PLAYBOOKS = sorted((ROOT / "playbooks").glob("**/*.yml"))


@pytest.mark.parametrize(("name", "meant"), [
    ("experimnt", "experiment"), ("targt", "target"), ("plan-only", "plan_only"), ("exp", "experiment"),
    ("result_root", "results_root"), ("allow_rebot", "allow_reboot"), ("sglang_build_lok", "sglang_build_lock"),
    ("plumbline_workload_lab", "plumbline_workloads_lab")])
def test_a_misspelt_name_is_refused(name: str, meant: str) -> None:
    with pytest.raises(PlumblineError) as error:
        variables.check({name: "x", "experiment": "demo"})
    assert f"did you mean {meant!r}" in str(error.value)
    assert error.value.found == name


def test_all_are_named_at_once() -> None:
    with pytest.raises(PlumblineError, match=r"(?s)'experimnt'.*'targt'"):
        variables.check({"targt": "x", "experimnt": "y"})


@pytest.mark.parametrize("name", ["ansible_user", "rack", "our_proxy", "gpu_work", "sglang_server_args",
                                  "plumbline_variants_lab", "nccl_profile_name"])
def test_other_names_pass(name: str) -> None:
    variables.check({name: "x"})


@pytest.mark.parametrize("value", ["2%", "1.5", "", None])
def test_a_margin_is_looked_at_before_anything_runs(value: object) -> None:
    with pytest.raises(PlumblineError, match="-e margin"):
        variables.check({"margin": value})


@pytest.mark.parametrize("value", ["ture", "yess", "", None, "2"])
def test_a_misspelt_boolean_does_not_mean_false(value: object) -> None:
    with pytest.raises(PlumblineError, match=r"-e strict; .*true or false"):
        variables.check({"strict": value})
    for word in ("true", "False", "yes", "no", "1", True, False):
        variables.check({"strict": word})


@pytest.mark.parametrize(("name", "value", "meant"), [("delivery", "envfile", "env_file"),
                                                      ("simulator_physics", "story-aa", "story-a")])
def test_a_name_of_no_file_and_no_way_is_refused_at_once(name: str, value: str, meant: str) -> None:
    with pytest.raises(PlumblineError, match=rf"-e {name}.*did you mean '{meant}'"):
        variables.check({name: value})
    variables.check({name: meant})


def test_every_boolean_of_the_playbooks_is_one() -> None:
    text = "".join(p.read_text() for folder in ("playbooks", "roles") for p in (ROOT / folder).rglob("*.yml"))
    used = set(re.findall(r"\b(\w+) \| default\((?:true|false)\) \| bool", text)) & set(variables.SHORT)
    assert used == set(variables.YES_OR_NO)


def test_every_name_of_the_readme_is_known() -> None:
    table = (ROOT / "README.md").read_text().split("| playbook |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z_]+)(?:=|`)", row.split("|")[3])}
    assert len(named) > 25
    assert named <= set(variables.SHORT)


@pytest.mark.parametrize("path", PLAYBOOKS, ids=[p.stem for p in PLAYBOOKS])
def test_every_name_that_a_playbook_says_how_to_set_is_known(path) -> None:
    text = path.read_text() + "".join(f.read_text() for f in (ROOT / "roles").glob("*/defaults/main.yml"))
    assert set(re.findall(r"-e ([a-z_]+)=", text)) <= {*variables.SHORT, *variables.of_roles()}


def test_of_the_names_that_ansible_warns_of_there_is_one_and_it_is_explained() -> None:
    names = {*variables.SHORT, *variables.CATALOGUES, *variables.of_roles()}
    assert [name for name in sorted(names) if is_reserved_name(name)] == ["now"]
    for path in ("playbooks/compare.yml", "docs/states.md"):
        assert "Found variable using reserved name 'now'" in (ROOT / path).read_text()


@pytest.mark.parametrize("path", [p for p in PLAYBOOKS if p.parent.name == "playbooks"], ids=lambda p: p.stem)
def test_every_playbook_looks_at_the_command_line_first(path) -> None:
    text = path.read_text()
    first = re.search(r"\n {4}- name: .*\n {6}([\w.]+):|import_playbook: (\w+)\.yml", text)
    assert first is not None
    assert first.group(1) == "plumbline_command_line" or first.group(2) == "matrix"
