"""What reaches a browser: no tag that leads away, whatever shape a guest gives its markup; all else as it was."""

import json
from typing import Any

import pytest

from kernelmcp.lab.connections import tamed_content
from kernelmcp.lab.tame import tame, tame_bundle

AWAY = "<meta http-equiv=refresh content='0;url=http://away.example'>"


def test_a_list_of_texts_stays_one_where_it_spreads_no_tag() -> None:
    state = {"_options_labels": ["<5", "5-10", ">10"], "description": "< 7"}
    message = {"data": {"method": "update", "state": state}}
    assert tamed_content("comm_msg", message) == message
    assert tame_bundle({"application/json": ["<a>", "b"]}) == {"application/json": ["<a>", "b"]}
    assert tame(["<me", "ta>"]) == ["&lt;meta>"]


@pytest.mark.parametrize(
    "markup", [AWAY, [AWAY], ["<me", AWAY[3:]], ["<me", [AWAY[3:]]], {"a": AWAY}, [["<ME"], ["TA>"]], [AWAY, 7]]
)
@pytest.mark.parametrize("kind", ["display_data", "execute_result", "update_display_data", "inspect_reply"])
def test_no_markup_of_a_bundle_leads_away(kind: str, markup: Any) -> None:
    found = tamed_content(kind, {"data": {"text/html": markup}})["data"]["text/html"]
    assert isinstance(found, str)
    assert "<meta" not in found.lower()


def test_what_a_pager_shows_leads_nowhere_and_the_next_cells_code_is_as_it_was() -> None:
    code = {"source": "set_next_input", "text": "html = '<meta name=a>'", "replace": False}
    page = {"source": "page", "start": 0, "data": {"text/plain": "x", "text/html": AWAY}}
    found = tamed_content("execute_reply", {"status": "ok", "payload": [code, page, {"source": "page", "data": 7}]})
    assert found["payload"][0] == code
    assert "<meta" not in json.dumps(found["payload"][1:])
    assert found["status"] == "ok"
