"""Each delivery, given to real spawned processes that read their environment as NCCL does, and proven from what they
log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plumbline.errors import PlumblineError
from plumbline.nccl import delivery, proof, sources

STANDIN = Path(__file__).parent / "standin.py"
STORY = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}


class Host:
    """A root, a home, a place for /etc/nccl.conf, and a server that is started with exactly the environment given."""

    def __init__(self, base: Path) -> None:
        self.root, self.home, self.etc = base / "root", base / "home", base / "fs" / "etc" / "nccl.conf"
        self.home.mkdir()
        self.etc.parent.mkdir(parents=True)
        self.base = base
        self.ambient = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        self.runs = 0

    def deliver(self, how, variables=STORY, name="p"):
        conf = self.home / ".nccl.conf"
        kept = sources.known.parse_conf(conf.read_text()) if conf.exists() else {}
        planned = delivery.plan(self.root, name, variables, how, kept, python_path=self.ambient.get("PYTHONPATH", ""))
        done = delivery.apply(self.root, planned)
        self.given = {"profile": name, "delivery": how, "variables": variables, **planned}
        return done

    def found(self, python=sys.executable):
        return sources.collect(
            nccl_version="2.30.7",
            environment=self.ambient,
            delivered=self.given,
            python=python,
            home=str(self.home),
            root=str(self.base / "fs"),
        )

    def start(self, *options, environment=None):
        self.runs += 1
        logs = self.base / f"logs{self.runs}"
        logs.mkdir()
        env = {
            **self.ambient,
            **self.given["environment"],
            **proof.debug_environment(str(logs)),
            **(environment or {}),
        }
        argv = [sys.executable, str(STANDIN), "--ranks", "2", "--etc", str(self.etc), *options]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False), logs

    def prove(self, *options, python=sys.executable, **given):
        done, logs = self.start(*options, **given)
        texts = [p.read_text() for p in sorted(logs.glob("nccl.*.log"))]
        return proof.prove(
            profile=self.given["profile"],
            asked=self.given["variables"],
            delivery=self.given["delivery"],
            logs=texts,
            expected_ranks=2,
            sources=self.found(python)["sources"],
        ), done


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.mark.parametrize("how", ["env_file", "sitecustomize", "nccl_conf"])
def test_each_delivery_reaches_both_spawned_workers(host, how):
    host.deliver(how)
    document, done = host.prove()
    assert done.returncode == 0, done.stderr
    assert document["profile_in_force"] is True, document["reasons"]
    assert {(v["name"], v["value"]) for v in document["ranks"][1]["taken"]} == set(STORY.items())
    assert {v["source"] for v in document["ranks"][1]["taken"]} == {f"profile p by {how}"}


def test_switching_delivery_removes_the_former_one_and_a_second_run_changes_nothing(host):
    assert host.deliver("sitecustomize")["changed"]
    assert not host.deliver("sitecustomize")["changed"]
    done = host.deliver("nccl_conf")
    assert done["removed"] == [str(host.root / "nccl" / "p-sitecustomize")]
    assert [p.name for p in (host.root / "nccl").iterdir()] == ["p-nccl_conf"]
    done = host.deliver("env_file", {}, "none")
    assert done["changed"] and list((host.root / "nccl").iterdir()) == []
    assert not host.deliver("env_file", {}, "none")["changed"]


def test_a_folder_that_is_not_ours_is_left_alone(host):
    theirs = host.root / "nccl" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "nccl.conf").write_text("NCCL_PROTO=LL\n")
    host.deliver("nccl_conf")
    host.deliver("env_file")
    assert (theirs / "nccl.conf").exists()


def test_check_mode_says_the_same_and_touches_nothing(host):
    planned = delivery.plan(host.root, "p", STORY, "sitecustomize")
    said = delivery.apply(host.root, planned, check=True)
    assert not host.root.exists()
    assert delivery.apply(host.root, planned) == said
    edited = host.root / "nccl" / "p-sitecustomize" / "profile.json"
    edited.write_text("{}")
    again = delivery.apply(host.root, planned, check=True)
    assert (again["written"], edited.read_text()) == ([str(edited)], "{}")


def test_unknown_delivery_and_no_variables(host):
    with pytest.raises(PlumblineError, match="env_file, sitecustomize, nccl_conf"):
        delivery.plan(host.root, "p", STORY, "systemd")
    assert delivery.plan(host.root, "none", {}, "nccl_conf") == {"directory": None, "files": {}, "environment": {}}


# sitecustomize


def python(host, code="pass", **environment):
    env = {**host.ambient, **host.given["environment"], **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30, check=False
    )


SHOW = (
    "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('NCCL_', 'SHADOWED'))}))"
)


def test_the_sitecustomize_sets_only_what_is_not_set_and_leaves_proof(host):
    host.deliver("sitecustomize")
    ran = host.base / "ran"
    done = python(host, SHOW, NCCL_PROTO="Simple", PLUMBLINE_NCCL_RAN_DIR=str(ran))
    assert json.loads(done.stdout) == {**STORY, "NCCL_PROTO": "Simple"}
    (left,) = [json.loads(p.read_text()) for p in ran.glob("*.json")]
    assert left["kept"] == {"NCCL_PROTO": "Simple"}
    assert set(left["set"]) == set(STORY) - {"NCCL_PROTO"}
    assert left["profile"] == "p" and left["error"] is None
    assert Path(left["file"]).parent == Path(host.given["directory"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"variables": 3}',
        '{"variables": {"A=B": "x"}}',
        '{"variables": {"A": 3}}',
        "\udcff",
        '{"variables": {"": "x"}}',
    ],
)
def test_the_interpreter_starts_with_malformed_data(host, text):
    host.deliver("sitecustomize")
    data = Path(host.given["directory"]) / "profile.json"
    data.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = python(host, SHOW)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {}, "all or nothing"
    assert "plumbline sitecustomize" in done.stderr
    data.unlink()
    assert python(host, "print(1)").stdout == "1\n"


def test_an_unwritable_proof_folder_stops_nothing(host):
    host.deliver("sitecustomize")
    (host.base / "file").write_text("")
    assert python(host, "print(1)", PLUMBLINE_NCCL_RAN_DIR=str(host.base / "file" / "x")).stdout == "1\n"


def test_the_shadowed_sitecustomize_still_runs(host):
    other = host.base / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        "import os\nos.environ['SHADOWED_RAN'] = os.environ.get('NCCL_PROTO', '')\n"
    )
    host.ambient["PYTHONPATH"] = str(other)
    host.deliver("sitecustomize")
    shown = json.loads(python(host, SHOW).stdout)
    assert shown == {**STORY, "SHADOWED_RAN": "LL"}
    (other / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    done = python(host, SHOW)
    assert json.loads(done.stdout) == STORY
    assert "theirs" in done.stderr, "its error is reported as without us"


def test_the_distributions_own_sitecustomize_is_chained():
    """On Debian and Ubuntu there is one in the standard library's folder; elsewhere our chain ends without one."""
    system = shutil.which("python3", path="/usr/bin") or sys.executable
    find = "import importlib.machinery as m, sys; s = m.PathFinder.find_spec('sitecustomize', sys.path)"
    find += "; print(s.origin if s else '')"
    without = subprocess.run(
        [system, "-S", "-c", find], capture_output=True, text=True, env={}, check=True
    ).stdout.strip()
    import tempfile

    with tempfile.TemporaryDirectory() as base:
        planned = delivery.plan(base, "p", STORY, "sitecustomize")
        delivery.apply(base, planned)
        ran = Path(base) / "ran"
        env = {**planned["environment"], "PLUMBLINE_NCCL_RAN_DIR": str(ran)}
        subprocess.run([system, "-c", "pass"], env=env, check=True)
        (left,) = [json.loads(p.read_text()) for p in ran.glob("*.json")]
    assert (left["chained"] or "") == without


