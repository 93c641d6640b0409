"""Texts of the corpus, in several languages, with the type that each of them is."""

# ruff: noqa: RUF001 - letters of other alphabets are what is tested.
from __future__ import annotations

import json

_PROSE = {
    "english": "It was late when the two of them came home, and nobody had lit the lamp.\nThe letter lay on the table.\n",
    "german": "Übermorgen fährt der Zug früher; wer später kommt, läuft. Größere Koffer bleiben hier.\nDas genügt.\n",
    "french": "Il était déjà tard, et l'été n'en finissait pas.\nÀ côté, quelqu'un chantait encore.\n",
    "russian": "Было поздно, и в доме никто не зажёг лампы.\nПисьмо лежало на столе.\n",
    "greek": "Ήταν αργά και κανείς δεν είχε ανάψει το φως.\nΤο γράμμα ήταν στο τραπέζι.\n",
    "japanese": "もう遅かったので、誰も明かりをつけなかった。\n手紙は机の上にあった。\n",
    "chinese": "天色已晚，没有人点灯。\n信在桌子上。\n",
    "korean": "이미 늦은 시간이었고 아무도 불을 켜지 않았다.\n편지는 책상 위에 있었다.\n",
    "arabic": "كان الوقت متأخرا ولم يشعل أحد المصباح.\nالرسالة على الطاولة.\n",
    "emoji": "Done ✅ and shipped 🚀; thanks to all 🎉.\nNext week: the rest.\n",
}
# Texts in older encodings.
_OLDER = {
    "german": ("latin-1", "cp1252"),
    "french": ("latin-1", "iso8859-15"),
    "russian": ("koi8-r", "cp1251"),
    "greek": ("iso8859-7", "cp1253"),
    "japanese": ("shift_jis", "euc_jp", "iso2022_jp"),
    "korean": ("euc_kr", "iso2022_kr"),
    "chinese": ("gbk", "gb18030"),
}

_MARKDOWN = {
    "notes": "# Notes\n\nA short text with a [link](https://example.com/) and **weight**.\n\n- one\n- two\n",
    "readme": '<p align="center">\n  <img src="logo.png" alt="logo">\n</p>\n\n# Tool\n\nSee [the docs](docs/a.md).\n\n```sh\nmake\n```\n',
    "front": "---\ntitle: A page\ndate: 2026-01-01\n---\n\n## First\n\n> A quotation, and `code`.\n\n1. one\n2. two\n",
    "setext": "Title\n=====\n\nSome words, *more* of them, and a list:\n\n* a\n* b\n\nSee [1].\n\n[1]: https://example.com\n",
    "table": "# Prices\n\n| item | price |\n| --- | --- |\n| tea | 3 |\n\nDone.\n",
    "german": "# Übersicht\n\nGrößen stehen in [der Liste](liste.md).\n\n- eins\n- zwei\n",
    "comment": "<!-- written by hand -->\n# Title\n\n- a **b**\n- c\n",
}
_TABLES = {
    "text/csv": {
        "plain": "id,name,city\n1,Ada,London\n2,Grace,New York\n3,Alan,Wilmslow\n",
        "semicolons": "Name;Ort;Größe\nJörg;Köln;1,82\nÄnne;Lübeck;1,70\n",
        "quoted": 'id,text\n1,"a, b, and\nmore"\n2,"he said ""no"""\n3,plain\n',
        "two columns": "date,value\n2026-01-01,3.5\n2026-01-02,4.0\n2026-01-03,4.25\n",
        "numbers": "0.1,0.2,0.3\n0.4,0.5,0.6\n0.7,0.8,0.9\n",
        "blank after comma": "id, name, age\n1, Ada, 36\n2, Grace, 85\n",
    },
    "text/tab-separated-values": {
        "plain": "id\tname\n1\tAda\n2\tGrace\n",
        "sentences": "id\ttext\n1\tThis is a sentence, with commas.\n2\tAnd another one, too.\n",
    },
}
_JSON = {
    "object": '{"name": "Ada", "tags": ["a", "b"], "n": 1.5e3, "none": null}',
    "array": '[1, 2, {"a": []}]',
    "pretty": json.dumps({"a": [1, 2], "b": {"c": "é"}}, indent=2, ensure_ascii=False) + "\n",
    "empty": "{}",
    "russian": json.dumps({"имя": "Ада"}, ensure_ascii=False),
    "html inside": '{"html": "<html><script>alert(1)</script>"}',
}
_MAIL = (
    "Return-Path: <a@example.com>\nReceived: from x by y; Mon, 5 Jan 2026 10:00:00 +0000\nFrom: Ada <a@example.com>\n"
    "To: b@example.com\nSubject: Hello\nDate: Mon, 5 Jan 2026 10:00:00 +0000\nMessage-ID: <1@example.com>\n\nHello,\nAda\n"
)
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'

