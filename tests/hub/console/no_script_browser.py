"""A browser without script: it follows links and redirects, and sends the forms that a page really has."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit

import httpx
from tests.hub.in_process_hub import Client

FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass
class PageForm:
    """A form of a page: its address, its method, and the fields that a browser would send."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[PageForm] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._textarea: list[str] | None = None
        self._name = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        name = found.get("name")
        match tag:
            case "form":
                self.forms.append(PageForm(found.get("action") or "", found.get("method") or "get"))
            case "a" if found.get("href"):
                self.links.append(found["href"] or "")
            case "input" if name and self.forms:
                if found.get("type") not in ("radio", "checkbox") or "checked" in found:
                    self.forms[-1].fields.append((name, found.get("value") or ""))
            case "textarea" if name:
                self._textarea, self._name = [], name

    def handle_data(self, data: str) -> None:
        if self._textarea is not None:
            self._textarea.append(data)
        self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._textarea is not None:
            self.forms[-1].fields.append((self._name, "".join(self._textarea)))
            self._textarea = None


@dataclass
class Page:
    """A page as a reader sees it."""

    response: httpx.Response

    def __post_init__(self) -> None:
        self._read = _Reader()
        self._read.feed(self.response.text)

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def path(self) -> str:
        return urlsplit(str(self.response.url)).path

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._read.texts).split())

    @property
    def links(self) -> list[str]:
        return self._read.links

    @property
    def tags(self) -> list[tuple[str, dict[str, str | None]]]:
        return self._read.tags

    def form(self, action: str) -> PageForm:
        return next(one for one in self._read.forms if one.action == action)

    def has_form(self, action: str) -> bool:
        return any(one.action == action for one in self._read.forms)


class NoScriptBrowser:
    """One visitor, with cookies of their own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        client.client.cookies.clear()

    @property
    def cookies(self) -> httpx.Cookies:
        return self._client.client.cookies

    def get(self, path: str) -> Page:
        return Page(self._client.get(path, follow_redirects=True))

    def send(self, page: Page, action: str, /, **fields: str | list[str]) -> Page:
        """Fill in a form of the page and send it."""
        form = page.form(action)
        pairs = [pair for pair in form.fields if pair[0] not in fields]
        pairs += [
            (name, one) for name, value in fields.items() for one in ([value] if isinstance(value, str) else value)
        ]
        return self.post(urljoin(page.path, action), pairs)

    def attach(self, page: Page, action: str, filename: str, content: bytes, /, **fields: str) -> Page:
        """Fill in a form that has a file, and send it: its fields first, in their order, then the file."""
        found = {**dict(page.form(action).fields), **fields}
        found.pop("content", None)
        files = {"content": (filename, content)}
        return Page(self._client.post(urljoin(page.path, action), data=found, files=files, follow_redirects=True))

    def post(self, path: str, pairs: list[tuple[str, str]], **headers: str) -> Page:
        content = urlencode(pairs)
        return Page(self._client.post(path, content=content, headers={**FORM, **headers}, follow_redirects=True))

    def log_in(self, token: str, path: str = "/console/") -> Page:
        return self.send(self.get(path), "/console/login", token=token)
