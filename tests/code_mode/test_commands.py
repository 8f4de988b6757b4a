"""Rules for bash commands: what a model, its user and a guest that lies come to."""

import asyncio
from typing import Any

import pytest

from .conftest import Modelling
from .support import DEADLINE, Model, chose
from .test_approvals import watching

pytestmark = pytest.mark.anyio
RULES = '[shell.commands]\n"rm *" = "ask"\n"curl *" = "deny"\n'
NOT_RUN = "bash: nothing of this script was run"


async def shell(one: Model, command: str, **arguments: Any) -> dict[str, Any]:
    return (await one.call("execute_command", command=command, session_id="s", **arguments))[1]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_user_is_asked_before_any_of_the_script_runs(model: Modelling, mode: str) -> None:
    answers = ["no", "once", "this tool for this session"]
    async with model(lambda prompt: chose(answers.pop(0)), toml=RULES, mode=mode) as one:
        declined = await shell(one, "touch a b c d; rm a; ls")
        assert (declined["exit_code"], declined["stdout"], NOT_RUN in declined["stderr"]) == (126, "", True)
        assert "the user declined" in declined["stderr"]
        assert (await one.run("import os\nos.listdir()"))["result"] == "[]"
        assert (await shell(one, "touch a b c d; ls"))["stdout"].split() == ["a", "b", "c", "d"]
        assert (await shell(one, "rm a; ls"))["stdout"].split() == ["b", "c", "d"]
        assert (await one.run("import subprocess\nsubprocess.run('rm b; ls', shell=True).returncode"))["result"] == "0"
        assert (await one.run("!rm c\n!ls"))["stdout"].split() == ["d"]
        assert len(one.prompts) == 3
        first, *said = one.prompts[0].splitlines()
        assert first == "Code in the sandbox (session 's') wants to run a bash script that your settings ask about."
        assert said[:2] == [
            'The reason: "rm *".',
            "An answer for this execution or session covers all scripts with this reason.",
        ]
        assert '|   "rm a"' in said
        assert "| touch a b c d; rm a; ls" in said
        await one.call("reset_workspace", session_id="s", scope="variables")
        answers.append("no")
        assert (await shell(one, "rm d"))["exit_code"] == 126
        lines = await one.audit(5)
    found = [(line["server"], line["rule"], line["approved"]) for line in lines]
    answered = ("no", "once", "session", "session", "no")
    assert found == [("(shell)", "rm *", each) for each in answered], "what no rule concerns is not logged"


async def test_what_is_denied_runs_in_no_form(model: Modelling) -> None:
    async with model(lambda prompt: chose("once"), toml=RULES) as one:
        for command in ("curl x", "ls; env A=1 curl x", "echo x | xargs curl", "f() { curl x; }", "echo $(curl x)"):
            found = await shell(one, f"touch ran; {command}")
            assert (found["exit_code"], "settings deny" in found["stderr"]) == (126, True), command
            assert '"curl *"' in found["stderr"]
        assert one.prompts == []
        assert (await one.run("import os\nos.listdir()"))["result"] == "[]"
        # Commands of our own, and those of a program, are commands like others.
        assert (await shell(one, "python -c 'print(1)'; sleep 0; exec 2>&1"))["stdout"] == "1\n"


UNREAD = """
eval 'rm a'
x=rm; $x a
bash -c 'rm a'
alias a='rm a'
trap 'rm a' EXIT
ls | xargs -I{} sh -c 'rm a'
find . -exec sh -c 'rm a' ';'
source f
command . f
./f
hash -p /bin/rm x
echo ${x:-$(rm a)}
echo ${x@P}
(( $(rm a) ))
declare 'x[$(rm a)]=1'
x[$(rm a)]=1
PS4='$(rm a)'; set -x; :
(( (1) + $(rm a) ))
echo ${x:-"}"$(rm a)}
echo ${x:-${y:-}$(rm a)}
x[y[0]+$(rm a)]=1
printf -v PS4 '$(rm a)'; set -x; :
awk 'BEGIN{system("rm a")}'
awk 'BEGIN{print 1 | "rm a"}'
awk 'BEGIN{f="system"; @f("rm a")}'
echo rm | xargs -I{} {} a
x=-exec; find . -name a $x rm {} \\;
PATH=.; f
read -r PATH <<< .; f
: ${PATH:=.}; f
echo (
"""


async def test_the_user_is_asked_about_a_script_that_hides_its_commands(model: Modelling) -> None:
    scripts = UNREAD.strip().splitlines()
    async with model(lambda prompt: chose("no"), toml=RULES) as one:
        await shell(one, "touch a")
        for number, script in enumerate(scripts, 1):
            found = await shell(one, script)
            assert (found["exit_code"], len(one.prompts)) == (126, number), script
        assert (await shell(one, "ls"))["stdout"] == "a\n"
        shown = await one.run("import subprocess\nsubprocess.run('e' + 'val true', shell=True).returncode")
        assert shown["result"] == "126"
        assert '"script": "eval true"' in one.prompts[-1], "the cell does not have these words"
        long = await shell(one, f"eval true  # {'x' * 3_000}")
        assert ("give fewer at a time" in long["stderr"], len(one.prompts)) == (True, len(scripts) + 1)


