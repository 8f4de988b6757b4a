"""Personal data in results becomes tokens, and values again only where the settings say so."""

import pytest

from .conftest import Modelling
from .support import settings_of

pytestmark = pytest.mark.anyio


async def test_a_cell_joins_by_tokens_and_never_sees_a_value(model: Modelling) -> None:
    toml = settings_of(
        crm='tokenize = ["email"]\ndefault = "allow"',
        mail='reveal = true\ndefault = "allow"',
        other='default = "allow"',
    )
    async with model(toml=toml) as one:
        for server in ("mail", "other"):
            await one.ready(server, "echo")
        fields = await one.run(
            "import servers.crm, servers.mail, servers.other\n"
            "from servers.crm import echo as crm\n"
            "from servers.mail import echo as mail\n"
            "from servers.other import echo as other\n"
            "address = 'ada' + chr(64) + 'example.com'\n"
            "seen = str(crm(value=address).json())\n"
            "same = str(crm(value=address).json())\n"
            "print(seen == same, address in seen, seen.startswith('EMAIL_'))\n"
            "print(str(mail(value=seen).json()) == seen, str(other(value=seen).json()) == seen, len(seen))"
        )
        assert fields["stdout"] == "True False True\nTrue True 26\n", fields
        # Both came back as tokens; one of the servers has had the value, which is shorter.
        *_, mail, other = [call["size"] for call in await one.calls(fields["execution_id"])]
        assert other - mail == 26 - len("ada@example.com")
