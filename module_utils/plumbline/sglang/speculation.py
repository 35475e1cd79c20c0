"""Speculative decoding: whether arguments, target and draft fit together, before a server is started.

SGLang accepts, changes or ignores most of these faults without an error; what it costs is a load of minutes and a
figure that means something else. Server arguments are mappings of SGLang's long option names without dashes. What is
said of versions was read in the wheels 0.4.6 to 0.5.23 (``arg_groups/speculative_hook.py`` in the newest).
"""
from __future__ import annotations

import re
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..errors import PlumblineError, nearest

ALGORITHM = "speculative-algorithm"
DRAFT_PATH = "speculative-draft-model-path"
STEPS, TOPK, DRAFT_TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
EAGLE_NUMBERS = (STEPS, TOPK, DRAFT_TOKENS)

# Algorithms that are built into SGLang 0.5.23. Others may come from a plugin, so an unknown name is refused only if it
# looks like one of these misspelt.
BUILT_IN = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
# Those that take steps, topk and draft tokens and draft one token a step.
CHAIN_OR_TREE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
WITHOUT_DRAFT = ("NGRAM", "UNO")
# Backends that can draft a tree on pages of more than one token (facts differ by version; this is the union).
TREE_ON_PAGES = ("flashinfer", "fa3", "triton")
# From here on the draft is loaded with the target's context length and refuses one that is longer than its own.
DRAFT_TAKES_TARGET_CONTEXT = (0, 5, 23)
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")

Args = Mapping[str, Any]
Config = Mapping[str, Any]


def algorithm(args: Args) -> Optional[str]:
    """The algorithm in upper case, as SGLang takes it; None without speculation."""
    value = args.get(ALGORITHM)
    return str(value).upper() if value not in (None, False, "") else None


def number(args: Args, name: str) -> Optional[int]:
    """An argument as a whole number of at least 1; None if it is not given or not such a number."""
    value = args.get(name)
    if isinstance(value, (bool, float)):
        return None
    try:
        found = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return found if found >= 1 else None


def max_accept_length(args: Args) -> Optional[float]:
    """The most tokens that one verify cycle can yield, the bonus token included.

    1 without speculation. With steps k: k + 1, but never more than the draft tokens that are verified (a tree may have
    fewer). NGRAM: the number of draft tokens. None if the arguments do not say (SGLang's choice differs by version).
    """
    name = algorithm(args)
    if name is None:
        return 1
    draft_tokens = number(args, DRAFT_TOKENS)
    if name not in CHAIN_OR_TREE:
        return draft_tokens
    steps, topk = number(args, STEPS), number(args, TOPK)
    if steps is None:
        return None
    # At topk 1 SGLang sets the draft tokens to steps + 1, whatever was asked for.
    return steps + 1 if topk == 1 or draft_tokens is None else min(steps + 1, draft_tokens)


def numbers(args: Args) -> Optional[dict]:
    """``{"algorithm", "steps", "topk", "draft_tokens"}`` as the arguments give them, None without speculation."""
    name = algorithm(args)
    if name is None:
        return None
    return {"algorithm": name, "steps": number(args, STEPS), "topk": number(args, TOPK),
            "draft_tokens": number(args, DRAFT_TOKENS)}


def draft_kind(config: Config) -> str:
    """What a model's config.json says it is.

    ``eagle3``, ``eagle``, ``dflash``, ``dspark``: a draft of that kind. ``model``: none of these. ``eagle3-unnamed``:
    it has an EAGLE-3 draft's keys and a plain model's architecture, as some published drafts do.
    """
    names = " ".join(str(a) for a in _architectures(config)).lower()
    speculators = str(config.get("speculators_model_type") or "").lower().replace("-", "")
    if "eagle3" in names or "eagle3" in speculators:
        return "eagle3"
    for kind in ("dflash", "dspark", "eagle"):
        if kind in names or kind in speculators:
            return kind
    if config.get("draft_vocab_size") or config.get("eagle_config"):
        return "eagle3-unnamed"
    return "model"


