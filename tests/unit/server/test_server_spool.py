"""The spool keeps what the controller has not confirmed, and nothing else."""
from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.errors import PlumblineError
from plumbline.ids import ulid
from plumbline.server import spool


def test_kept_until_confirmed(root: Path) -> None:
    one, two = ulid(1_800_000_000), ulid(1_800_000_001)
    for name in (two, one):
        spool.put(root, {"id": name, "status": "ok"})
    assert [entry["id"] for entry in spool.listed(root)["results"]] == [one, two]
    assert spool.confirm(root, [one], dry=True) == [one] and len(spool.listed(root)["results"]) == 2
    assert spool.confirm(root, [one, ulid()]) == [one]
    assert spool.confirm(root, [one]) == []
    assert [entry["id"] for entry in spool.listed(root)["results"]] == [two]


def test_a_torn_or_misnamed_file_is_reported_and_kept(root: Path) -> None:
    name = ulid()
    (root / "spool" / f"{name}.json").write_text('{"id": "')
    (root / "spool" / f".{ulid()}.json.tmp.json").write_text("{")
    found = spool.listed(root)
    assert found["results"] == [] and [Path(entry["file"]).stem for entry in found["damaged"]] == [name]


def test_a_root_without_a_spool_is_empty(tmp_path: Path) -> None:
    assert spool.listed(tmp_path) == {"results": [], "damaged": []}


@pytest.mark.parametrize("name", ["../lease", "", "x" * 26, "None"])
def test_an_id_is_no_path(root: Path, name: str) -> None:
    with pytest.raises(PlumblineError, match="named by a ULID"):
        spool.confirm(root, [name])
    with pytest.raises(PlumblineError, match="named by a ULID"):
        spool.put(root, {"id": name})
