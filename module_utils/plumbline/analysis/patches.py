"""Edits of a build's files as one patch that ``sglang_build`` can apply to the same build made anew."""

from __future__ import annotations

from typing import Any

from ..state.evidence import unified

_SITE = "/site-packages/"


def patch_of(deviating: dict[str, Any], evidence: dict[str, Any], made_patches: list[dict]) -> tuple[str, list[str]]:
    """(a unified diff below site-packages with one leading folder, "" if there is nothing to patch; what cannot be
    patched, in words).

    ``deviating``: items of group ``files``; ``evidence``: by the same paths {kind, text, whole, original};
    ``made_patches``: the build's own ({file, sha256, files: {path: digest}}), whose results need no other patch.
    """
    made = {path: sha for patch in made_patches for path, sha in (patch.get("files") or {}).items()}
    parts: list[str] = []
    unmade: list[str] = []
    for item, value in sorted(deviating.items()):
        inside = item.split(_SITE, 1)[1] if _SITE in item and not item.startswith(("system/", "stdlib/")) else None
        if inside is not None and made.get(inside, "") == (value.get("sha256") if isinstance(value, dict) else None):
            continue
        if item.startswith("stdlib/") and "text" in value:
            continue  # the lock has it as it is
        kept = evidence.get(item)
        why = None
        if inside is None:
            why = "it is outside of the build's site-packages"
        elif inside in made:
            why = "it was edited after a patch of the build's lock changed it"
        elif value.get("kind") == "mode":
            why = "only who may read it differs, which a patch does not hold"
        elif not kept:
            why = "its text is not kept as evidence"
        elif not kept.get("whole"):
            why = "it holds a secret, which is kept nowhere"
        elif value.get("kind") == "edited" and kept["kind"] != "diff":
            why = "no copy of its original was found"
        if why:
            unmade.append(f"{item}: {why}")
        elif kept is not None and inside is not None:
            parts.append(
                _below_site(kept["text"], item, inside) if kept["kind"] == "diff" else unified("", kept["text"], inside)
            )
    return "".join(parts), unmade


def _below_site(diff: str, item: str, inside: str) -> str:
    head, _newline, rest = diff.partition("\n")
    second, _newline, body = rest.partition("\n")
    return f"{head.replace(item, inside)}\n{second.replace(item, inside)}\n{body}"
