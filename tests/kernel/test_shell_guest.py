"""What a shell guest and the kernel process say to each other: commands in a shell of their own, programs, requests."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import running_kernel
from .shell_guest import Apart, ShellGuest, shell_guest

Content = dict[str, Any]


@pytest.fixture(scope="module")
def guest() -> Iterator[ShellGuest]:
    with shell_guest() as running:
        yield running


def test_a_command_apart_sees_and_leaves_nothing_but_files(guest: ShellGuest) -> None:
    guest.execute("x=5; f() { :; }; cd /tmp; alias hi=echo; mkdir -p /workspace/a")
    asked = 'pwd; echo "[$x][$GIVEN]"; type f 2>&1; cat; echo made > file; cd /; export x=7; exit 9'
    assert guest.apart(asked, cwd="/workspace/a", stdin=b"in\n", GIVEN="yes") == Apart(
        9, "/workspace/a\n[][yes]\nbash: line 1: type: f: not found\nin\n", ""
    )
    assert guest.frames[0]["content"] == {"changed": ["a/file"]}
    assert guest.apart("cat; echo <<< x", cwd="/workspace/a") == Apart(0, "\n", "")
    guest.execute("pwd; echo $x; cat a/file 2>/dev/null || cat /workspace/a/file")
    assert guest.text() == "/tmp\n5\nmade\n"


def test_a_command_apart_streams_when_it_is_not_captured(guest: ShellGuest) -> None:
    reply = guest.execute("echo out; echo err >&2; exit 3", capture=False, cwd=None, environment=None, stdin=None)
    assert reply == {"status": "ok", "exit_code": 3, "interrupted": False}
    assert (guest.text(), guest.text("stderr")) == ("out\n", "err\n")


def test_bytes_pass_through_a_command_apart(guest: ShellGuest) -> None:
    given = bytes(range(1, 256)) * 10
    reply = guest.execute("cat", capture=True, cwd=None, environment=None, stdin=base64.b64encode(given).decode())
    assert base64.b64decode(reply["stdout"]) == given


@pytest.mark.parametrize("separators", [",", ".", "5"])
def test_sleep_is_one_command_whatever_the_shell_is_set_to(guest: ShellGuest, separators: str) -> None:
    found = guest.apart(f'IFS={separators}; set -xeu; sleep 0.15; set +x; echo "$?$IFS"')
    assert found == Apart(0, f"0{separators}\n", "+ sleep 0.15\n+ set +x\n")


def test_find_is_one_command_whatever_the_shell_is_set_to(guest: ShellGuest) -> None:
    found = guest.apart("IFS=/; word=kept; set -xeu; find /tmp -maxdepth 0; set +x; echo $word", "/workspace")
    assert found == Apart(0, "/tmp\nkept\n", "+ find /tmp -maxdepth 0\n+ set +x\n")


def test_what_ends_a_command_apart_is_said_with_what_it_has_printed(guest: ShellGuest) -> None:
    found = guest.apart("echo first; f() { f; }; f")
    assert (found.exit_code, found.stdout) == (1, "first\n")
    assert "levels deep" in found.stderr
    number = guest.start("execute", code="echo first; sleep 1000", capture=True, cwd=None, environment=None, stdin=None)
    guest.interrupt(number)
    reply = guest.finish()
    assert (reply["exit_code"], reply["interrupted"]) == (130, True)
    assert guest.apart("echo usable").stdout == "usable\n"


def test_files_are_not_lost_by_what_is_done_with_themselves(guest: ShellGuest) -> None:
    done = "echo b > s; echo a >> s; cp s s; cp s ./s; mv s s; sort -o s s; cat s; tee s < s > /dev/null; cp nope s"
    done += "; wc -l < s"
    assert guest.apart(done, "/workspace").stdout == "a\nb\n2\n"


def test_a_folder_of_the_session_is_removed_neither_itself_nor_in_part(guest: ShellGuest) -> None:
    found = guest.apart('echo a > kept; rm -rf /workspace "$PWD" /tmp/.. /; find "" -delete; cat kept', "/workspace")
    assert found.stdout == "a\n"
    assert found.stderr.count("cannot remove '/workspace': Device or resource busy") == 2
    assert "it is dangerous to operate recursively on '/'" in found.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("rm -rI d", "rm: option -I is not supported here"),
        ("echo | rm -ri d", "rm: cannot remove 'd': -i asks about files only here, not about directories"),
        ("mv -i a b", "mv: nobody can answer: give the answers as input, or use -f or -n"),
        ("mv --exchange a b", "mv: option --exchange is not supported here"),
        ("cp -s a b", "cp: option -s is not supported here"),
        ("[ -v nothing ]", "bash: [: -v: it knows no variables of the shell here: use [[ -v nothing ]]"),
        (f"[ {'( ' * 60}a{' )' * 60} -o a ]".replace("(", "'('").replace(")", "')'"), "bash: [: too many parentheses"),
        (f"[ {'! ' * 2000}a ]", "bash: [: too many arguments"),
    ],
)
def test_what_commands_on_files_cannot_do_is_refused_with_a_sentence(guest: ShellGuest, code: str, said: str) -> None:
    folder = guest.workspace / "refusing"
    folder.mkdir(exist_ok=True)
    for name in "ab":
        (folder / name).write_text(name)
    (folder / "d").mkdir(exist_ok=True)
    found = guest.apart(code, "/workspace/refusing")
    assert (found.exit_code, found.stderr.splitlines()[-1].partition("? ")[2] or found.stderr.strip()) == (
        2 if code.startswith("[") else 1,
        said,
    )
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "d"]
    assert (folder / "b").read_text() == "b"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("echo '9^9^9' | bc", "bc: so large a power is not supported here: use python"),
        ("echo '1.0001^99999999' | bc", "bc: so large a power is not supported here: use python"),
        ("echo '9^3999 * 9^3999' | bc", "bc: a number of more than 4000 digits is not supported here: use python"),
        ("printf '9%.0s' {1..4001} | bc", "bc: a number of more than 4000 digits is not supported here: use python"),
        ("echo 'scale=5000; 1/3' | bc", "bc: scale of less than 0 or more than 1000 is not supported here: use python"),
        ("printf '(%.0s' {1..2000} | bc", "bc: an expression of so many levels is not supported here: use python"),
        ("echo 'e(10^9)' | bc -l", "bc: e() of this number is not supported here: use python"),
        ("echo 'while (1) 1' | bc", "bc: 'while' is not supported here: use python"),
        ("echo 'a[1]' | bc", "bc: '[' is not supported here: use python"),
        ("yes 1+1111111 | bc", "bc: a program of more than 64 KiB is not supported here: use python"),
        ("echo 1 | bc --nope", "bc: option --nope is not supported here"),
        (
            "expr $(printf '9%.0s' {1..900}) \\* $(printf '9%.0s' {1..900})",
            "expr: a number of more than 1000 digits is not supported here: use python",
        ),
        ("expr aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab : '\\(a*\\)*c'", "expr: a repeated group with repetitions"),
        ("expr $(printf 'a%.0s' {1..5000}) : '.*.*.*.*b'", "expr: so many repetitions for so long a text"),
        ("expr a : $(printf 'a%.0s' {1..5000})", "expr: a pattern of more than 2000 characters"),
        ("expr $(printf '( %.0s' {1..900})", "expr: so many parentheses are not supported here"),
        ("expr $(printf 'length %.0s' {1..900})", "expr: so many functions are not supported here"),
        ("expr a : '\\(a'", "expr: Unmatched ( or \\("),
    ],
)
def test_calculations_without_a_bound_are_refused_with_a_sentence(guest: ShellGuest, code: str, said: str) -> None:
    found = guest.apart(f"set -f; {code}; echo $?")
    assert found.stdout[-2:] in ("1\n", "2\n", "3\n")
    assert found.stderr.splitlines()[-1].startswith(said)


def test_what_would_lose_all_output_is_refused_where_it_is_a_command(guest: ShellGuest) -> None:
    for redirection in ("> >(tee log)", "&> >(tee log)", "2> >(cat >&2)", "> out 2> >(tee log) ", "2>&1 >> >(cat)"):
        guest.execute(f"echo first\nexec {redirection}\necho hello")
        assert (guest.text(), "use { ...; } 2>&1 | tee FILE" in guest.text("stderr")) == ("", True)
    found = guest.apart("exec 2>/dev/null; cat <<'E'; echo 'exec > >(a)' # exec > >(b)\nexec > >(c)\nE\necho done")
    assert found.stdout == "exec > >(c)\nexec > >(a)\ndone\n"
    texts = "cat <<\\EOF\nexec > >(a)\nEOF\ncat <<'E-1'\nexec > >(b)\nE-1\n"
    commands = """exec 3> >(cat) 4>&1 && echo c > >(cat); echo "$(echo "it's")" 'exec > >(d)'; none exec x > >(cat)"""
    assert guest.apart(texts + commands).stdout == "exec > >(a)\nexec > >(b)\nc\nit's exec > >(d)\n"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ('if(( $(echo "4") > 3 )); then echo y; fi; echo after', "y\nafter\n"),
        ('n=2; while(( $(echo "$n") > 0 )); do echo $n; n=$((n - 1)); done', "2\n1\n"),
        ('! (( $(echo "0") )) && echo none', "none\n"),
        ('f() (( $(echo "$1") > 1 ))\nf 2 && echo more; f 1 || echo less', "more\nless\n"),
        ('f() { echo "$1"; }; x=$(( (($(f "2"))) * 2 )); echo $x', "4\n"),
        ('x=0; (( $(echo "5") / x )); echo after $?', "after 1\n"),
        ('(( x = $(echo "3 +") )); echo after $?', "after 1\n"),
        (
            'x=$((1<<4))\nif (( $(echo "2 > 1" | bc) )); then echo yes; else echo no; fi; [ -e 1 ] || echo clean',
            "yes\nclean\n",
        ),
        (
            "printf $'it\\'s\\n'; if (( $(echo \"2 > 1\" | bc) )); then echo 'yes'; fi; [ -e 1 ] || echo clean",
            "it's\nyes\nclean\n",
        ),
        (
            "cat <<'A'; cat <<'B'\n(( $(echo \"1\") ))\nA\nexec > >(cat)\nB\necho done",
            '(( $(echo "1") ))\nexec > >(cat)\ndone\n',
        ),
        ("cat <<'END OF'\nexec > >(cat)\nEND OF\necho done", "exec > >(cat)\ndone\n"),
        ('cat <<-X\n\t(( $(echo "1") ))\n\tX\n(( $(echo "1") )) && echo done', "(( 1 ))\ndone\n"),
        ("echo exec bash -c 'cat > >(cat)'", "exec bash -c cat > >(cat)\n"),
    ],
)
def test_arithmetic_with_quotes_is_rewritten_where_it_is_a_command(guest: ShellGuest, code: str, printed: str) -> None:
    """All as bash has it."""
    assert guest.apart(code).stdout == printed


