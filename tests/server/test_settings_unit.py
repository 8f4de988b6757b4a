"""Where settings come from, and what is said about wrong ones."""

import json
import tomllib
from pathlib import Path

import pytest
from pydantic import SecretStr

from kernelmcp.code_mode.audit import audit_file
from kernelmcp.config.load import load
from kernelmcp.config.models import Config, Policy
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.volumes import check_volumes
from kernelmcp.http.tokens import TokenFile

CONFIG = Path(__file__).parents[2] / "config"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sessions]\nwarm_pol_size = 1", "warm_pol_size: there is no such setting (did you mean warm_pool_size"),
        ("[sesions]", "sesions: there is no such setting (did you mean sessions"),
        ("[sessions]\nmax_sessions = 0", "sessions.max_sessions: Input should be greater than or equal to 1"),
        ("[tools]\nenabled = ['exec']", "tools.enabled: there is no tool 'exec' (did you mean execute_code?)"),
        ("[tools]\nenabled = ['zzz']", "there is no tool 'zzz' (known are execute_code, "),
        ("[transport_http]\ncors_origins = ['*']", "cors_origins: '*' matches no page"),
        ("[transport_http]\ncors_origins = ['https://chat.example.com/']", "chat.example.com/' matches no page"),
        ("[transport_http]\ncors_origins = ['https://Chat.example.com']", "Chat.example.com' matches no page"),
        ("[transport_http]\nallowed_hosts = ['https://example.com']", "'https://example.com' matches no client"),
        ("[transport_http]\nallowed_hosts = ['*.example.com']", "'*.example.com' matches no client"),
        ("[packages]\ninstall_timeout_seconds = inf", "install_timeout_seconds: Input should be a finite number"),
        ('[volumes]\ndefault_volum = "~/x"', "default_volum: there is no such setting (did you mean default_volume?)"),
        ("[volumes]\ndata = 1", "volumes.data: Input should be a valid dictionary"),
        ('[volumes.data]\npth = "~/x"', "volumes.data.pth: there is no such setting (did you mean path?)"),
        ("[volumes.data]\nzzz = 1", "volumes.data.zzz: there is no such setting (known are path, mode)"),
        ("sessions = 3", "sessions: Input should be a valid dictionary"),
        ("[sessions", "is not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_file_key_and_what_would_do(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(file, environ={})
    assert caught.value.message.startswith(f"{file}: ")
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[flavors.smal]\nmemory_mb = 64", "flavors.smal"),
        ("[flavors.small]\nmemory_m = 64", "flavors.small.memory_m: there is no such setting (did you mean memory_mb"),
        ("[flavors.small]\nmemory_mb = 5000", "flavors.small.memory_mb: Input should be less than or equal to 4096"),
        ("[env]\n'A=B' = '1'", "'A=B' is not a name for an environment variable"),
        ("[env]\nA = \"1\\u0000\"", "A has a NUL character in its value"),
        (f"[env]\nA = '{'x' * 40_000}'", "the variables are longer than 32768 bytes together"),
    ],
)  # fmt: skip
def test_a_wrong_policy_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(None, file, environ={"KERNELMCP_HOME": str(tmp_path)})
    assert caught.value.message.startswith(f"{file}: ")
    assert words in caught.value.message


@pytest.mark.parametrize("token", ["a\n", " a", "a b", "\u00e9"], ids=["newline", "before", "within", "no ASCII"])
def test_a_token_that_no_client_can_send_is_refused(tmp_path: Path, token: str) -> None:
    home = {"KERNELMCP_HOME": str(tmp_path)}
    for name in ("TRANSPORT_HTTP__AUTH_TOKEN", "AUTH__TOKENS__ANN"):
        with pytest.raises(ConfigurationError, match="has a space, a newline"):
            load(environ={**home, f"KERNELMCP_{name}": token})
    (file := tmp_path / "tokens.toml").write_text(f"ann = {json.dumps(token)}")
    with pytest.raises(ConfigurationError, match="has a space, a newline"):
        TokenFile(file)


