"""Secrets go, everything else stays, JSON stays JSON. All values here are made up."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.sources.redact import Redactor, excerpt

FAKE = "FAKE0123456789abcdefABCDEF0123456789abcd"
SECRETS = {
    "api_key": ["sk-ant-api03-FAKEfake0000FAKEfake", "sk-or-v1-FAKE0000000000000000000000", "sk-proj-FAKE0000000000000000"],
    "google_key": ["AIza" + "FAKE0" * 7],
    "aws_key": ["AKIAFAKE0000FAKE0000"],
    "github_token": ["ghp_" + FAKE, "github_pat_" + FAKE],
    "slack_token": ["xoxb-0000000000-FAKE"],
    "huggingface_token": ["hf_" + FAKE],
    "nvidia_key": ["nvapi-" + FAKE],
    "stripe_key": ["sk_live_FAKE0000FAKE0000FAKE"],
    "gitlab_token": ["glpat-FAKE0000FAKE0000FAKE"],
    "npm_token": ["npm_" + "FAKE00" * 6],
    "pypi_token": ["pypi-AgE" + "FAKE0" * 11],
    "sendgrid_key": ["SG." + "FAKE0" * 4 + "." + "FAKE0" * 8],
    "telegram_token": ["1234567890:AA" + "FAKE_" * 6 + "abc"],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJGQUtFIn0.c2lnbmF0dXJlRkFLRQ"],
    "email": ["jane.doe@company-mail.com"],
    "card_number": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
}
STRICT = {
    "phone": ["+1 415 555 0100", "(415) 555-0100", "415-555-0100"],
    "ssn": ["078-05-1120"],
    "ip_address": ["203.0.113.7"],
}


@pytest.mark.parametrize(("kind", "secret"), [(kind, secret) for kind, secrets in SECRETS.items() for secret in secrets])
def test_light_finds_keys_mail_and_cards(kind: str, secret: str) -> None:
    redactor = Redactor("light")
    assert redactor.text(f"Here: {secret} ok") == f"Here: [REDACTED:{kind}] ok"
    assert redactor.counts == {kind: 1}


@pytest.mark.parametrize(("kind", "secret"), [(kind, secret) for kind, secrets in STRICT.items() for secret in secrets])
def test_strict_finds_more(kind: str, secret: str) -> None:
    text = f"Here: {secret} ok"
    assert Redactor("strict").text(text) == f"Here: [REDACTED:{kind}] ok"
    assert Redactor("light").text(text) == text


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("-H 'Authorization: Bearer abcdefFAKE0123456789'", "abcdefFAKE0123456789"),
        ("Authorization: Basic RkFLRTpGQUtFMTIzNDU2", "RkFLRTpGQUtFMTIzNDU2"),
        ('{"cookie": ["__cf_bm=FAKE; session=FAKE2"]}', "FAKE2"),
        ("aws_secret_access_key = " + FAKE, FAKE),
        ("https://jane:hunter22@host.io/x", "hunter22"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIFAKE\nAAAA\n-----END RSA PRIVATE KEY-----", "MIIFAKE"),
        ("-----BEGIN PRIVATE KEY-----\nMIIFAKEcutoff", "MIIFAKEcutoff"),
    ],
)
def test_values_in_context(text: str, gone: str) -> None:
    assert gone not in Redactor("light").text(text)


def test_passwords_and_home_directories_under_strict() -> None:
    text = Redactor("strict").text("password: hunter22 in /home/jane/work and C:\\Users\\jane\\x")
    assert "hunter22" not in text
    assert "jane" not in text


@pytest.mark.parametrize(
    "text",
    [
        "Compute 4111111111111112 mod 97 and sk-learn style: from sklearn import svm",
        "pip install sk-learn-something-very-long-indeed",
        "Write to someone@example.com or admin@host.test about 1234567890123456.",
        "The password is entered twice; what is a bearer token? basic arithmetic-operations",
        "3.1415926535897932384626 and 0x4111111111111111",
        "def f(self, key: str, secret: int) -> None: ...",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert Redactor("light").text(text) == text


def test_json_inside_strings_stays_json() -> None:
    inner = json.dumps(
        {
            "card": 4111111111111111,
            "note": "mail jane.doe@company-mail.com",
            "key": "-----BEGIN PRIVATE KEY-----\nMIIFAKE\n-----END PRIVATE KEY-----",
        }
    )
    outer = json.dumps({"arguments": inner})
    redactor = Redactor("light")
    value = json.loads(json.loads(redactor.text(outer))["arguments"])
    assert value == {"card": "[REDACTED:card_number]", "note": "mail [REDACTED:email]", "key": "[REDACTED:private_key]"}
    assert redactor.counts == {"card_number": 1, "email": 1, "private_key": 1}


def test_the_name_of_a_key_gives_its_value_away() -> None:
    value = {"card": 4111111111111111, "Cookie": ["session=FAKE2"], "password": "hunter22", "note": "fine"}
    redacted = json.loads(Redactor("strict").text(json.dumps(value)))
    assert redacted == {
        "card": "[REDACTED:card_number]",
        "Cookie": ["[REDACTED:cookie]"],
        "password": "[REDACTED:password]",
        "note": "fine",
    }


def test_keys_of_objects_are_looked_at_too() -> None:
    assert Redactor("light").value({"jane.doe@company-mail.com": 1}) == {"[REDACTED:email]": 1}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_any_value_keeps_its_shape_and_twice_is_once(value: Any) -> None:
    once = Redactor("strict").value(value)
    assert Redactor("strict").value(once) == once


@given(st.text(st.sampled_from('0123456789-+. @:sk_/=eyJAIza"\\\n{}[]'), max_size=80))
def test_json_text_stays_json_text(text: str) -> None:
    encoded = json.dumps({"a": text})
    json.loads(Redactor("strict").text(encoded))


def test_excerpts_hold_no_headers_and_no_half_secret() -> None:
    row = {"headers": {"cookie": "session=FAKE"}, "body": "x" * 280 + " sk-ant-api03-FAKEfake0000FAKEfake"}
    text = excerpt(row)
    assert "session" not in text
    assert "sk-ant" not in text
    assert len(text) <= 300


@pytest.mark.parametrize(
    "piece",
    [
        "-----BEGIN PRIVATE KEY-----",
        "a@",
        "1 ",
        "4-",
        "cookie: a=",
        "password is ",
        "eyJaaaaaaaa.",
        "+1 2",
        "://a:",
        "/home/",
        "x.x.",
        '\\"',
    ],
)
def test_time_grows_with_the_text_and_not_faster(piece: str) -> None:
    """No pattern backtracks over the text: eight times the text takes nowhere near 64 times the CPU time."""

    def seconds(count: int) -> float:
        text = piece * count + "!"
        best = 1e9
        for _ in range(3):
            began = time.process_time()
            Redactor("strict").text(text)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(8_000) < 32 * max(seconds(1_000), 0.0005)
