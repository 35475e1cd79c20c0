"""The parser is SGLang's, option for option; what is filled in is what SGLang fills in."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from sglang.srt import server_args
from sglang.srt.server_args import ServerArgs, prepare_server_args

MODELS = Path(__file__).resolve().parents[3] / "simulator" / "models"
EAGLE = ["--speculative-algorithm", "eagle3", "--speculative-draft-model-path", str(MODELS / "eagle3")]


def resolved(*args: str, ranks: int = 8) -> ServerArgs:
    record = prepare_server_args(["--model-path", str(MODELS / "target"), *args])
    record.resolve(ranks)
    return record


def test_every_option_is_there_and_described_once() -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    assert len(flags) == len(set(flags)) == 561
    listed = json.loads(server_args.OPTIONS_FILE.read_text())["options"]
    assert {flag for option in listed for flag in option["flags"]} <= set(flags)


def test_types_choices_and_lists() -> None:
    record = resolved("--context-length", "32k", "--cuda-graph-bs-decode", "1", "2", "4", "--enable-metrics")
    assert record.context_length == 32000 and record.graph_batch == 4 and record.enable_metrics is True
    record = resolved("--json-model-override-args", "{}", "--max-total-tokens", "64Ki", "--no-enable-tf32-matmul")
    assert record.max_total_num_tokens == 65536 and record.enable_tf32_matmul is False


def test_speculation_fills_in_what_is_not_given(capfd: pytest.CaptureFixture[str]) -> None:
    record = resolved(*EAGLE)
    assert (record.speculative_num_steps, record.speculative_eagle_topk, record.speculative_num_draft_tokens) == (
        3,
        1,
        4,
    )
    assert record.max_running_requests == 48 and "reset to 48 for speculative decoding" in capfd.readouterr().err
    assert resolved().max_running_requests == 2048 and resolved("--max-running-requests", "8").max_running_requests == 8
    record = resolved(*EAGLE, "--speculative-num-steps", "2", "--speculative-eagle-topk", "1")
    assert record.speculative_num_draft_tokens == 3
    with pytest.raises(TypeError):
        resolved(*EAGLE, "--speculative-num-steps", "2")
    with pytest.raises(ValueError, match="needs --speculative-draft-model-path"):
        resolved("--speculative-algorithm", "EAGLE3")


def test_graphs_can_be_off() -> None:
    assert resolved().graph_batch == 512 and resolved(ranks=2).graph_batch == 256
    for flags in (
        ["--disable-cuda-graph"],
        ["--cuda-graph-backend-decode", "disabled"],
        ["--disable-decode-cuda-graph"],
    ):
        assert resolved(*flags).graph_batch == 0
    assert resolved("--max-running-requests", "16").graph_batch == 16


def test_the_size_follows_the_physics(capfd: pytest.CaptureFixture[str]) -> None:
    assert resolved("--tp-size", "4", ranks=8).tp_size == 8
    assert "tp_size is set to 8 (was 4)" in capfd.readouterr().err


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    record = prepare_server_args(["--model-path", str(tmp_path)])
    with pytest.raises(OSError, match="does not appear to have a file named config"):
        record.resolve(1)


def test_a_config_file_stands_before_the_arguments(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(json.dumps({"port": 1, "tp-size": 4, "enable-metrics": True, "log-requests": False}))
    record = prepare_server_args(["--model-path", "m", "--config", str(file), "--port", "2"])
    assert (record.port, record.tp_size, record.enable_metrics, record.log_requests) == (2, 4, True, False)
    (tmp_path / "server.json").write_text("{}")
    with pytest.raises(ValueError, match="YAML"):
        prepare_server_args(["--model-path", "m", "--config", str(tmp_path / "server.json")])


@pytest.mark.parametrize("args", [["--modle-path", "x"], ["--model-path", "m", "--cuda-graph-max-bs", "8"], []])
def test_argparse_refuses_with_two(args: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        prepare_server_args(args)
    assert caught.value.code == 2
    assert "sglang serve: error:" in capfd.readouterr().err


def test_every_option_survives_as_json() -> None:
    def plain(value: Any) -> Any:
        return json.loads(json.dumps(value))

    assert plain(resolved(*EAGLE).as_dict())["speculative_algorithm"] == "EAGLE3"
