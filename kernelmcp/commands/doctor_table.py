"""The output of `kernelmcp doctor`: its report as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from kernelmcp.commands.doctor_verdicts import Attempt, Layer

if TYPE_CHECKING:
    from kernelmcp.commands.doctor import Report

NO_CLIENT = ("none found", "`kernelmcp install CLIENT` adds the server to one anyway")


def write_table(report: Report, out: TextIO) -> None:
    def section(title: str, rows: Sequence[tuple[str, str]]) -> None:
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"  {name:<{width}}  {text}".rstrip() for name, text in rows]
        out.write("\n".join([title, *lines, "", ""]))

    section("Versions", [(name, version or "missing") for name, version in report.versions.items()])
    spec, image = report.kernelspec, report.boot_image
    about_image = str(image["state"])
    if "bytes" in image:
        about_image += f", {image['bytes'] / 1e6:.0f} MB, {image['path']}"
    section(
        "Where things are",
        [
            ("kernelspec", f"{spec['name']}: {spec['directory'] or 'not found'}"),
            ("boot image", about_image),
            ("kept files", report.files["home"]),
            ("sockets", report.files["runtime"] or "not made"),
            ("settings files", ", ".join(report.files["config_files"]) or _none_of(report.files["config_places"])),
            ("settings from", ", ".join(report.files["environment"]) or "defaults"),
        ],
    )
    section("Clients", list(report.clients.items()) or [NO_CLIENT])
    section("Isolation layers", [(layer.name, f"{_state(layer):<12}  {layer.detail}") for layer in report.layers])
    section(
        "What sandboxed code tried",
        [(attempt.title, f"{_outcome(attempt):<13}  {attempt.detail}") for attempt in report.attempts],
    )
    for problem in report.problems:
        out.write(f"PROBLEM  {problem.what}\n         {problem.advice}\n")
    through = [attempt.title for attempt in report.attempts if attempt.contained is False]
    if through:
        out.write(f"NOT CONTAINED: {'; '.join(through)}.\n")
        out.write("Do not run code here that must not reach those.\n")
    out.write("Everything required is there.\n" if report.ok else "Something required is missing: see above.\n")


def _none_of(places: list[str]) -> str:
    return f"none; they would be {', '.join(places)}"


def _state(layer: Layer) -> str:
    if not layer.active:
        return "not active"
    return "proven" if layer.proven else "NOT PROVEN"


def _outcome(attempt: Attempt) -> str:
    return {True: "contained", False: "NOT CONTAINED", None: "not tried"}[attempt.contained]