def test_nothing_can_be_written_where_all_is_read_only(guest: ShellGuest) -> None:
    tested = "for place in / /servers /workspace /tmp /dev/null /nothing; do [ -w $place ] && echo $place; done"
    assert guest.apart(f"{tested}; touch /servers/new").stdout.split() == ["/workspace", "/tmp", "/dev/null"]


def program(stdout: bytes = b"", stderr: bytes = b"", exit_code: int = 0) -> Content:
    encoded = {name: base64.b64encode(data).decode() for name, data in (("stdout", stdout), ("stderr", stderr))}
    return {"value": {"exit_code": exit_code, **encoded}}


def test_python_is_a_host_call(guest: ShellGuest) -> None:
    asked: list[Content] = []

    def answer(call: Content) -> Content:
        asked.append(call)
        return program(base64.b64decode(call["stdin"] or "").upper(), b"said\n", 3 if call["argv"][-1] == "3" else 0)

    guest.answer_call = answer
    found = guest.apart(
        "export E=1; echo b a | python3 clean.py 'x y' | tr ' ' '\\n' | sort; python -c 3; echo $?", "/workspace"
    )
    assert found == Apart(0, "A\nB\n3\n", "said\nsaid\n")
    first, second = asked
    assert (first["call"], first["argv"], first["cwd"]) == ("run_program", ["python3", "clean.py", "x y"], "/workspace")
    assert first["environment"]["E"] == "1"
    assert base64.b64decode(first["stdin"]) == b"b a\n"
    assert (second["argv"], second["stdin"]) == (["python", "-c", "3"], None)