def context_length(config: Config) -> int:
    """Tokens that a model can hold, derived from its config as SGLang does (``get_context_length``)."""
    text = _text(config)
    scaling = text.get("rope_scaling") or {}
    factor = 1.0
    if scaling and "original_max_position_embeddings" not in scaling and scaling.get("rope_type") != "llama3":
        factor = float(scaling.get("factor") or 1)
    for key in _CONTEXT_KEYS:
        if text.get(key) is not None:
            return int(factor * text[key])
    return 2048


def check(args: Args, *, where: str, version: str, target: Optional[Config] = None, draft: Optional[Config] = None,
          workloads: Sequence[Mapping[str, Any]] = (), environment: Optional[Mapping[str, str]] = None,
          ) -> List[PlumblineError]:
    """Every fault of one arm's speculation, [] if there is none.

    ``version`` is SGLang's (``0.5.23``); ``target`` and ``draft`` are the models' config.json, None where not known;
    ``workloads`` are catalogue entries (``name``, ``output_tokens``, ``prompts.max_tokens``); ``environment`` is what
    the server gets. ``where`` names the arm for the reader.
    """
    faults = check_arguments(args, where=where, version=version)
    if draft is not None and algorithm(args) is not None:
        faults += check_draft(args, draft, where=where, target=target)
    return faults + check_context(args, where=where, version=version, target=target, draft=draft, workloads=workloads,
                                  environment=environment or {})


def check_arguments(args: Args, *, where: str, version: str) -> List[PlumblineError]:
    """Faults that the server's arguments show by themselves."""
    name = algorithm(args)
    if name is None:
        return _leftovers(args, where)
    faults = []
    guess = nearest(name, BUILT_IN)
    if name not in BUILT_IN and guess:
        faults.append(PlumblineError(f"unknown {ALGORITHM} {name!r}", where, name, ", ".join(BUILT_IN),
                                     f"did you mean {guess!r}?"))
    if args.get("max-running-requests") is None:
        faults.append(PlumblineError(
            "speculation without max-running-requests: SGLang then sets it to 48 for this arm and leaves thousands to "
            "a server without speculation, so that the two cannot be compared under load",
            f"{where}, max-running-requests", "not given",
            "a number, the same on every arm", "set max-running-requests in sglang_server_args"))
    if args.get("speculative-adaptive"):
        faults.append(PlumblineError(
            "speculative-adaptive changes the number of steps while the server runs, so that no figure belongs to the "
            "arm", f"{where}, speculative-adaptive", args["speculative-adaptive"], "not given", "leave it out"))
    if name in WITHOUT_DRAFT and args.get(DRAFT_PATH):
        faults.append(PlumblineError(f"{name} takes no draft model", f"{where}, {DRAFT_PATH}", args[DRAFT_PATH],
                                     "not given", "leave the draft out, or set the algorithm that the draft is for"))
    if name == "EAGLE3" and not args.get(DRAFT_PATH):
        faults.append(PlumblineError("EAGLE3 without a draft model", f"{where}, {DRAFT_PATH}", "not given",
                                     "an EAGLE-3 draft of the target", "set the variant's draft"))
    if name in CHAIN_OR_TREE:
        faults += _eagle_numbers(args, where, version)
    return faults


def _leftovers(args: Args, where: str) -> List[PlumblineError]:
    """Speculative arguments where nothing speculates."""
    left = [k for k in (DRAFT_PATH, *EAGLE_NUMBERS) if args.get(k) is not None]
    if not left:
        return []
    return [PlumblineError(f"{', '.join(left)} without {ALGORITHM}: SGLang ignores them", f"{where}, {left[0]}",
                           args[left[0]], f"{ALGORITHM} and its numbers, or none of them",
                           f"set {ALGORITHM} or leave the others out")]