# what else sets variables


def effects(found):
    return {(f["kind"], f["effect"]) for f in found["findings"]}


def test_a_conf_file_that_loses_to_the_environment_is_named_before_and_proven_after(host):
    host.ambient["NCCL_PROTO"] = "Simple"
    host.deliver("nccl_conf")
    found = host.found()
    (finding,) = [f for f in found["findings"] if f["effect"] == "wins"]
    assert (
        finding["detail"]
        == "environment of the server wins over the profile: NCCL_PROTO=Simple (the profile asks LL)"
    )
    document, _ = host.prove()
    assert document["profile_in_force"] is False
    assert [v["by"] for v in document["ranks"][0]["overridden"]] == ["environment of the server"]


def test_env_file_wins_over_the_environment_it_joins(host):
    host.ambient["NCCL_PROTO"] = "Simple"
    host.deliver("env_file")
    assert ("environment", "wins") not in effects(host.found())
    assert host.prove()[0]["profile_in_force"] is True


def test_the_hidden_user_conf_is_carried_over_and_named(host):
    (host.home / ".nccl.conf").write_text("NCCL_NVLS_ENABLE=0\nNCCL_PROTO=Simple\nNCCL_DMABUF_ENABLE=0\n")
    host.deliver("nccl_conf")
    text = (Path(host.given["directory"]) / "nccl.conf").read_text()
    assert "# kept from ~/.nccl.conf" in text
    assert sources.known.parse_conf(text) == {**STORY, "NCCL_NVLS_ENABLE": "0", "NCCL_DMABUF_ENABLE": "0"}
    assert ("user_conf", "hidden") in effects(host.found())
    assert host.prove()[0]["profile_in_force"] is True


def test_another_conf_file_adds_and_is_named_in_the_proof(host):
    host.etc.write_text("NCCL_MAX_NCHANNELS=2\nNCCL_PROTO=Simple\n")
    host.deliver("env_file", {"NCCL_PROTO": "LL"})
    found = host.found()
    assert ("system_conf", "adds") in effects(found)
    assert ("system_conf", "wins") not in effects(found), "the environment wins over a conf file"
    document, _ = host.prove()
    assert document["profile_in_force"] is True
    (added,) = document["ranks"][0]["additional"]
    assert (added["name"], added["value"], added["source"]) == ("NCCL_MAX_NCHANNELS", "2", "/etc/nccl.conf")
    host.deliver("env_file", {}, "none")
    document, _ = host.prove()
    assert document["profile_in_force"] is False
    assert "NCCL_PROTO=Simple (from /etc/nccl.conf)" in document["reasons"][0]