def test_python_in_a_loop_leaves_the_loop_its_lines(guest: ShellGuest) -> None:
    guest.answer_call = lambda call: program(call["argv"][1].encode() + b"\n")
    assert (
        guest.apart("printf '1\\n2\\n' > l; while read x; do pytest $x; done < l; echo q | xargs pip").stdout
        == "1\n2\nq\n"
    )


def test_python_that_is_not_there_or_prints_no_text(guest: ShellGuest) -> None:
    guest.answer_call = lambda call: {"error": "there is no Python"}
    assert guest.apart("python x.py; echo $?") == Apart(0, "126\n", "python: there is no Python\n")
    guest.answer_call = lambda call: program(b"\xff")
    assert guest.apart("python x.py").stderr == "python: its output is not UTF-8 text: let it write to a file\n"
    assert "not UTF-8 text" in guest.apart("printf '\\xff' | python x.py").stderr


def test_an_interrupt_ends_a_host_call(guest: ShellGuest) -> None:
    number = guest.start("execute", code="kept=1; echo go; python x.py; echo never", silent=False)
    guest.wait_for_text()
    guest.interrupt(number)
    guest.answer_call = lambda call: {"error": "too late"}
    assert guest.finish()["ename"] == "KeyboardInterrupt"
    assert "never" not in guest.text()
    guest.execute("echo $kept")
    assert guest.text() == "1\n"