def _eagle_numbers(args: Args, where: str, version: str) -> List[PlumblineError]:
    given = {k: args.get(k) for k in EAGLE_NUMBERS}
    missing = [k for k in EAGLE_NUMBERS if given[k] is None]
    if len(missing) == len(EAGLE_NUMBERS):
        return []
    found = ", ".join(f"{k} {v}" for k, v in given.items() if v is not None)
    if missing:
        return [PlumblineError(
            f"{', '.join(missing)} missing: the three EAGLE numbers are given all or none (SGLang fails on some of "
            "these without a message and fills in others, differently by version and model)",
            f"{where}, {missing[0]}", found, ", ".join(EAGLE_NUMBERS), "give all three")]
    wrong = [k for k in EAGLE_NUMBERS if number(args, k) is None]
    if wrong:
        return [PlumblineError(f"{k} is not a whole number of at least 1", f"{where}, {k}", repr(args[k]),
                               "1, 2, 3, ...", "") for k in wrong]
    steps, topk, tokens = number(args, STEPS) or 0, number(args, TOPK) or 0, number(args, DRAFT_TOKENS) or 0
    if topk == 1:
        if tokens != steps + 1:
            return [PlumblineError(
                f"with {TOPK} 1, {DRAFT_TOKENS} must be {STEPS} + 1: SGLang changes it to {steps + 1}, with a warning "
                "only",
                f"{where}, {DRAFT_TOKENS}", tokens, steps + 1, f"set {DRAFT_TOKENS} to {steps + 1}")]
        return []
    return _tree(args, steps, topk, tokens, where, version)


def _tree(args: Args, steps: int, topk: int, tokens: int, where: str, version: str) -> List[PlumblineError]:
    """Faults of a draft tree (topk over 1)."""
    faults = []
    # The first step scores topk tokens, each later one topk for each of the topk kept; the root comes on top.
    largest = 1 + topk + (steps - 1) * topk * topk
    if tokens > largest:
        faults.append(PlumblineError(
            f"{DRAFT_TOKENS} is more than the tree has: {steps} steps at topk {topk} score {largest - 1} tokens",
            f"{where}, {DRAFT_TOKENS}", tokens, f"2 to {largest}", f"set {DRAFT_TOKENS} to {largest} or less"))
    backends = {str(args[k]) for k in ("attention-backend", "decode-attention-backend") if args.get(k)}
    if "trtllm_mha" in backends:
        faults.append(PlumblineError("the backend trtllm_mha drafts chains only", f"{where}, {TOPK}", topk, 1,
                                     f"set {TOPK} to 1 or choose another attention-backend"))
    page = number(args, "page-size") or 1
    if page > 1 and release(version) < (0, 5):
        faults.append(PlumblineError(
            f"with page-size over 1 SGLang {version} sets {TOPK} to 1 without an error", f"{where}, {TOPK}", topk, 1,
            f"set {TOPK} to 1 or page-size to 1"))
    elif page > 1 and backends and not backends & set(TREE_ON_PAGES):
        faults.append(PlumblineError(
            f"{TOPK} over 1 with page-size {page} is refused by this attention backend", f"{where}, attention-backend",
            ", ".join(sorted(backends)), ", ".join(TREE_ON_PAGES), "set page-size to 1, or one of these backends"))
    return faults


def check_draft(args: Args, draft: Config, *, where: str, target: Optional[Config] = None) -> List[PlumblineError]:
    """Whether this draft belongs under this algorithm, and to this target as far as shapes show it."""
    name, kind = algorithm(args), draft_kind(draft)
    shown = ", ".join(str(a) for a in _architectures(draft)) or "no architecture"
    if name == "EAGLE3" and kind == "eagle3-unnamed":
        return [PlumblineError(
            "the draft has an EAGLE-3 draft's keys and a plain model's architecture: SGLang would load it as that",
            f"{where}, {DRAFT_PATH}", shown, "LlamaForCausalLMEagle3 or another EAGLE-3 architecture",
            'set "architectures" in the draft\'s config.json as its publisher\'s notes for SGLang say')]
    if name == "EAGLE3" and kind != "eagle3":
        return [PlumblineError(
            "the draft is not an EAGLE-3 draft", f"{where}, {DRAFT_PATH}", shown,
            "an architecture with Eagle3 in its name", _algorithm_for(kind))]
    if name in ("EAGLE", "NEXTN", "STANDALONE") and kind.startswith("eagle3"):
        return [PlumblineError(
            f"an EAGLE-3 draft under {name}: SGLang starts without a warning and accepts nothing (accept length 1.00)",
            f"{where}, {ALGORITHM}", f"{name} with {shown}", "EAGLE3", f"set {ALGORITHM} to EAGLE3")]
    if name in ("EAGLE", "NEXTN", "STANDALONE") and kind in ("dflash", "dspark"):
        return [PlumblineError(f"a {kind.upper()} draft under {name}", f"{where}, {ALGORITHM}", shown, kind.upper(),
                               _algorithm_for(kind))]
    if name == "STANDALONE" and kind == "eagle":
        return [PlumblineError(
            "an EAGLE draft under STANDALONE, which takes a whole small model", f"{where}, {ALGORITHM}", shown,
            "a model of its own with the target's vocabulary", _algorithm_for(kind))]
    return _shapes(draft, target, where) if name == "EAGLE3" and target is not None else []


