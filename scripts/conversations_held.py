"""What the model says in the conversations that scripts/conversations holds: its calls, as data."""

from dataclasses import dataclass, field
from typing import Any

BIG_CSV = """
import csv, random
random.seed(1)
with open('sales.csv', 'w', newline='') as f:
    w = csv.writer(f); w.writerow(['date', 'region', 'product', 'units', 'price'])
    for i in range(1_200_000):
        w.writerow([f'2026-{i % 12 + 1:02}-{i % 28 + 1:02}', 'NSEW'[i % 4], f'p{i % 50}', i % 90, f'{i % 997 / 7:.2f}'])
import os; os.path.getsize('sales.csv')
"""
TOTALS = """
import collections
totals = collections.Counter()
with open('sales.csv') as f:
    for row in csv.DictReader(f): totals[row['region']] += int(row['units']) * float(row['price'])
dict(totals)
"""
DRAW = """
def png(width, height, rows):
    import struct, zlib
    number = lambda n: struct.pack('>I', n)
    def chunk(kind, data): return number(len(data)) + kind + data + number(zlib.crc32(kind + data))
    raw = b''.join(b'\\0' + bytes(row) for row in rows)
    head = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
    return b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(raw)) + chunk(b'IEND', b'')
from IPython.display import Image, display
data = png(400, 200, [[(x * y) % 256 for x in range(400)] for y in range(200)])
open('chart.png', 'wb').write(data)
display(Image(data))
"""
SVG_BARS = """
from IPython.display import SVG
bar = '<rect x="{}" y="{}" width="30" height="{}" fill="teal"/>'.format
bars = ''.join(bar(20 + i * 40, 150 - v, v) for i, v in enumerate([30, 80, 120]))
SVG(f'<svg xmlns="http://www.w3.org/2000/svg" width="200" height="160">{bars}</svg>')
"""
OWN_MODULE = """
def mean(values):
    return sum(values) / len(values)


def report(rows):
    return mean([row['n'] for row in rows])
"""
SIMULATION = """
import time
for step in range(200):
    time.sleep(0.05)
    if step % 10 == 0: print(f'\\rstep {step} of 200', end='')
print('\\rdone')
"""
TESTS = "def test_good(): assert 1 + 1 == 2\n\ndef test_bad(): assert sum([1, 2]) == 4\n"


@dataclass
class Conversation:
    """Calls, each a tool with its arguments; those without a tool are cells."""

    calls: list[dict[str, Any]]
    settings: dict[str, str] = field(default_factory=dict[str, str])


