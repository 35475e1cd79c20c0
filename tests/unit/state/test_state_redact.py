"""Secrets by name and by shape."""

from __future__ import annotations

import json
from pathlib import Path

import plumbline.analysis
import pytest
from plumbline.state.redact import redact, redact_argv, redact_text, secret_name

OPTION_LISTS = Path(plumbline.analysis.__file__).parent / "data/sglang-options"

# Made up at run time, so that no scanner takes the tests for a leak.
SHAPES = [
    "hf_" + "aB3" * 11,
    "sk-" + "proj-" + "x9" * 20,
    "AKIA" + "ABCDEFGH12345678",
    "ghp_" + "a1" * 18,
    "glpat-" + "x" * 20,
    "xoxb-" + "1" * 12 + "-abc",
    "nvapi-" + "q" * 30,
    "eyJ" + "hbGciOi" + ".eyJ" + "zdWIiOiI" + ".c2ln",
]


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "api-key",
        "admin_api_key",
        "apiKey",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "DB_PASSWORD",
        "PGPASSWORD",
        "ssl-keyfile-password",
        "WANDB_KEY",
        "clientSecret",
        "Authorization",
        "MYSQL_PWD",
        "TOKEN",
        "token",
        "SECRET_1",
        "access_token",
        "passphrase",
        "registry.auth",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "max-total-tokens",
        "speculative-num-draft-tokens",
        "tokenizer-path",
        "speculative-token-map",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE",
        "NCCL_PROTO",
        "keepalive",
        "monkey",
        "eos_token",
        "skip-tokenizer-init",
        "PATH",
        "page-size",
        "random-seed",
        "author",
    ],
)
def test_names_that_are_none(name: str) -> None:
    assert not secret_name(name)


@pytest.mark.parametrize("path", sorted(OPTION_LISTS.glob("*.json")), ids=lambda p: p.stem)
def test_of_the_servers_options_only_the_secret_ones_are_secret(path: Path) -> None:
    """bucket-time-to-first-token is a bucket."""
    names = json.loads(path.read_text())
    assert {n for n in names if secret_name(n)} == {"--admin-api-key", "--api-key", "--ssl-keyfile-password"}


@pytest.mark.parametrize("secret", SHAPES)
def test_shapes_are_taken_out_wherever_they_stand(secret: str) -> None:
    for text in (secret, f"--download {secret} --x", f"https://h/?t={secret}", f'"{secret}"', f"a={secret};b"):
        assert secret not in redact_text(text) and secret not in redact_text(text, code=True)
    assert secret not in json.dumps(redact({"a": [{"b": secret}], secret: 1, "list": ["x", secret]}))


def test_private_keys_bearer_tokens_and_urls() -> None:
    pem = "-----BEGIN " + "OPENSSH PRIVATE KEY-----\nabc\ndef\n-----END " + "OPENSSH PRIVATE KEY-----"
    assert redact_text(f"x\n{pem}\ny") == "x\n[redacted]\ny"
    assert redact_text(
        "Authorization: Bearer abcdef123456"
    ) == "Authorization: [redacted] [redacted]" or "abcdef123456" not in redact_text(
        "Authorization: Bearer abcdef123456"
    )
    assert redact_text("https://user:pa55@host/simple") == "https://[redacted]@host/simple"
    assert redact_text("proxy http://host:3128/") == "proxy http://host:3128/"


def test_text_of_environment_files_and_command_lines() -> None:
    assert (
        redact_text('HF_TOKEN="abc"\nNCCL_PROTO=LL\nexport DB_PASSWORD=x y')
        == 'HF_TOKEN="[redacted]"\nNCCL_PROTO=LL\nexport DB_PASSWORD=[redacted] y'
    )
    assert (
        redact_text("/v/python -m sglang --api-key hunter2 --tp 8") == "/v/python -m sglang --api-key [redacted] --tp 8"
    )
    assert redact_text('{"api_key": "hunter2", "tp": 8}') == '{"api_key": "[redacted]", "tp": 8}'


def test_argument_lists() -> None:
    assert redact_argv(
        ["x", "--api-key", "hunter2", "--tp", "8", "--admin-api-key=hunter3", "--max-total-tokens", "100"]
    ) == ["x", "--api-key", "[redacted]", "--tp", "8", "--admin-api-key=[redacted]", "--max-total-tokens", "100"]


def test_values_under_a_secret_name_whatever_they_are() -> None:
    assert redact({"password": 1234, "token": ["a", "b"], "nested": {"secret": {"value": "x"}}, "ok": 1}) == {
        "password": "[redacted]",
        "token": ["[redacted]", "[redacted]"],
        "nested": {"secret": {"value": "[redacted]"}},
        "ok": 1,
    }


def test_code_keeps_its_names() -> None:
    line = "next_token = tokens[i]\nkey = value.key\n"
    assert redact_text(line, code=True) == line
    assert redact_text("password = 'hunter2'\n", code=True) == "password = '[redacted]'\n"
