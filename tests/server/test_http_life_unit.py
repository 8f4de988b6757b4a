"""Lost connections, many clients at once, and the end of a server."""

import pytest

from kernelmcp.cli import main

pytestmark = pytest.mark.cold


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        (["--host", "0.0.0.0"], {}, "--insecure"),
        (["--host", "::"], {}, "--insecure"),
        (["--host", "no.such.host.invalid"], {"TRANSPORT_HTTP__INSECURE": "true"}, "cannot listen"),
        ([], {"TRANSPORT_HTTP__ENABLED": "false"}, "transport_http.enabled"),
        ([], {"AUTH__ISSUER": "https://issuer.example.com"}, "auth.resource_url"),
        ([], {"AUTH__TOKENS_FILE": "/no/such/file"}, "/no/such/file"),
        ([], {"AUTH__TOKENS__EMPTY": '""'}, "empty"),
        ([], {"TRANSPORT_HTTP__PATH": "no-slash"}, "transport_http.path"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_safely_is_refused_at_start(
    server_env: dict[str, str],
    arguments: list[str],
    settings: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {**server_env, **{f"KERNELMCP_{name}": value for name, value in settings.items()}}.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "--transport", "http", "--port", "0", *arguments]) == 2
    assert says in capsys.readouterr().err