def test_a_wrong_value_in_the_environment_or_the_command_line_is_named(tmp_path: Path) -> None:
    home = {"KERNELMCP_HOME": str(tmp_path)}
    with pytest.raises(ConfigurationError, match=r"^KERNELMCP_SESSIONS__MAX_SESSIONS: sessions\.max_sessions: "):
        load(environ={**home, "KERNELMCP_SESSIONS__MAX_SESSIONS": "many"})
    with pytest.raises(ConfigurationError, match=r"^KERNELMCP_POLICY__CPU_SECOND: cpu_second: .*mean cpu_seconds"):
        load(environ={**home, "KERNELMCP_POLICY__CPU_SECOND": "1"})
    with pytest.raises(ConfigurationError, match=r"^the command line: logging\.level: "):
        load(environ=home, overrides={"logging": {"level": "loud"}})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KERNELMCP_POLICY_REQUIRED_LAYERS", "did you mean KERNELMCP_POLICY__REQUIRED_LAYERS?"),
        ("KERNELMCP_REQUIRED_LAYERS", "did you mean KERNELMCP_POLICY__REQUIRED_LAYERS?"),
        ("KERNELMCP_PORT", "did you mean KERNELMCP_TRANSPORT_HTTP__PORT?"),
        ("KERNELMCP_CONFIG_FIEL", "did you mean KERNELMCP_CONFIG_FILE?"),
        ("KERNELMCP_KEEP_GLOBALS", "settings are KERNELMCP_SECTION__KEY, such as"),
        ("KERNELMCP_POLICY__REQUIRED_LAYER", "did you mean required_layers?"),
        ("KERNELMCP_POLICI__REQUIRED_LAYERS", "did you mean"),
        ("KERNELMCP__POLICY__REQUIRED_LAYERS", "did you mean KERNELMCP_POLICY__REQUIRED_LAYERS?"),
        ("kernelmcp_policy__required_layers", "did you mean KERNELMCP_POLICY__REQUIRED_LAYERS?"),
        ("Kernelmcp_Home", "did you mean KERNELMCP_HOME?"),
    ],
)
def test_a_misspelt_variable_is_refused_with_what_was_meant(tmp_path: Path, name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environ={"KERNELMCP_HOME": str(tmp_path), name: '["landlock"]'})
    assert caught.value.message.startswith(f"{name}: ")
    assert "there is no such setting" in caught.value.message
    assert meant in caught.value.message


def test_the_name_of_a_variable_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environ={"KERNELMCP_HOME": str(tmp_path), "KERNELMCP_A\n\x1b]0;title\x07": "1"})
    assert caught.value.message.startswith("KERNELMCP_A\\n\\x1b]0;title\\x07: there is no such setting")


@pytest.mark.parametrize(
    ("key", "meant"),
    [("fuel_budget", "cpu_seconds"), ("memory_bytes", "memory_mb"), ("FLAVORS__SMALL__MEMORY_BYTES", "memory_mb")],
)
def test_what_other_systems_call_a_limit_leads_to_ours(tmp_path: Path, key: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"there is no such setting \(did you mean {meant}\?\)"):
        load(environ={"KERNELMCP_HOME": str(tmp_path), f"KERNELMCP_POLICY__{key.upper()}": "5"})
    if key.islower():
        file = tmp_path / "policy.toml"
        file.write_text(f"{key} = 5")
        with pytest.raises(ConfigurationError, match=rf"{key}: there is no such setting \(did you mean {meant}\?\)"):
            load(None, file, environ={"KERNELMCP_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("landlock", ["landlock"]),
        ("landlock,seccomp", ["landlock", "seccomp"]),
        (" landlock , seccomp, ", ["landlock", "seccomp"]),
        ('["landlock", "seccomp"]', ["landlock", "seccomp"]),
        ('[\n  "landlock",\n  "seccomp"\n]', ["landlock", "seccomp"]),
        ("\"landlock\", 'seccomp'", ["landlock", "seccomp"]),
        ("[]", []),
    ],
)
def test_a_list_in_the_environment_may_have_commas_between(tmp_path: Path, text: str, layers: list[str]) -> None:
    environ = {"KERNELMCP_HOME": str(tmp_path), "KERNELMCP_POLICY__REQUIRED_LAYERS": text}
    assert load(environ=environ).policy.required_layers == layers


