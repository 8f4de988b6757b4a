"""[network] from the settings to a cell."""

from pathlib import Path

import pytest

from kernelmcp.config.allowed_hosts import check_host
from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError
from kernelmcp_kernel.network.allowed_hosts import AllowList

LONG = ".".join(["a" * 60] * 5)
SECRET = "tk-c0ffee5fe1+/42"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", SECRET)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("allow_hosts = ['https://example.org/']", "'https://example.org/' is not a host, such as example.org"),
        ("allow_hosts = ['*']", "'*' is not a host"),
        ("allow_hosts = ['a.*.org']", "'a.*.org' is not a host"),
        ("allow_hosts = ['bücher.example']", "write other letters as xn--"),
        ("allow_hosts = ['example.org:0']", "is not a host"),
        ("allow_hosts = ['127.1']", "'127.1' is not an address"),
        ("allow_hosts = ['0x7f.0.0.1']", "is not an address"),
        ("allow_hosts = ['[::1']", "is not a host"),
        ("allow_hosts = ['example.org', '*.10.0.0.5']", "'*.10.0.0.5': an address has no subdomains"),
        ("allow_hosts = ['*.[::1]']", "'*.[::1]': an address has no subdomains"),
        ("allow_hosts = ['\u017fite.example']", "is not a host"),
        (f"allow_hosts = ['{LONG}']", "longer than the 253 characters"),
        ("headers = {'*.example.org' = {A = 'x'}}", "a secret must go to one that is named in full"),
        ("headers = {'api.test' = {'A B' = 'x'}}", "'A B' of api.test is not a header that can be set"),
        ("headers = {'api.test' = {Host = 'x'}}", "'Host' of api.test is not a header that can be set"),
        ('headers = {"api.test" = {A = "tk-secret\\r\\nB: c"}}', "characters that no header may have"),
        ("headers = {'api.test' = {A = 'tk-secret ${NOT_THERE}'}}", "variable NOT_THERE: it is not set"),
        ("headers = {'api.test' = {A = 5}}", "Input should be a valid string"),
        ("max_response_mb = 100", "less than or equal to 20"),
    ],
)  # fmt: skip
def test_a_wrong_network_is_refused_at_the_start_and_no_secret_is_shown(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text(f"[network]\n{text}", "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load(file, environ={"KERNELMCP_HOME": str(tmp_path)})
    assert words in caught.value.message
    assert "tk-secret" not in caught.value.message


def test_secrets_are_not_in_what_settings_print(tmp_path: Path) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text(f"[network.headers.'api.test']\nAuthorization = '{SECRET}'", "utf-8")
    settings = load(file, environ={"KERNELMCP_HOME": str(tmp_path)})
    assert SECRET not in repr(settings.config)


HOSTS = [
    "example.org", "EXAMPLE.org", "*.example.org", "a.b.c.d", "x_y.example", "_dmarc.example.org",
    "localhost", "10.0.0.5", "10.0.0.5:8080", "*.10.0.0.5", "10.0.0", "10.0.0.256", "010.0.0.1", "0x7f.1",
    "1.2.3.4.5", "name.123", "[::1]", "[::1]:80", "*.[::1]", "[::ffff:1.2.3.4]", "[fe80::1%eth0]", "[]",
    "[:]", "::1", "*", "*.", "*.*.org", "*.com", "*.localhost", "*.1", "-a.org", "a-.org", "a..org", ".org",
    "org.", "a b.org", " a.org", "a.org ", "a.org\n", "a.org:99999", "a.org:0", "a.org:", "a.org:80:80",
    "a.org/", "user@a.org", "xn--bcher-kva.example", "b\u00fccher.example", "\u017fite.example",
    "\u212aelvin.example", "\uff11.example", "a" * 63 + ".org", "a" * 64 + ".org", LONG, "", "0", "0x",
    "0xg.org", "a.0xff", "a.0x", "*.example.org:443",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_what_the_server_takes_for_a_host_the_kernel_process_takes_as_well(host: str) -> None:
    """Each has a grammar of its own, because neither imports the other: one that they read differently would start, and
    then fail every request of every guest."""
    try:
        check_host(host)
    except ValueError:
        return
    assert AllowList([host])
