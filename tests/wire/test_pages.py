"""Hosts and origins (`docs/spec/http-api.md#sec-8-8`), as pure decisions."""

from __future__ import annotations

from typing import Any

import pytest

from topics.config import Settings
from topics.errors import ConfigError, HostNotAllowed, OriginNotAllowed, TopicsError
from topics.wire.access.auth import PageRules
from topics.wire.endpoints import ENDPOINTS
from topics.wire.incoming.request_head import Routes

ROUTES = Routes(ENDPOINTS)


def rules(*, is_guarded: bool = False, **settings: Any) -> PageRules:
    return PageRules.from_settings(Settings.from_kwargs(**settings), is_guarded=is_guarded)


def refusal(made: PageRules, method: str = "POST", path: bytes = b"/v0/topics/t", **headers: str) -> str | None:
    """The code of the refusal. Keywords are header fields, `_` for `-`."""
    fields = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    try:
        made.check(method, fields, ROUTES.find(method, path))
    except TopicsError as error:
        return error.code
    return None


ADDRESSES = [
    "127.0.0.1", "127.0.0.1:4000", "127.8.9.1:1", "[::1]:4000", "[::1]", "10.1.2.3:4000", "[fe80::1%25eth0]:4000",
    "localhost", "localhost:4000", "LocalHost.", "app.localhost:4000", "127.1", "2130706433", "0x7f000001", "",
    "localhost:",
]  # fmt: skip
NAMES = [
    "evil.example",
    "evil.example:4000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example.",
    ".",
    "..",
    "localhost..",
    "x%2elocalhost",
]
PRIVATE = ["a", "topics:4000", "topics.local", "host.docker.internal:4000", "topics.ns.svc.cluster.local"]


@pytest.mark.parametrize("host", ADDRESSES)
def test_addresses_and_localhost_are_good_hosts(host: str) -> None:
    assert refusal(rules(), host=host) is None


@pytest.mark.parametrize("host", NAMES)
def test_names_that_a_stranger_may_own_are_refused_without_keys(host: str) -> None:
    for method, path in (("GET", b"/v0/topics"), ("POST", b"/v0/topics/t"), ("GET", b"/nowhere"), ("GET", b"/console")):
        assert refusal(rules(), method, path, host=host) == "host_not_allowed"
    assert refusal(rules(is_guarded=True), host=host) is None
    assert refusal(rules(allowed_hosts="*"), host=host) is None


def test_names_of_private_networks_are_good_where_everybody_there_may_do_everything() -> None:
    opened = rules(host="0.0.0.0", allow_insecure_no_auth=True)
    assert [refusal(opened, host=host) for host in PRIVATE] == [None] * len(PRIVATE)
    assert refusal(opened, host="evil.example") == "host_not_allowed"


BROWSERS = [{"origin": "http://topics:4000"}, {"sec_fetch_site": "same-origin"}, {"user_agent": "Mozilla/5.0 (X11)"}]


@pytest.mark.parametrize("host", PRIVATE)
def test_names_of_a_private_network_are_good_for_programs_and_refused_to_browsers(host: str) -> None:
    for method, path in (("GET", b"/v0/topics"), ("POST", b"/v0/topics/t")):
        assert refusal(rules(), method, path, host=host, user_agent="curl/8.0") is None
        for headers in BROWSERS:
            assert refusal(rules(), method, path, host=host, **headers) == "host_not_allowed"


def test_listed_hosts_are_good() -> None:
    listed = rules(allowed_hosts="Topics.Example.com, *.corp.example")
    for host in ("topics.example.com", "TOPICS.example.com:4000", "a.b.corp.example", "a.corp.example:1"):
        assert refusal(listed, host=host) is None
    for host in ("corp.example", "evilcorp.example", "x.topics.example.com"):
        assert refusal(listed, host=host) == "host_not_allowed"
    assert refusal(rules(host="mybox"), host="mybox:4000") is None


def test_no_host_at_all_is_no_browser() -> None:
    assert refusal(rules()) is None


@pytest.mark.parametrize("path", [b"/healthz", b"/readyz", b"/v0/health", b"/v0/ready"])
def test_probes_are_asked_by_any_name(path: bytes) -> None:
    assert refusal(rules(), "GET", path, host="evil.example") is None


# --- origins ---------------------------------------------------------------------------------------------------------