@pytest.mark.parametrize(
    "text", ["", " ", ",", "landlock seccomp", "[landlock", '["landlock"', "{}", "landlock\nseccomp"]
)
def test_a_list_that_cannot_be_read_is_refused_and_never_empty(tmp_path: Path, text: str) -> None:
    """An empty one would be the layers of the file taken away."""
    with pytest.raises(ConfigurationError, match=r"^KERNELMCP_POLICY__REQUIRED_LAYERS: required_layers"):
        load(environ={"KERNELMCP_HOME": str(tmp_path), "KERNELMCP_POLICY__REQUIRED_LAYERS": text})


@pytest.mark.parametrize("text", ["0xdeadbeef", "1_000", "+5", "1e5", "2026-01-31", "true", "0o17", "[]"])
def test_a_text_in_the_environment_stays_as_it_is(tmp_path: Path, text: str) -> None:
    """Bearer tokens above all: another one would be valid."""
    environ = {
        "KERNELMCP_HOME": str(tmp_path),
        "KERNELMCP_SERVER__NAME": text,
        "KERNELMCP_TRANSPORT_HTTP__AUTH_TOKEN": text,
        "KERNELMCP_AUTH__TOKENS__BOB": text,
        "KERNELMCP_UPSTREAMS__SERVERS__WEB__URL": "https://example.org",
        "KERNELMCP_UPSTREAMS__SERVERS__WEB__HEADERS__AUTHORIZATION": text,
        "KERNELMCP_UPSTREAMS__SERVERS__OWN__COMMAND": '"quoted"',
        "KERNELMCP_UPSTREAMS__SERVERS__OWN__ENV__API__KEY": text,
    }
    config = load(environ=environ).config
    upstreams = config.upstreams.servers
    secrets = {config.transport_http.auth_token, config.auth.tokens["bob"], upstreams["own"].env["API__KEY"]}
    assert {*secrets, upstreams["web"].headers["authorization"]} == {SecretStr(text)}
    assert (config.server.name, upstreams["own"].command) == (text, "quoted")


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize(
    "key", ["upstreams.audit_file", "packages.index_url", "server.home", "telemetry.otlp_endpoint"]
)
def test_an_empty_variable_is_refused(tmp_path: Path, key: str, text: str) -> None:
    """Taken as a text, it would turn off what a file requires, or make the working directory the home."""
    name = f"KERNELMCP_{key.replace('.', '__').upper()}"
    with pytest.raises(ConfigurationError, match=rf"^{name}: {key}: is empty$"):
        load(environ={"KERNELMCP_HOME": str(tmp_path), name: text})


def test_a_path_may_begin_with_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a client's JSON no shell reads it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    names = {"SERVER__HOME": "home", "SERVER__RUNTIME": "run", "LOGGING__FILE": "log", "AUTH__TOKENS_FILE": "tokens"}
    settings = load(environ={f"KERNELMCP_{name}": f"~/{file}" for name, file in names.items()})
    config = settings.config
    found = [settings.home, config.server.runtime, config.logging.file, config.auth.tokens_file]
    assert found == [tmp_path / file for file in names.values()]


