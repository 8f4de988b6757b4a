"""What becomes of Markdown and LaTeX in a view: the library that its hidden frame runs, in Node."""

import gzip
import json
import re
import subprocess

import pytest

from kernelmcp.mcp_server.views.apps import library
from kernelmcp_kernel.runtime.build_identity import node_binary

PROGRAM = """
process.stdin.setEncoding("utf8");
let input = "";
process.stdin.on("data", (piece) => (input += piece)).on("end", () => {
  const { library, texts } = JSON.parse(input);
  const page = require("vm").createContext({});
  require("vm").runInContext(library, page);
  const each = ([kind, text]) => { try { return page.markup(kind, text) } catch (error) { return String(error) } };
  process.stdout.write(JSON.stringify(texts.map(each)));
});
"""
FORMULA = re.compile(
    r"<span class=\"katex\"><math[^>]*?( display=\"block\")?>.*?<annotation[^>]*>(.*?)</annotation>.*?</math></span>",
    re.DOTALL,
)


def formatted(*texts: str, kind: str = "text/markdown") -> list[str]:
    """The HTML without its style, a formula as `{TeX}`, a displayed one as `{{TeX}}`."""
    given = {"library": gzip.decompress(library("markup.js.gz")).decode(), "texts": [[kind, text] for text in texts]}
    done = subprocess.run(
        [node_binary(), "-e", PROGRAM], input=json.dumps(given).encode(), capture_output=True, check=True
    )
    html = (each.partition("</style>")[2] or each for each in json.loads(done.stdout))
    return [
        FORMULA.sub(lambda found: f"{{{{{found[2]}}}}}" if found[1] else f"{{{found[2]}}}", each).strip()
        for each in html
    ]


MARKDOWN = {
    "# T\n- a **b**": "<h1>T</h1>\n<ul>\n<li>a <strong>b</strong></li>\n</ul>",
    r"costs $5 and $6, \$7": "<p>costs $5 and $6, $7</p>",
    r"set $\{x\}$ and $a_1$ or \(b\), \\(c\\)": r"<p>set {\{x\}} and {a_1} or {b}, {c}</p>",
    "so\n$$\na\n- b\n$$\nor": "<p>so</p>\n<p>{{\na\n- b\n}}</p><p>or</p>",
    r"\[ x \]": "<p>{{ x }}</p>",
    r"\begin{align}a&=b\end{align}": r"<p>{{\begin{align}a&amp;=b\end{align}}}</p>",
    "`$x$` and\n```\n$y$\n```": "<p><code>$x$</code> and</p>\n<pre><code>$y$\n</code></pre>",
    r"a\b $x $$": r"<p>a\b $x $$</p>",
    "| a | b |\n|---|---|\n| $x$ | 2 |": None,
}
# sympy's, and others of many operators: KaTeX takes several expansions for each.
MANY = [r"\operatorname{atan}{x}" * 40, r"\int f\, dx" * 60, r"a \ne b" * 60, r"\dots" * 60, r"\le" * 90]
LATEX = {
    r"$\displaystyle x^{2} < 1$ <b>": r"{\displaystyle x^{2} &lt; 1} &lt;b&gt;",
    r"$$\int_0^1 x$$": r"{{\int_0^1 x}}",
    r"\begin{equation}a\end{equation}": r"{{\begin{equation}a\end{equation}}}",
}


def test_markdown_is_what_jupyter_makes_of_it() -> None:
    for (text, html), found in zip(MARKDOWN.items(), formatted(*MARKDOWN), strict=True):
        assert html is None or found == html, text
    assert "<td>{x}</td>" in found


def test_formulas_of_latex_are_found_and_all_else_is_text() -> None:
    assert formatted(*LATEX, kind="text/latex") == list(LATEX.values())


def test_formulas_may_have_many_operators() -> None:
    assert [found for found in formatted(*(f"${each}$" for each in MANY)) if "katex-error" in found] == []


@pytest.mark.parametrize("kind", ["text/markdown", "text/latex"])
def test_hostile_text_is_bounded(kind: str) -> None:
    macro = r"$$\def\a{" + "x" * 2400 + "}" + r"\a" * 800 + "$$"
    doubling = (
        "$$"
        + "".join(rf"\def\{n}{{\{p}\{p}}}" for p, n in zip("abcdefghijk", "bcdefghijkl", strict=True))
        + r"\def\a{xx}\l$$"
    )
    texts = [
        macro,
        macro * 20,
        doubling,
        "$" * 30_000,
        r"\begin{a}" * 3_000,
        r"\[" * 10_000,
        "[" * 20_000,
        "*a " * 30_000,
        r"$\href{javascript:alert(1)}{x}\htmlStyle{color:red}{y}\includegraphics{http://a/b}$",
    ]
    for text, found in zip(texts, formatted(*texts, kind=kind), strict=True):
        assert len(found) < 2_200_000, text[:50]
        assert not re.search(r"<(?:a|img|script)\b", found), text[:50]
        assert " href=" not in found, text[:50]