def response(call: Content) -> Content:
    status = 404 if call["url"].endswith("missing") else 200
    body = b"\xff\x00" if call["url"].endswith("binary") else f"{call['method']} {call['url']}\n".encode()
    headers = [["Content-Type", "text/plain"]]
    value = {"status": status, "reason": "OK", "headers": headers, "url": call["url"], "redirected": False}
    return {"value": {**value, "body": base64.b64encode(body).decode()}}


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("curl -s http://x.org/a", "GET http://x.org/a\n"),
        ("curl -sSL x.org", "GET http://x.org\n"),
        ("curl -I http://x.org/a | head -1 | tr -d '\\r'", "HTTP/1.1 200 OK\n"),
        ("curl -i http://x.org/a | tail -1", "GET http://x.org/a\n"),
        ("curl -sfo out http://x.org/a && cat out", "GET http://x.org/a\n"),
        ("curl -sO http://x.org/d/file.txt?q=1; cat file.txt", "GET http://x.org/d/file.txt?q=1\n"),
        ("curl -s -o b http://x.org/binary; wc -c < b", "2\n"),
        ("curl -s -X DELETE http://x.org/", "DELETE http://x.org/\n"),
        ("curl -s -d a=1 http://x.org/", "POST http://x.org/\n"),
        ("curl -G -d a=1 --data-urlencode 'q=é b' http://x.org/", "GET http://x.org/?a=1&q=%C3%A9%20b\n"),
        ("printf 'é b\\n' > f; curl -G --data-urlencode q@f http://x.org/", "GET http://x.org/?q=%C3%A9%20b%0A\n"),
        ("echo -n '&' | curl -G --data-urlencode @- --data-urlencode a@b=c x.org", "GET http://x.org?%26&a@b=c\n"),
        ("curl -s -o /dev/null -w '%{http_code}\\n' http://x.org/missing", "404\n"),
        ("wget -qO- http://x.org/a", "GET http://x.org/a\n"),
        ("wget -q -O w http://x.org/a; cat w", "GET http://x.org/a\n"),
        ("wget http://x.org/d/page 2>&1; cat page", "'page' saved [24]\nGET http://x.org/d/page\n"),
    ],
)
def test_curl_and_wget(guest: ShellGuest, command: str, shown: str) -> None:
    guest.answer_call = response
    assert guest.apart(command, "/tmp") == Apart(0, shown, "")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("curl -f http://x.org/missing", 22, "curl: (22) The requested URL returned error: 404\n"),
        ("curl -k https://x.org", 2, "certificates are always checked"),
        ("curl --proxy http://p https://x.org", 2, "the network's policy"),
        ("curl --nope https://x.org", 2, "option --nope is not supported here"),
        ("curl", 2, "no URL specified"),
        ("curl -s http://x.org/binary", 23, "this is not text"),
        ("curl -o /volumes/none/x http://x.org", 23, "Read-only file system"),
        ("curl -d @/etc/passwd http://x.org", 26, "Failed to open /etc/passwd: No such file"),
        ("curl --data-urlencode q@none http://x.org", 26, "Failed to open none: No such file"),
        ("curl -b cookies.txt http://x.org", 2, "option b is refused: cookies from a file are not supported"),
        ("curl -H @headers http://x.org", 2, "option H is refused: headers from a file are not supported"),
        ("curl -u me http://x.org", 2, "option u is refused: nobody can be asked for a password here"),
        ("curl -sk https://x.org", 2, ""),
        ("wget http://x.org/missing", 8, "404"),
        ("wget --mirror http://x.org", 4, "not supported here"),
    ],
)
def test_curl_and_wget_fail_as_they_do(guest: ShellGuest, command: str, code: int, said: str) -> None:
    guest.answer_call = response
    found = guest.apart(command, "/tmp")
    assert found.exit_code == (2 if "mirror" in command else code)
    assert said in found.stderr