def test_a_home_in_quotes_has_its_files(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("cpu_seconds = 7")
    settings = load(environ={"KERNELMCP_SERVER__HOME": f'"{tmp_path}"'})
    assert (settings.home, settings.policy.cpu_seconds) == (tmp_path, 7)


def test_every_path_in_a_file_may_begin_with_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "mcp.toml").write_text(
        """
        volumes.data.path = "~/data"
        upstreams.audit_file = "~/audit.jsonl"
        [packages]
        wheel_folders = ["~/wheels", "/srv/wheels", "wheels"]
        pyodide_url = "~/pyodide"
        """
    )
    (tmp_path / "policy.toml").write_text("cpu_seconds = 7")
    places = {"KERNELMCP_CONFIG_FILE": "~/mcp.toml", "KERNELMCP_POLICY_FILE": "~/policy.toml"}
    settings = load(environ={"KERNELMCP_HOME": str(tmp_path / "home"), **places})
    config = settings.config
    check_volumes(settings)
    assert config.volumes.all["data"].place == tmp_path / "data"
    assert audit_file(settings) == tmp_path / "audit.jsonl"
    assert config.packages.wheel_folders == [str(tmp_path / "wheels"), "/srv/wheels", "wheels"]
    assert config.packages.pyodide_url == str(tmp_path / "pyodide")
    assert settings.policy.cpu_seconds == 7


def test_an_address_stays_as_it_is_and_a_home_that_is_not_there_is_refused(tmp_path: Path) -> None:
    environ = {"KERNELMCP_HOME": str(tmp_path)}
    url = "https://mirror.example.com//pyodide/~me/"
    assert load(environ={**environ, "KERNELMCP_PACKAGES__PYODIDE_URL": url}).config.packages.pyodide_url == url
    with pytest.raises(ConfigurationError, match="has no home directory"):
        load(environ={**environ, "KERNELMCP_PACKAGES__PYODIDE_URL": "~no-such-user/pyodide"})