def _algorithm_for(kind: str) -> str:
    if kind == "model":
        return f"give an EAGLE-3 draft of the target, or set {ALGORITHM} to what this model is for"
    return f"set {ALGORITHM} to {kind.upper()}, or give an EAGLE-3 draft of the target"


def _shapes(draft: Config, target: Config, where: str) -> List[PlumblineError]:
    """An EAGLE-3 draft reads the target's hidden states and writes its vocabulary: both must have its sizes."""
    ours, theirs = _text(draft), _text(target)
    faults = []
    for what, has, needs in (
            ("vocabulary", ours.get("vocab_size"), theirs.get("vocab_size")),
            ("hidden size", ours.get("target_hidden_size") or ours.get("hidden_size"), theirs.get("hidden_size"))):
        if has is not None and needs is not None and has != needs:
            faults.append(PlumblineError(f"the draft was made for a target of another {what}",
                                         f"{where}, {DRAFT_PATH}", has, needs, "give the draft of this target"))
    layers = theirs.get("num_hidden_layers")
    read = (draft.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or []
    if layers is not None and any(i >= layers for i in read):
        faults.append(PlumblineError(
            "the draft reads layers that the target does not have", f"{where}, {DRAFT_PATH}",
            f"eagle_aux_hidden_state_layer_ids {read}", f"0 to {layers - 1}", "give the draft of this target"))
    return faults


def check_context(args: Args, *, where: str, version: str, target: Optional[Config], draft: Optional[Config],
                  workloads: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> List[PlumblineError]:
    """Whether target and draft hold prompt and output of every workload, and each other's context."""
    faults = []
    limit = number(args, "context-length")
    for role, config in (("target", target), ("draft", draft)):
        if config is None:
            continue
        own = context_length(config)
        holds = min(own, limit) if limit else own
        source = "context-length" if holds < own else "config.json"
        for name, needed in _needs(workloads):
            if needed > holds:
                faults.append(PlumblineError(
                    f"the {role}'s context is shorter than prompt plus output of workload {name!r}",
                    f"{where}, workload {name}", f"{holds} tokens ({source})", f"{needed} or more",
                    "lower the workload's output_tokens, use shorter prompts, or raise the context"))
    allowed = str(environment.get(LONGER_CONTEXT, "")).lower() in ("1", "true", "yes")
    if target is not None and draft is not None and not allowed and release(version) >= DRAFT_TAKES_TARGET_CONTEXT:
        served, own = limit or context_length(target), context_length(draft)
        if own < served:
            faults.append(PlumblineError(
                f"the draft's context is shorter than what the server serves: SGLang {version} refuses to start",
                f"{where}, context-length", f"draft {own}, served {served}", f"context-length up to {own}",
                f"set context-length to {own} on every arm"))
    return faults


def _needs(workloads: Iterable[Mapping[str, Any]]) -> List[Tuple[str, int]]:
    """Tokens that each workload needs: the longest prompt, as far as the catalogue tells it, and the output."""
    found = []
    for workload in workloads:
        prompt = (workload.get("prompts") or {}).get("max_tokens") or 1
        found.append((str(workload.get("name", "?")), int(prompt) + int(workload.get("output_tokens") or 0)))
    return found


def release(version: str) -> Tuple[int, ...]:
    """The numbers at the head of a version: ``0.5.10.post1`` -> (0, 5, 10). What has none counts as the newest."""
    found = re.match(r"\d+(\.\d+)*", str(version))
    return tuple(int(part) for part in found.group().split(".")) if found else (10**6,)


def _architectures(config: Config) -> List[Any]:
    found = config.get("architectures")
    return list(found) if isinstance(found, (list, tuple)) else []


def _text(config: Config) -> Config:
    """The language model's part of a config (multimodal models nest it)."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config