# Types with their texts; each is found without its name.
TEXTS: dict[str, dict[str, str]] = {
    "text/plain": _PROSE,
    "text/markdown": _MARKDOWN,
    **_TABLES,
    "application/json": _JSON,
    "application/x-ndjson": {
        "plain": '{"a": 1}\n{"a": 2}\n{"a": 3}\n',
        "nested": '{"a": {"b": [1]}}\n{"a": {"b": []}}\n',
        "arrays": "[1, 2]\n[3, 4]\n",
    },
    "application/x-ipynb+json": {"plain": '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'},
    "application/geo+json": {"plain": '{"type": "FeatureCollection", "features": []}'},
    "text/html": {
        "page": "<!DOCTYPE html>\n<html lang=en><head><title>T</title></head><body><p>Hello</p></body></html>\n",
        "no doctype": "<html><body>Hello</body></html>\n",
        "comment": "<!-- saved -->\n<!doctype html>\n<title>T</title><p>Hello\n",
        "script": "<script>alert(document.domain)</script>\n",
        "piece": "<div class=card><span onclick='x()'>Hello</span></div>\n",
        "plain piece": "<h1>Hello</h1>\n<p>A paragraph.</p>\n",
        "blanks": "\n\n   \t<HTML><HEAD><TITLE>old</TITLE></HEAD></HTML>\n",
    },
    "application/xhtml+xml": {
        "page": _XML
        + '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "a.dtd">\n<html xmlns="http://www.w3.org/1999/xhtml"><body/></html>\n'
    },
    "image/svg+xml": {
        "declared": _XML + '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><path d="M0 0"/></svg>\n',
        "bare": '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>\n',
        "commented": _XML
        + "<!-- Generator: a drawing program -->\n<!DOCTYPE svg PUBLIC '-//W3C//DTD SVG 1.1//EN' 'svg11.dtd'>\n<svg width='1'/>\n",
        "prefixed": '<s:svg xmlns:s="http://www.w3.org/2000/svg"/>\n',
        "entities": _XML + '<!DOCTYPE svg [<!ENTITY ns "http://www.w3.org/2000/svg">]>\n<svg xmlns="&ns;"/>\n',
    },
    "application/xml": {
        "declared": _XML + "<project><modelVersion>4.0.0</modelVersion></project>\n",
        "bare": "<note><to>Ada</to></note>\n",
    },
    "application/rss+xml": {"plain": _XML + '<rss version="2.0"><channel><title>T</title></channel></rss>\n'},
    "application/atom+xml": {"plain": _XML + '<feed xmlns="http://www.w3.org/2005/Atom"><title>T</title></feed>\n'},
    "application/gpx+xml": {"plain": _XML + '<gpx version="1.1"><wpt lat="1" lon="2"/></gpx>\n'},
    "message/rfc822": {"plain": _MAIL, "short": "From: a@example.com\nTo: b@example.com\nSubject: Hi\n\nHi\n"},
    "application/mbox": {"plain": "From a@example.com Mon Jan  5 10:00:00 2026\n" + _MAIL},
    "text/x-shellscript": {"sh": "#!/bin/sh\nset -e\necho hello\n", "bash": "#!/usr/bin/env bash\necho hello\n"},
    "text/x-python": {
        "env": "#!/usr/bin/env python3\nprint('hello')\n",
        "path": "#!/usr/bin/python3.11 -u\nimport os\n",
    },
    "text/x-perl": {"plain": "#!/usr/bin/perl -w\nprint 1;\n"},
    "text/javascript": {
        "node": "#!/usr/bin/env node\nconsole.log(1)\n",
        "strict": '/* head */\n"use strict";\nlet a = 1;\n',
    },
    "text/x-php": {"plain": "<?php\necho 'hello';\n"},
    "text/x-diff": {
        "git": "diff --git a/a.txt b/a.txt\nindex 1..2 100644\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+b\n",
        "plain": "--- a.txt\n+++ b.txt\n@@ -1 +1 @@\n-a\n+b\n",
    },
    "text/calendar": {"plain": "BEGIN:VCALENDAR\nVERSION:2.0\nEND:VCALENDAR\n"},
    "text/vcard": {"plain": "BEGIN:VCARD\nVERSION:4.0\nFN:Ada\nEND:VCARD\n"},
    "text/vtt": {"plain": "WEBVTT\n\n00:01.000 --> 00:02.000\nHello\n"},
    "application/x-subrip": {"plain": "1\n00:00:01,000 --> 00:00:02,000\nHello\n\n"},
    "application/vnd.apple.mpegurl": {"plain": "#EXTM3U\n#EXT-X-VERSION:3\na.ts\n"},
    "application/x-pem-file": {"plain": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"},
    "application/pgp-keys": {
        "plain": "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQEN\n-----END PGP PUBLIC KEY BLOCK-----\n"
    },
    "application/rtf": {"plain": "{\\rtf1\\ansi\\deff0 {\\fonttbl{\\f0 Times;}} Hello\\par}\n"},
    "application/postscript": {"plain": "%!PS-Adobe-3.0\n%%Pages: 1\nshowpage\n"},
    "text/x-tex": {"plain": "% a comment\n\\documentclass{article}\n\\begin{document}a\\end{document}\n"},
}

# Types that only the file name distinguishes: (name, type, text).
NAMED: tuple[tuple[str, str, str], ...] = (
    ("config.yaml", "application/yaml", "a: 1\nb:\n  - c\n"),
    ("openapi.yml", "application/yaml", '{"openapi": "3.1.0"}\n'),
    ("pyproject.toml", "application/toml", '[project]\nname = "a"\n'),
    ("site.css", "text/css", "body { color: red }\n"),
    ("app.js", "text/javascript", "let a = 1;\n"),
    ("app.ts", "application/typescript", "const a: number = 1;\n"),
    ("main.py", "text/x-python", "import os\nprint(os)\n"),
    ("main.rs", "text/x-rust", "fn main() {}\n"),
    ("main.go", "text/x-go", "package main\n"),
    ("query.sql", "application/sql", "SELECT 1;\n"),
    ("README.md", "text/markdown", "Nothing but words.\n"),
    ("TODO.MD", "text/markdown", "words\n"),
    ("data.csv", "text/csv", "a\n1\n"),
    ("one.jsonl", "application/x-ndjson", '{"a": 1}\n'),
    ("list.txt", "text/plain", "a\nb\n"),
    ("server.log", "text/plain", "2026-01-01 INFO started, listening\n2026-01-01 WARN slow\n"),
    ("place.geojson", "application/geo+json", '{"type": "Point", "coordinates": [1, 2]}'),
    ("Makefile", "text/x-makefile", "all:\n\techo\n"),
    ("fake.md", "application/pdf", "%PDF-1.4\nnot Markdown at all\n"),
    ("fake.txt", "text/html", "<!doctype html><script>alert(1)</script>\n"),
)


def older(language: str) -> tuple[str, ...]:
    return _OLDER.get(language, ())
