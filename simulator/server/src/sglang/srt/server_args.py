"""The server's options and what they resolve to.

``options.json`` holds every option of SGLang 0.5.23 (names, types, defaults, choices), so an unknown flag is refused,
an ambiguous one is ambiguous and an abbreviation is taken exactly as SGLang's own parser does it.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Optional

from sglang.srt.utils.logs import log

OPTIONS_FILE = Path(__file__).with_name("options.json")
DRAFTED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
DEFAULT_MAX_RUNNING = 2048
MAX_RUNNING_WITH_SPECULATION = 48
GRAPH_BATCHES_FEW_RANKS, GRAPH_BATCHES_MANY_RANKS = 256, 512
FALLBACK_CONTEXT = 131072
SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def human_readable_int(value: str) -> int:
    """A plain integer, or one with k, M, G, T, Ki, Mi, Gi or Ti. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", value.strip())
    if match and not ("." in match.group(1) and match.group(2).endswith("i")):
        return int(float(match.group(1)) * SI[match.group(2)])
    try:
        return int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid integer value: '{value}'. Use a plain integer, SI suffixes (1k, 1M), or IEC suffixes (1Ki, 1Mi). "
            "Suffixes are case-sensitive."
        ) from None


def nullable_str(value: str) -> Optional[str]:
    """None for an empty text or 'None'."""
    return None if not value or value == "None" else value


TYPES = {
    "int": int,
    "float": float,
    "json": json.loads,
    "int_si": human_readable_int,
    "lower": str.lower,
    "nullable_str": nullable_str,
}


class DeprecatedAction(argparse.Action):
    """Store True, and say that the flag is deprecated."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Optional[str] = None,
    ) -> None:
        log(f"WARNING: The argument '{option_string}' is deprecated.")
        setattr(namespace, self.dest, True)


class ServerArgs:
    """The options as attributes; ``resolve`` fills in what SGLang would decide."""

    # Those that are filled in: given as their type or not at all.
    tokenizer_path: Any
    served_model_name: Any
    tp_size: Any
    chunked_prefill_size: Any
    page_size: Any
    mem_fraction_static: Any
    random_seed: Any
    attention_backend: Any
    sampling_backend: Any
    context_length: Any
    max_running_requests: Any
    speculative_algorithm: Any
    speculative_num_draft_tokens: Any
    speculative_draft_model_revision: Any
    cuda_graph_config: Any
    disable_custom_all_reduce: Any

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)
        self.launch_command: List[str] = []

    def __getattr__(self, name: str) -> Any:
        # Only reached for a name that is not set.
        raise AttributeError(f"the server has no option {name}")

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every option of SGLang 0.5.23 to ``parser``."""
        for option in json.loads(OPTIONS_FILE.read_text(encoding="utf-8"))["options"]:
            named: Dict[str, Any] = {"dest": option["dest"], "default": option.get("default")}
            action = option.get("action", "store")
            if action == "store":
                named.update(
                    type=TYPES.get(option.get("type", ""), str),
                    nargs=option.get("nargs"),
                    choices=option.get("choices"),
                    required=option.get("required", False),
                )
                if "const" in option:
                    named["const"] = option["const"]
            elif action == "store_true":
                named.update(action="store_true", default=option.get("default", False))
            elif action == "boolean":
                named["action"] = argparse.BooleanOptionalAction
            elif action == "deprecated_true":
                named.update(action=DeprecatedAction, nargs=0, default=False)
            else:
                named.update(action=DeprecatedAction, nargs=None, choices=option.get("choices"))
            parser.add_argument(*option["flags"], **named)

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> ServerArgs:
        """The record of parsed options."""
        return cls(**vars(namespace))

    def as_dict(self) -> Dict[str, Any]:
        """The options as they are now."""
        return {key: value for key, value in self.__dict__.items() if key not in ("launch_command", "config")}

    def resolve(self, ranks: int) -> None:
        """Fill in what SGLang decides by itself. Raises ValueError or OSError, as it does, for what cannot start.

        ``ranks`` is the physics' number of worker processes: the tensor-parallel size follows it.
        """
        self.tokenizer_path = self.tokenizer_path or self.model_path
        self.served_model_name = self.served_model_name or self.model_path
        if ":" in self.served_model_name:
            raise ValueError("served_model_name cannot contain a colon (':') character.")
        self.model_config = _model_config(self.model_path)
        if self.tp_size != ranks:
            log(f"The physics has {ranks} ranks: tp_size is set to {ranks} (was {self.tp_size}).")
            self.tp_size = ranks
        self._resolve_speculation()
        self._resolve_graphs()
        self.chunked_prefill_size = self.chunked_prefill_size or 8192
        self.page_size = self.page_size or 1
        if self.chunked_prefill_size > 0 and self.chunked_prefill_size % self.page_size:
            raise ValueError("chunked_prefill_size must be divisible by page_size")
        self.mem_fraction_static = self.mem_fraction_static or 0.85
        self.random_seed = 1 if self.random_seed is None else self.random_seed
        if self.attention_backend is None:
            log("Attention backend not specified. Use flashinfer backend by default.")
            self.attention_backend = "flashinfer"
        self.sampling_backend = self.sampling_backend or "flashinfer"
        self.context_length = self.context_length or int(
            self.model_config.get("max_position_embeddings") or FALLBACK_CONTEXT
        )
        self.max_total_num_tokens = self.max_total_tokens or 763452

    def _resolve_speculation(self) -> None:
        algorithm = self.speculative_algorithm
        self.draft_config: Dict[str, Any] = {}
        if not algorithm:
            self.max_running_requests = self.max_running_requests or DEFAULT_MAX_RUNNING
            return
        algorithm = self.speculative_algorithm = algorithm.upper()
        if algorithm not in (*DRAFTED, "NGRAM"):
            raise ValueError(f"Unknown speculative algorithm: {algorithm}")
        if self.max_running_requests is None:
            self.max_running_requests = MAX_RUNNING_WITH_SPECULATION
            log(
                "Max running requests is reset to 48 for speculative decoding. "
                "You can override this by explicitly setting --max-running-requests."
            )
        if algorithm == "NGRAM":
            self.speculative_num_draft_tokens = self.speculative_num_draft_tokens or 12
            self.speculative_num_steps, self.speculative_eagle_topk = None, None
            return
        if not self.speculative_draft_model_path:
            raise ValueError(f"{algorithm} needs --speculative-draft-model-path")
        self.draft_config = _model_config(self.speculative_draft_model_path)
        self.speculative_draft_model_revision = self.speculative_draft_model_revision or "main"
        if self.speculative_num_steps is None:
            assert self.speculative_eagle_topk is None and self.speculative_num_draft_tokens is None
            shape = (5, 4, 8) if "LlamaForCausalLM" in self.model_config.get("architectures", []) else (3, 1, 4)
            self.speculative_num_steps, self.speculative_eagle_topk, self.speculative_num_draft_tokens = shape
        if self.speculative_eagle_topk is None:
            raise TypeError("'>' not supported between instances of 'NoneType' and 'int'")
        if self.speculative_eagle_topk == 1 and self.speculative_num_draft_tokens != self.speculative_num_steps + 1:
            log(
                "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
            )
            self.speculative_num_draft_tokens = self.speculative_num_steps + 1

    def _resolve_graphs(self) -> None:
        config = self.cuda_graph_config if isinstance(self.cuda_graph_config, dict) else {}
        decode = dict(config.get("decode") or {})
        backend = decode.get("backend") or self.cuda_graph_backend_decode or "full"
        if self.disable_cuda_graph or self.disable_decode_cuda_graph:
            backend = "disabled"
        most = GRAPH_BATCHES_FEW_RANKS if self.tp_size < 4 else GRAPH_BATCHES_MANY_RANKS
        batches = decode.get("bs") or self.cuda_graph_bs_decode
        largest = max(batches) if batches else decode.get("max_bs") or self.cuda_graph_max_bs_decode or most
        largest = min(largest, self.max_running_requests)
        batches = sorted(batches or {1, 2, 4, *range(8, largest + 1, 8), largest})
        batches = [batch for batch in batches if batch <= largest]
        prefill = (
            "disabled"
            if self.disable_cuda_graph or self.disable_prefill_cuda_graph
            else self.cuda_graph_backend_prefill or "full"
        )
        self.cuda_graph_config = {
            "decode": {"backend": backend, "max_bs": largest, "bs": batches, "tc_compiler": "eager"},
            "prefill": {"backend": prefill, "max_bs": 8192, "bs": None, "tc_compiler": "eager"},
        }

    @property
    def graph_batch(self) -> int:
        """The largest decode batch with a CUDA graph, 0 without graphs."""
        decode = self.cuda_graph_config["decode"]
        return 0 if decode["backend"] == "disabled" else int(decode["max_bs"])