def test_curl_sends_what_it_is_told(guest: ShellGuest) -> None:
    asked: list[Content] = []
    guest.answer_call = lambda call: (asked.append(call), response(call))[1]
    guest.apart(
        "curl -u me:secret -b 'c=d; e=f' -H 'X-A: b' -H 'Accept:' --json '{\"a\":1}' -m 5 https://x.org/", "/tmp"
    )
    guest.apart("printf 'a\\nb\\n' | curl -L --data-binary @- https://x.org/", "/tmp")
    assert asked[0] == {
        "call": "fetch",
        "method": "POST",
        "url": "https://x.org/",
        "headers": [
            ["Authorization", "Basic bWU6c2VjcmV0"],
            ["Cookie", "c=d; e=f"],
            ["X-A", "b"],
            ["Content-Type", "application/json"],
            ["Accept", "application/json"],
        ],
        "body": base64.b64encode(b'{"a":1}').decode(),
        "follow": False,
        "timeout": 5.0,
    }
    assert (base64.b64decode(asked[1]["body"]), asked[1]["follow"]) == (b"a\nb\n", True)


def test_curl_writes_each_url_to_its_own_file(guest: ShellGuest) -> None:
    guest.answer_call = response
    found = guest.apart(
        "mkdir curled; cd curled; curl -o 1 http://x.org/a -O http://x.org/b http://x.org/c; tail -n 1 *", "/tmp"
    )
    assert found.stdout == ("GET http://x.org/c\n==> 1 <==\nGET http://x.org/a\n\n==> b <==\nGET http://x.org/b\n")


def test_the_policy_decides() -> None:
    with running_kernel() as kernel:
        ran = kernel.run("%%bash\ncurl https://example.org/; echo $?; wget https://example.org/")
        assert ran.text() == "6\n"
        refused = "example.org cannot be reached: the sandbox has no network"
        assert f"curl: (6) {refused}" in ran.text("stderr")
        assert f"wget: (6) {refused}" in ran.text("stderr")


def test_which_knows_what_a_command_is_and_what_is_none(guest: ShellGuest) -> None:
    found = guest.apart("which python pip sort; echo $?; which nosuch; echo $?")
    assert found.stdout == "python\npip\nsort\n0\n1\n"
    for editor in ("nano", "vi"):
        assert guest.apart(f"{editor} x").stderr.startswith(f"{editor}: command not found: no editor is interactive")
    found = guest.apart("ssh host; echo $?")
    assert (found.stdout, found.stderr) == (
        "127\n", "ssh: command not found: only curl and wget connect to hosts outside the sandbox\n"
    )  # fmt: skip


