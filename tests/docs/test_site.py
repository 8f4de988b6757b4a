"""The documentation site, as scripts/docs builds it: strictly, with every page, with links that lead somewhere, and
without a request to another host."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio
import pytest
from bs4 import BeautifulSoup

from tests.views.rig import CHROMIUM, chromium

from .test_docs_unit import PAGES, ROOT

BUILD_SECONDS = 300
MS = 60_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "html"
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "docs", folder], env=environment, check=True, timeout=BUILD_SECONDS)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, BeautifulSoup]:
    found = [path for path in site.rglob("*.html") if "_static" not in path.parts]  # those are the theme's templates
    return {path: BeautifulSoup(path.read_bytes(), "html.parser") for path in found}


def addresses(page: BeautifulSoup) -> Iterator[tuple[str, str]]:
    """The element and the address of everything that a page links to or loads."""
    for element in page.find_all(href=True):
        yield str(element.name), str(element["href"])
    for element in page.find_all(src=True):
        yield str(element.name), str(element["src"])


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, BeautifulSoup]) -> None:
    index = site / "docs" / "index.html"
    navigation = pages[index].select_one("nav.bd-links")
    assert navigation is not None
    listed = {(index.parent / str(link["href"])).resolve() for link in navigation.select("a.internal")}
    expected = {site / path.relative_to(ROOT).with_suffix(".html") for path in [*PAGES, ROOT / "CHANGELOG.md"]}
    assert listed == expected - {index}


def test_links_anchors_and_pictures_lead_somewhere(pages: dict[Path, BeautifulSoup]) -> None:
    anchors = {path: {str(one["id"]) for one in page.find_all(id=True)} for path, page in pages.items()}
    checked = 0
    for path, page in pages.items():
        for name, address in addresses(page):
            parts = urlsplit(address)
            if parts.scheme or not address.strip("#"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: <{name}> {address}"
            if parts.fragment and target in anchors:
                assert parts.fragment in anchors[target], f"{path.name}: <{name}> {address}"
            checked += 1
    assert checked > 1000


def test_a_page_loads_nothing_from_another_host(pages: dict[Path, BeautifulSoup]) -> None:
    loaded = [address for page in pages.values() for name, address in addresses(page) if name != "a"]
    assert len(loaded) > 100
    assert [address for address in loaded if urlsplit(address).netloc] == []


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package is called chromium)")
def test_a_reader_searches_and_finds_without_a_network(site: Path) -> None:
    async def search() -> None:
        async with chromium() as browser:
            page = await browser.new_page()
            page.set_default_timeout(MS)
            requests: list[str] = []
            page.on("request", lambda request: requests.append(request.url))
            await page.goto((site / "index.html").as_uri())
            await page.wait_for_url("**/docs/index.html")
            await page.locator("button.search-button-field").first.click()
            await page.locator("#pst-search-dialog input[type=search]").fill("restore_session")
            await page.keyboard.press("Enter")
            hit = page.locator("#search-results li a", has_text="What stays").first
            await hit.click()
            await page.wait_for_url("**/docs/permanence.html*")
            assert await page.locator("article h1", has_text="What stays").count() == 1
            assert [url for url in requests if not url.startswith(("file:", "data:"))] == []

    anyio.run(search)