def _model_config(path: str) -> Dict[str, Any]:
    """The model's config.json. Raises OSError in the words of Transformers."""
    file = Path(path) / "config.json"
    if not file.is_file():
        raise OSError(
            f"{path} does not appear to have a file named config.json. "
            f"Checkout 'https://huggingface.co/{path}/tree/main' for available files."
        )
    return dict(json.loads(file.read_text(encoding="utf-8")))


def prepare_server_args(argv: List[str]) -> ServerArgs:
    """Parse ``argv``; exits with 2 as argparse does. A ``--config FILE`` comes before the other arguments."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    if "--config" in argv:
        argv = _with_config(parser, argv)
    record = ServerArgs.from_cli_args(parser.parse_args(argv))
    record.launch_command = list(argv)
    return record


def _with_config(parser: argparse.ArgumentParser, argv: List[str]) -> List[str]:
    place = argv.index("--config")
    if place + 1 >= len(argv):
        parser.error("argument --config: expected one argument")
    file, rest = Path(argv[place + 1]), argv[:place] + argv[place + 2 :]
    if file.suffix not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {file}")
    text = file.read_text(encoding="utf-8")
    try:
        mapping = json.loads(text)
    except ValueError:
        import yaml

        mapping = yaml.safe_load(text)
    found: List[str] = []
    for key, value in mapping.items():
        if value is False:
            continue
        found.append(f"--{key}")
        if isinstance(value, dict):
            found.append(json.dumps(value))
        elif isinstance(value, list):
            found += [str(item) for item in value]
        elif value is not True:
            found.append(str(value))
    return found + rest