CHANGING = [
    ("POST", b"/v0/topics/t"), ("PUT", b"/v0/topics/t"), ("DELETE", b"/v0/topics/t"), ("POST", b"/v0/topics/t/diff"),
    ("POST", b"/v0/watch"), ("GET", b"/v0/ws"), ("GET", b"/v0/topics/t/work"), ("PATCH", b"/nowhere"),
]  # fmt: skip
READING = [("GET", b"/v0/topics"), ("GET", b"/v0/watch/w"), ("GET", b"/console"), ("HEAD", b"/v0/topics/t")]
FOREIGN: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://127.0.0.1:40000"},
    {"origin": "file://127.0.0.1:4000"},
    {"origin": "http://evil.example", "sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
]
OWN: list[dict[str, str]] = [
    {},
    {"origin": "http://127.0.0.1:4000"},
    {"origin": "https://127.0.0.1:4000"},
    {"sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "none"},
    {"origin": "https://topics.example.com", "sec_fetch_site": "same-origin"},
]


def test_every_get_that_acts_is_known() -> None:
    """A GET that changes something must be refused to foreign pages: look here when a row is added."""
    acting = {row.handler for row in ENDPOINTS if row.method == "GET" and row.acts}
    assert acting == {"work", "websocket"}


@pytest.mark.parametrize(("method", "path"), CHANGING)
@pytest.mark.parametrize("headers", FOREIGN)
def test_a_foreign_page_changes_nothing(method: str, path: bytes, headers: dict[str, str]) -> None:
    assert refusal(rules(), method, path, host="127.0.0.1:4000", **headers) == "origin_not_allowed"
    assert refusal(rules(is_guarded=True), method, path, host="127.0.0.1:4000", **headers) is None


@pytest.mark.parametrize(("method", "path"), READING)
@pytest.mark.parametrize("headers", FOREIGN)
def test_what_a_page_elsewhere_cannot_see_is_answered(method: str, path: bytes, headers: dict[str, str]) -> None:
    assert refusal(rules(), method, path, host="127.0.0.1:4000", **headers) is None


@pytest.mark.parametrize(("method", "path"), CHANGING)
@pytest.mark.parametrize("headers", OWN)
def test_our_own_pages_and_programs_may(method: str, path: bytes, headers: dict[str, str]) -> None:
    assert refusal(rules(), method, path, host="127.0.0.1:4000", **headers) is None


def test_ports_that_go_without_saying() -> None:
    assert refusal(rules(), host="localhost", origin="http://localhost:80") is None
    assert refusal(rules(), host="localhost:443", origin="https://localhost") is None
    assert refusal(rules(), host="localhost:443", origin="http://localhost") == "origin_not_allowed"


def test_listed_origins_may_and_are_told_so() -> None:
    listed = rules(allowed_origins="https://App.example.com/, http://localhost:3000")
    assert refusal(listed, host="127.0.0.1:4000", origin="https://app.example.com") is None
    assert refusal(listed, host="127.0.0.1:4000", origin="http://app.example.com") == "origin_not_allowed"
    shown = dict(listed.shown_to({b"origin": b"https://app.example.com"}))
    assert shown[b"access-control-allow-origin"] == b"https://app.example.com"
    assert shown[b"vary"] == b"Origin"
    assert listed.shown_to({b"origin": b"https://evil.example"}) == ()
    assert rules().shown_to({b"origin": b"https://app.example.com"}) == ()
    everyone = rules(allowed_origins="*")
    assert dict(everyone.shown_to({b"origin": b"null"}))[b"access-control-allow-origin"] == b"null"


def test_a_preflight_is_answered_for_listed_pages_only() -> None:
    listed = rules(allowed_origins="http://localhost:3000")
    asked = {
        b"origin": b"http://localhost:3000",
        b"access-control-request-method": b"PUT",
        b"access-control-request-headers": b"authorization,content-type",
    }
    answer = listed.preflight("OPTIONS", asked)
    assert answer is not None
    assert dict(answer)[b"access-control-allow-headers"] == b"authorization,content-type"
    assert b"DELETE" in dict(answer)[b"access-control-allow-methods"]
    assert listed.preflight("GET", asked) is None
    assert listed.preflight("OPTIONS", {**asked, b"origin": b"http://evil.example"}) is None
    assert rules().preflight("OPTIONS", asked) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_hosts": "http://topics.example.com"},
        {"allowed_hosts": "topics:4000"},
        {"allowed_hosts": "*example.com"},
        {"allowed_origins": "app.example.com"},
        {"allowed_origins": "https://app.example.com/path"},
        {"allowed_origins": "https://*.example.com"},
    ],
)
def test_a_list_that_cannot_mean_anything_stops_the_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        rules(**settings)
    assert "TOPICS_ALLOWED_" in refused.value.message


def test_the_refusals_name_the_settings() -> None:
    target = ROUTES.find("POST", b"/v0/topics/t")
    with pytest.raises(HostNotAllowed, match=r"'evil\.example'.* TOPICS_ALLOWED_HOSTS"):
        rules().check("POST", {b"host": b"evil.example"}, target)
    with pytest.raises(OriginNotAllowed, match=r"http://evil\.example.* TOPICS_ALLOWED_ORIGINS"):
        rules().check("POST", {b"host": b"127.0.0.1", b"origin": b"http://evil.example"}, target)