def cell(code: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": "execute_code", "code": code, **arguments}


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": name, **arguments}


CONVERSATIONS: dict[str, Conversation] = {
    "a CSV of 50 MB": Conversation(
        [
            cell(BIG_CSV),
            tool("get_workspace_info"),
            tool("read_file", path="sales.csv", max_bytes=400),
            cell("import pandas as pd"),
            cell(TOTALS),
            cell("open('sales.csv').read()[:200_000]"),
            cell("rows = list(csv.reader(open('sales.csv')))[:5]; rows"),
        ]
    ),
    "plots": Conversation(
        [
            cell("import matplotlib.pyplot as plt"),
            cell(SVG_BARS),
            cell(DRAW),
            tool("read_file", path="chart.png"),
        ]
    ),
    "a traceback of one's own": Conversation(
        [
            tool("write_file", path="stats.py", content=OWN_MODULE),
            cell("import stats\nstats.report([])"),
            cell("def f(n): return f(n + 1)\nf(0)"),
            cell("stats.report([{'m': 1}])"),
            cell("stats.report?"),
        ]
    ),
    "a long simulation": Conversation(
        [
            cell(SIMULATION),
            *[tool("get_execution", execution_id="LAST", since="LAST", wait_seconds=2) for _ in range(5)],
            tool("cancel_execution"),
            cell("step"),
        ],
        {"SESSIONS__INLINE_WAIT_SECONDS": "2"},
    ),
    "packages that are missing or heavy": Conversation(
        [
            cell("import humanize"),
            tool("install_package", package_name="humanize"),
            cell("import humanize; humanize.naturalsize(10**9)"),
            tool("install_package", package_name="torch"),
            tool("install_package", package_name="no-such-package-at-all"),
            cell("import cv2"),
            cell("%pip install -q tabulate"),
        ]
    ),
    "PDF, XLSX and zip": Conversation(
        [
            tool("install_package", package_name=["openpyxl", "pypdf"]),
            cell("import openpyxl; b = openpyxl.Workbook(); b.active.append(['a', 1]); b.save('b.xlsx')"),
            cell("[list(r) for r in openpyxl.load_workbook('b.xlsx').active.iter_rows(values_only=True)]"),
            cell("from pypdf import PdfWriter; w = PdfWriter(); w.add_blank_page(200, 200); w.write('e.pdf')"),
            cell("import zipfile\nwith zipfile.ZipFile('all.zip', 'w') as z: z.write('b.xlsx'); z.write('e.pdf')"),
            cell("zipfile.ZipFile('all.zip').namelist()"),
            tool("read_file", path="all.zip"),
        ]
    ),
    "SQLite": Conversation(
        [
            cell("import sqlite3; db = sqlite3.connect('d.db'); db.execute('create table t (a, b)')"),
            cell("db.executemany('insert into t values (?, ?)', [(i, i * i) for i in range(1000)]); db.commit()"),
            cell("db.execute('select * from t').fetchall()"),
            cell("db.execute('select nothing from t')"),
            cell("db.execute('select sum(b) from t').fetchone()"),
        ]
    ),
    "scraping": Conversation(
        [
            cell("import urllib.request; urllib.request.urlopen('https://example.com').read()"),
            cell("%pip install -q requests"),
            cell("import requests; requests.get('https://example.com/data.json')"),
            cell("import socket; socket.create_connection(('example.com', 80))"),
        ]
    ),
    "pictures": Conversation([cell(DRAW * 3), cell(SVG_BARS), tool("get_workspace_info")]),
    "pytest": Conversation(
        [
            tool("install_package", package_name="pytest"),
            tool("write_file", path="test_it.py", content=TESTS),
            cell("!pytest -q"),
            cell("import pytest; pytest.main(['-q', '-p', 'no:cacheprovider', 'test_it.py'])"),
        ]
    ),
    "two sessions": Conversation(
        [
            tool("create_session", session_id="left"),
            cell("x = 'left'", session_id="left"),
            cell("x", session_id="right"),
            cell("x", session_id="left"),
            tool("get_sessions"),
            tool("destroy_session", session_id="right"),
        ]
    ),
    "recovery": Conversation(
        [
            cell("kept = 1; open('f.txt', 'w').write('x')"),
            cell("while True: pass", timeout=1),
            cell("kept"),
            cell("b = bytearray(10**10)"),
            cell("import os; os._exit(1)"),
            cell("kept"),
            cell("open('f.txt').read()"),
            cell("input('name? ')"),
            cell("import threading; threading.Thread(target=print).start()"),
            cell("import subprocess; subprocess.run(['ls'])"),
            cell("1", tiemout=3),
            tool("reset_workspace"),
        ]
    ),
    "a report": Conversation(
        [
            cell("rows = [{'region': r, 'total': t} for r, t in zip('NSEW', [5, 7, 9, 11])]"),
            cell("row = '<tr><td>{region}<td>{total}'.format"),
            cell("html = '<h1>Sales</h1><table>' + ''.join(row(**r) for r in rows)"),
            cell("from IPython.display import HTML, Markdown, display\nHTML(html)"),
            cell("Markdown('\\n'.join(f'- {r[\"region\"]}: {r[\"total\"]}' for r in rows))"),
            cell("open('report.html', 'w').write(html)"),
            tool("get_workspace_info"),
        ]
    ),
    "huge outputs": Conversation(
        [
            cell("print('y' * 10_000_000)"),
            cell("{f'k{i}': {'a': list(range(50))} for i in range(2000)}"),
            cell("'z' * 1_000_000"),
            cell("for i in range(200): open(f'out{i}.txt', 'w').write('x')"),
            cell("for i in range(100_000): print(i)"),
        ],
        {"POLICY__OUTPUT_BUDGET_CHARS": "8000"},
    ),
}