def test_tables_and_optional_lists_in_the_environment(tmp_path: Path) -> None:
    environ = {
        "KERNELMCP_HOME": str(tmp_path),
        "KERNELMCP_TOOLS__ENABLED": "execute_code,read_file",
        "KERNELMCP_NETWORK__ALLOW_HOSTS": "example.org,*.example.com:8080",
        "KERNELMCP_PACKAGES__ALLOWED": "numpy",
        "KERNELMCP_VOLUMES__DATA": '{"path": "/srv/data"}',
        "KERNELMCP_SERVER__NAME": "one,two",
        "KERNELMCP_POLICY__ENV__NAMES": "a,b",
    }
    settings = load(environ=environ)
    config = settings.config
    assert config.tools.enabled == ["execute_code", "read_file"]
    assert config.network.allow_hosts == ["example.org", "*.example.com:8080"]
    assert config.packages.allowed == ["numpy"]
    assert config.volumes.all["data"].path == Path("/srv/data")
    assert (config.server.name, settings.policy.env) == ("one,two", {"NAMES": "a,b"})


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_setting(tmp_path: Path) -> None:
    service = {
        "KERNELMCP_SERVICE_HOST": "10.0.0.1",
        "KERNELMCP_SERVICE_PORT": "8000",
        "KERNELMCP_SERVICE_PORT_HTTP": "8000",
        "KERNELMCP_PORT": "tcp://10.0.0.1:8000",
        "KERNELMCP_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "KERNELMCP_PORT_8000_TCP_ADDR": "10.0.0.1",
        "KERNELMCP_HTTP_SERVICE_HOST": "10.0.0.1",
        "KERNELMCP_HTTP_SERVICE_PORT": "8000",
        "KERNELMCP_HTTP_PORT": "tcp://10.0.0.1:8000",
        "KERNELMCP_HTTP_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    }
    assert load(environ={"KERNELMCP_HOME": str(tmp_path), **service}).config == Config()


def test_a_file_that_is_named_must_be_there_and_one_in_its_default_place_may(tmp_path: Path) -> None:
    environ = {"KERNELMCP_HOME": str(tmp_path)}
    assert load(environ=environ).config == Config()
    with pytest.raises(ConfigurationError, match=r"missing\.toml: cannot be read"):
        load(environ={**environ, "KERNELMCP_CONFIG_FILE": str(tmp_path / "missing.toml")})
    (tmp_path / "mcp.toml").write_text("[sessions]\nmax_sessions = 5")
    (tmp_path / "policy.toml").write_text("cpu_seconds = 7")
    settings = load(environ=environ)
    assert (settings.config.sessions.max_sessions, settings.policy.cpu_seconds) == (5, 7)


def test_a_policy_that_names_one_flavor_leaves_the_others() -> None:
    def megabytes(policy: Policy) -> list[int]:
        return [policy.flavors[name].memory_mb for name in ("small", "medium", "large")]

    assert megabytes(Policy.model_validate({"flavors": {"small": {"memory_mb": 300}}})) == [300, 1024, 4096]
    assert megabytes(Policy.model_validate({"memory_mb": 700, "flavors": {"small": {"memory_mb": 300}}})) == [
        300,
        700,
        700,
    ]


def test_the_environment_goes_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    file, policy = tmp_path / "mcp.toml", tmp_path / "policy.toml"
    file.write_text("[sessions]\nwarm_pool_size = 3\nmax_sessions = 9\n[logging]\nlevel = 'error'")
    policy.write_text("max_outputs = 5\n[flavors.small]\nmemory_mb = 200\n[env]\nA = 'file'\nB = 'file'")
    environ = {
        "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "2",
        "KERNELMCP_LOGGING__LEVEL": "warning",
        "KERNELMCP_POLICY__MAX_OUTPUTS": "7",
        "KERNELMCP_POLICY__FLAVORS__LARGE__MEMORY_MB": "2048",
        "KERNELMCP_POLICY__ENV__A": "5",
        "KERNELMCP_HOME": "/x",
    }
    settings = load(file, policy, environ=environ, overrides={"logging": {"level": "debug"}})
    assert (settings.config.sessions.warm_pool_size, settings.config.sessions.max_sessions) == (2, 9)
    assert (settings.config.logging.level, settings.policy.max_outputs) == ("debug", 7)
    assert (settings.policy.flavors["small"].memory_mb, settings.policy.flavors["large"].memory_mb) == (200, 2048)
    assert settings.policy.env == {"A": "5", "B": "file"}


def test_of_a_table_and_a_plain_value_the_higher_layer_wins(tmp_path: Path) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text("sessions = 3\n[volumes.data]\npath = '/srv/data'")
    environ = {"KERNELMCP_HOME": str(tmp_path), "KERNELMCP_SESSIONS__MAX_SESSIONS": "5"}
    config = load(file, environ=environ).config
    assert (config.sessions.max_sessions, config.volumes.all["data"].path) == (5, Path("/srv/data"))
    with pytest.raises(ConfigurationError, match=r"^KERNELMCP_VOLUMES__DATA: volumes\.data: "):
        load(file, environ={**environ, "KERNELMCP_VOLUMES__DATA": "5"})


def test_the_files_in_config_are_the_defaults_and_name_every_setting() -> None:
    settings = load(CONFIG / "mcp.toml", CONFIG / "policy.toml", environ={})
    assert settings.config == Config()
    assert settings.policy == Policy()
    text = (CONFIG / "mcp.toml").read_text("utf-8")
    sections = tomllib.loads(text)
    assert set(sections) == set(Config.model_fields)
    for section in sections:
        model = type(getattr(settings.config, section))
        assert [key for key in model.model_fields if f"{key} =" not in text] == []
    policy = (CONFIG / "policy.toml").read_text("utf-8")
    assert [key for key in Policy.model_fields if key != "flavors" and f"{key} =" not in policy] == []


def test_settings_read_again_change_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text("[sessions]\nmax_sessions = 5")
    settings = load(file, environ={})
    told: list[int] = []
    settings.on_change(lambda: told.append(settings.config.sessions.max_sessions))
    assert settings.reload() == ([], [])
    file.write_text("[server]\nname = 'other'\n[sessions]\nmax_sessions = 6\n[logging]\nlevel = 'debug'\nfile = 'x'")
    assert settings.reload() == (["sessions.max_sessions", "logging.level"], ["server.name", "logging.file"])
    file.write_text("[sessions]\nmax_sessions = 7\nnonsense = 1")
    with pytest.raises(ConfigurationError, match=r"sessions\.nonsense"):
        settings.reload()
    assert (settings.config.sessions.max_sessions, settings.config.server.name, told) == (6, "kernelmcp", [6])
    assert Settings().reload() == ([], [])
