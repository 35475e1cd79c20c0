"""Filter of the role plumbline_state: where models are on a host."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Callable, Iterable, Mapping

from ansible.errors import AnsibleFilterError
from plumbline.errors import PlumblineError
from plumbline.models.catalogue import select


def model_paths(names: Iterable[str], catalogue: Mapping[str, Any], root: str) -> dict[str, str]:
    """Names of models -> their folders below the root on the host, as the catalogue's digests name them."""
    try:
        models = select([str(n) for n in names if n], catalogue)
    except PlumblineError as error:
        raise AnsibleFilterError(str(error)) from error
    return {m.name: str(PurePosixPath(root) / "models" / m.folder) for m in models}


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"plumbline_model_paths": model_paths}