def test_a_program_of_python_that_is_no_command_is_told_as_a_module(guest: ShellGuest) -> None:
    for name, advice in (("black", "pip install black, then python -m black"), ("uv", "use pip")):
        code = f"{name} .; command -v {name} || echo none"
        said = f"bash: line 1: {name}: command not found: {advice}\n"
        found = guest.apart(code)
        assert (found.stdout, found.stderr) == ("none\n", said)
        guest.execute(code)
        assert guest.text("stderr").endswith(said)
    assert guest.apart("blakc").stderr.startswith("bash: line 1: blakc: command not found")


def test_redirections_and_variables_end_before_a_script_with_a_syntax_error(
    guest: ShellGuest,
) -> None:
    guest.execute("exec > /tmp/kept; echo kept", python={"environment": {"TOKEN": "secret"}, "unset": []})
    broken = guest.execute("echo (", python={"environment": {}, "unset": []})
    assert broken["evalue"].startswith("exit status 2: line 1, column 6: ")
    guest.execute("echo [$TOKEN]; cat /tmp/kept")
    assert guest.text() == "[]\nkept\n"


def test_redirections_of_a_function_end_with_the_cell_that_calls_it(guest: ShellGuest) -> None:
    guest.execute("redirect() { exec > /tmp/kept; }")
    guest.execute("redirect; echo kept")
    guest.execute("echo shown; cat /tmp/kept; unset -f redirect")
    assert guest.text() == "shown\nkept\n"


def test_variables_of_python_are_taken_also_by_a_cell_that_does_not_run(guest: ShellGuest) -> None:
    for arguments, value in (("", "first"), ("-o pipefail", None), ("", "second")):
        python: dict[str, Any] = {
            "environment": {"CHANGED": value} if value else {},
            "unset": ["CHANGED"] * (not value),
        }
        guest.execute("echo [$CHANGED]", arguments=arguments, python=python)
    assert guest.text() == "[second]\n"


def test_set_quota_and_environment(guest: ShellGuest) -> None:
    guest.tell("set_environment", {"LATE": "yes"})
    guest.execute("echo $LATE")
    assert guest.text() == "yes\n"
    assert guest.apart("echo $LATE").stdout == "yes\n"
    guest.tell("set_quota", {"max_bytes": 10, "max_files": 100})
    assert "No space left on device" in guest.apart("echo 0123456789a > f").stderr
    guest.tell("end_background", {})
    guest.tell("unheard-of", {})
    guest.tell("set_quota", {"max_bytes": 1 << 30, "max_files": 10_000})
    assert guest.apart("echo 0123456789a > f; cat f").stdout == "0123456789a\n"