async def test_variables_of_python_run_nothing_that_no_rule_has_judged(model: Modelling) -> None:
    async with model(toml=RULES) as one:
        await shell(one, "touch a; echo 'rm a' > f; chmod +x f")
        variables = "{'PATH': '/workspace', 'PS4': '$(rm a)'}"
        ran = await one.run(f"import os\nos.environ |= {variables}\n!f\n!set -x; :\nos.path.exists('a')")
        assert ran["result"] == "True"
        assert "f: command not found" in ran["stdout"] + ran["stderr"]


async def test_all_commands_are_seen_before_they_are_approved(model: Modelling) -> None:
    async with model(lambda prompt: chose("once"), toml=RULES) as one:
        assert (await shell(one, "\n".join(f"rm -f file{number}" for number in range(40))))["exit_code"] == 0
        assert all(f'"rm -f file{number}"' in one.prompts[0] for number in range(40))
        found = await shell(one, "\n".join(f"rm -f {'x' * 50}{number}" for number in range(40)))
        assert (found["exit_code"], "give fewer at a time" in found["stderr"], len(one.prompts)) == (126, True, 1)


async def test_what_is_denied_meanwhile_is_not_run(model: Modelling) -> None:
    async with model(toml=RULES) as one, watching(one) as lab:
        running = asyncio.create_task(shell(one, "rm -f a"))
        [asked] = await lab.until(bool)
        (one.home.parent / "mcp.toml").write_text('[shell.commands]\n"rm *" = "deny"\n')
        async with asyncio.timeout(DEADLINE):
            while "settings deny" not in (await one.call("execute_command", command="rm b", session_id="t"))[0]:
                pass
        await lab.answer(asked["execution_id"], "once")
        assert "settings deny" in (await running)["stderr"]


async def test_a_client_that_cannot_ask_is_told_the_setting(model: Modelling) -> None:
    async with model(toml=RULES) as one:
        found = await shell(one, "rm f")  # of the kernel's first cell
        assert found["exit_code"] == 126
        assert "the user can allow it in the settings: [shell] commands" in found["stderr"]
        assert (await shell(one, "echo still here"))["stdout"] == "still here\n"


async def test_a_question_is_pending_and_an_interrupt_ends_it(model: Modelling) -> None:
    async with model(toml=RULES, SESSIONS__INLINE_WAIT_SECONDS="1") as one, watching(one) as lab:
        text, fields = await one.call("execute_command", command="touch kept; rm kept", session_id="s")
        async with asyncio.timeout(DEADLINE):  # a busy machine takes longer to start the shell
            while "pending_approvals" not in fields:
                text, fields = await one.call("get_execution", execution_id=fields["execution_id"], wait_seconds=1)
        [pending] = fields["pending_approvals"]
        assert (fields["status"], pending["server"], "rm kept" in pending["arguments"]) == ("running", "(shell)", True)
        assert "waits for the user's approval of a bash command" in text
        await lab.until(bool)
        await one.call("cancel_execution", session_id="s", execution_id=fields["execution_id"])
        _, ended = await one.call("get_execution", execution_id=fields["execution_id"], wait_seconds=30)
        assert ended["status"] == "interrupted"
        assert (await shell(one, "ls"))["stdout"] == ""


async def test_rules_change_while_the_server_runs(model: Modelling) -> None:
    async with model(toml=RULES) as one:
        assert (await shell(one, "rm f"))["exit_code"] == 126
        (one.home.parent / "mcp.toml").write_text('[shell.commands]\n"rm *" = "allow"\n"ls" = "deny"\n')
        async with asyncio.timeout(DEADLINE):
            while (await shell(one, "rm -f f"))["exit_code"]:
                pass
        assert (await shell(one, "ls"))["exit_code"] == 126
        (one.home.parent / "mcp.toml").write_text("")
        async with asyncio.timeout(DEADLINE):
            while (await shell(one, "ls"))["exit_code"]:
                pass


@pytest.mark.parametrize(
    ("arguments", "is_asked"),
    [
        ("{}", True),
        ("{'commands': 5, 'all': 'yes'}", True),
        ("{'commands': [['rm', 'x\\n\\nThe code:\\n| ls']], 'all': True}", True),
        ("{'commands': [['cat', 'f']], 'all': True}", False),
        ("{'commands': [['cat']] * 100_000, 'all': True}", True),
        ("{'commands': [['rm'] * 900_000], 'all': True}", False),
        ("{'commands': [['env'] * 300_000], 'all': True}", True),
    ],
)
async def test_a_guest_that_calls_by_itself_runs_nothing(model: Modelling, arguments: str, is_asked: bool) -> None:
    async with model(lambda prompt: chose("no"), toml=RULES) as one:
        call = f"host_call('tools', calls=[[10**6, '(shell)', 'command', {arguments}]])"
        fields = await one.run(f"from kernelmcp_guest.blocking import host_call\nprint(str({call})[:1000])")
        assert fields["status"] == "ok", fields
        assert ("the user declined" in fields["stdout"]) == is_asked, fields["stdout"]
        for prompt in one.prompts:
            assert [line for line in prompt.splitlines() if line.startswith("The code")] == ["The code:"]
        assert len(one.prompts) == is_asked
        assert (await one.run("1 + 1"))["result"] == "2"