def test_another_sitecustomize_that_stands_before_ours_is_named_and_the_proof_fails(host):
    host.deliver("sitecustomize")
    first = host.base / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text("import os\nos.environ['NCCL_PROTO'] = 'Simple'\n")
    host.given["environment"]["PYTHONPATH"] = f"{first}:{host.given['environment']['PYTHONPATH']}"
    found = host.found()
    assert ("sitecustomize", "shadows") in effects(found)
    shadowed = [f for f in found["findings"] if f["effect"] == "shadowed" and "profile's" in f["detail"]]
    assert [f["path"] for f in shadowed] == [str(Path(host.given["directory"]) / "sitecustomize.py")]
    document, _ = host.prove()
    assert document["profile_in_force"] is False
    assert [v["by"] for v in document["ranks"][1]["overridden"]] == [str(first / "sitecustomize.py")]


def test_a_sitecustomize_in_site_packages_that_the_distributions_hides_is_named(host, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "sitecustomize.py").write_text("import os\nos.environ['NCCL_PROTO'] = 'Simple'\n")
    host.deliver("env_file", {}, "none")
    mine = [
        h for h in sources.site_hooks(str(venv / "bin" / "python"), host.ambient) if h["path"].startswith(str(venv))
    ]
    assert [h["variables"] for h in mine] == [{"NCCL_PROTO": "Simple"}]
    hidden = [f for f in host.found(str(venv / "bin" / "python"))["findings"] if f["path"] == mine[0]["path"]]
    assert hidden[0]["effect"] == ("adds" if mine[0]["runs"] else "shadowed")


def test_a_python_that_does_not_start_is_said(host):
    host.deliver("sitecustomize")
    assert ("sitecustomize", "unreadable") in effects(host.found(str(host.base / "no-python")))


# what a proof catches


@pytest.mark.parametrize(
    ("variables", "verdict"),
    [
        ({"NCCL_MAX_NCHANNEL": "16"}, "ignored"),
        ({"NCCL_P2P_LEVEL": "sys"}, "ignored"),
        ({"NCCL_NTHREADS": "300"}, "ignored"),
    ],
)
def test_what_nccl_ignores_is_caught(host, variables, verdict):
    host.deliver("env_file", {**STORY, **variables})
    document, _ = host.prove()
    assert document["profile_in_force"] is False
    assert [[v["name"] for v in r[verdict]] for r in document["ranks"]] == [list(variables)] * 2


def test_a_value_too_many_ends_the_start_and_is_caught(host):
    host.deliver("env_file", {**STORY, "NCCL_PROTO": "LL,LL64"})
    document, done = host.prove()
    assert done.returncode == 3
    assert document["profile_in_force"] is False
    assert 'Unrecognized element token "LL64"' in document["reasons"][0]


def test_one_rank_without_the_profile_is_named(host):
    host.deliver("env_file")
    document, _ = host.prove("--without", "1")
    assert document["reasons"] == ["rank 1 of 2: nothing of the profile reached it in time"]


def test_a_variable_set_after_the_first_communicator_is_caught(host):
    host.deliver("env_file", {}, "none")
    host.given["variables"] = {"NCCL_PROTO": "LL", "NCCL_NTHREADS": "512"}
    document, _ = host.prove("--late", "NCCL_PROTO=LL;NCCL_NTHREADS=512")
    assert document["profile_in_force"] is False
    assert "NCCL_PROTO came with a later communicator" in document["reasons"][0]


def test_the_environ_of_a_worker_shows_nothing_although_the_profile_is_in_force(host):
    host.deliver("nccl_conf")
    logs = host.base / "logs"
    logs.mkdir()
    env = {**host.ambient, **host.given["environment"], **proof.debug_environment(str(logs))}
    server = subprocess.Popen([sys.executable, str(STANDIN), "--hold", "30"], env=env)
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            texts = [p.read_text() for p in logs.glob("nccl.*.log")]
            if len(texts) == 2 and all("Init COMPLETE" in text for text in texts):
                break
            time.sleep(0.05)
        readings = proof.read_environ([int(p.name.split(".")[1]) for p in logs.glob("nccl.*.log")], STORY)
        document = proof.prove(
            profile="p", asked=STORY, delivery="nccl_conf", logs=texts, expected_ranks=2, environ=readings
        )
    finally:
        children = [int(p) for p in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
        for pid in [*children, server.pid]:
            os.kill(pid, 9)
        server.wait()
    assert document["profile_in_force"] is True
    assert [(e["readable"], e["visible"]) for e in document["environ"]] == [(True, []), (True, [])]
    assert "proves nothing" in document["environ_note"]
    gone = proof.read_environ([server.pid], STORY)
    assert [(e["readable"], e["visible"]) for e in gone] == [(False, [])]