@pytest.fixture(scope="module")
def fresh() -> Iterator[ShellGuest]:
    with shell_guest() as running:
        yield running


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("python x.py", "apart"),
        ("mkdir -p d && cd d && X=1 python -m pytest -q; echo done", "apart"),
        ("pip install a\n\npython3 - \\\n  b", "apart"),
        ("python -c 'import time; time.sleep(1); set()'", "apart"),
        ("python x.py 2>&1", "merged"),
        ("set -e; python x.py 2>&1 || echo failed", "merged"),
        ("python x.py 2>&1; python y.py", None),
        ("python x.py | tee log", None),
        ("python x.py > log", None),
        ("python x.py 2>&1 > log", None),
        ("python x.py 2 >& 1", None),
        ("x=$(python x.py)", None),
        ("echo `python x.py`", None),
        ("(python x.py)", None),
        ("{ python x.py; } > log", None),
        ("python x.py &", None),
        ("python x.py <<< a", "apart"),
        ("python x.py < /dev/null 2>&1", "merged"),
        ("for i in 1 2; do python x.py; done", "apart"),
        ('for i in 1 2; do\n  if ! python x.py $i; then echo "failed: ${i}"; fi\ndone < /dev/null', "apart"),
        ("for i in 1 2; do python x.py; done > log", None),
        ("for i in 1 2; do python x.py; done | tac", None),
        ("if true; then { python x.py; } > log; fi", None),
        ("echo a | while read i; do python x.py; done", None),
        ("if python x.py | grep -q a; then echo b; fi", None),
        ("cat > x.py <<'EOF'\nprint('it`s $(\nEOF\npython x.py", "apart"),
        ('cat > x.py <<-EOF && python x.py 2>&1\n\ta " b\n\tEOF\n', "merged"),
        ("cat <<A <<B\npython x.py | tac\nA\nB\npython x.py", "apart"),
        ("cat > x <<EOF\n$(python x.py)\nEOF", None),
        ("cat > x <<EOF\n`python x.py`\nEOF\npython x.py", None),
        ("cat <<EOF\npython x.py", None),
        ("cat <<'EOF'\nEOF \nEOF\npython x.py > f", None),
        ("python - <<'EOF'\nprint(1 < 2 | 3)\nEOF", "apart"),
        ("python - <<'EOF' | tac\nprint(1)\nEOF", None),
        ("# it's all\npython x.py # here", "apart"),
        ("python -c 'print(1 << 3); x = \"$(a)\"'", "apart"),
        ('python x.py "$(a)"', None),
        ("python x.py '&&' echo > f", None),
        ("python x.py '|' y", "apart"),
        ("cat a | sort > b 2> /dev/null; python x.py; exit 3", "apart"),
        ("python x.py 2> /dev/null", None),
        ("python x.py > >(tac)", None),
        ("python x.py >| f", None),
        ("python x.py &> f", None),
        ("env | sort; python x.py", None),
        ("'python' x.py > f", None),
        ("f", None),
        ("time python x.py", None),
        ("exec > log; python x.py", None),
        ("python 'x", None),
        ("python # 'x\npython y | tac", None),
        ("echo a#b | python x.py", None),
        ("echo hi", None),
        ("", None),
        ("python " + "x" * 70_000, None),
    ],
)
def test_programs_stream_where_nothing_stands_between_them_and_the_cell(
    fresh: ShellGuest, code: str, expected: str | None
) -> None:
    asked: list[Content] = []

    def answer(call: Content) -> Content:
        asked.append(call)
        return program()

    fresh.answer_call = answer
    fresh.execute(code)
    assert {call["output"] for call in asked} <= {expected}
    assert asked or expected is None


@pytest.mark.parametrize(
    "before",
    [
        "python() { command python y | tac; }",
        "alias python=echo",
        "eval 'python() { :; }'",
        "echo 'echo() { exec > f; }' > f; source f",
        "echo 'python() { :; }' > f; command . f",
    ],
)
def test_where_a_name_may_mean_something_else_nothing_streams(before: str) -> None:
    with shell_guest() as guest:
        asked: list[Content] = []
        guest.answer_call = lambda call: asked.append(call) or program()
        guest.execute("python x.py")
        guest.execute(before)
        guest.execute("python x.py")
        assert [call["output"] for call in asked][:1] == ["apart"]
        assert {call["output"] for call in asked[1:]} <= {None}


def test_what_no_longer_means_something_else_streams_again(fresh: ShellGuest) -> None:
    asked: list[Content] = []
    fresh.answer_call = lambda call: asked.append(call) or program()
    for before in ("f() { python x.py | tac; }", "echo > f; source f", "pip() { :; }", "unset -f pip", "sleep 0"):
        fresh.execute(before)
        fresh.execute("python x.py")
    assert [call["output"] for call in asked] == ["apart", "apart", None, "apart", "apart"]


def test_what_is_captured_or_not_shown_does_not_stream(fresh: ShellGuest) -> None:
    asked: list[Content] = []
    fresh.answer_call = lambda call: asked.append(call) or program()
    fresh.apart("python x.py")
    fresh.start("execute", code="python x.py", silent=True, execution_count=1)
    fresh.finish()
    fresh.execute("python x.py", capture=False, cwd=None, environment=None, stdin=None)
    assert [call["output"] for call in asked] == [None, None, "apart"]
