"""The list of tracking parameters: its content, and its version."""

from __future__ import annotations

import hashlib
import json

import pytest

from onceward.hub.ingest.normalize import tracking
from onceward.hub.ingest.normalize.url import canonical

# The hash of the whole list by its version. A change of the list makes other keys: it needs a new version, and a line.
LISTS = {
    1: "d66f43c93be255f105957e18ecedf4932449104e39a65631947afe24f8a998c3",
    # Names in any case.
    2: "afcaa0bd74477c0fb6f097f386786a05d76209841b48963f9026cd98349c78f1",
}


def test_every_change_of_the_list_raises_its_version() -> None:
    whole = {
        "everywhere": sorted(tracking.EVERYWHERE),
        "hosts": {host: [sorted(rule.adds), sorted(rule.keeps)] for host, rule in sorted(tracking.HOSTS.items())},
    }

    assert hashlib.sha256(json.dumps(whole).encode()).hexdigest() == LISTS[tracking.VERSION]
    assert max(LISTS) == tracking.VERSION


@pytest.mark.parametrize(
    "name", ["ref", "source", "s", "t", "tag", "si", "id", "q", "v", "p", "page", "campaign", "cid"]
)
def test_meaningful_names_are_not_listed_for_all_hosts(name: str) -> None:
    assert name not in tracking.EVERYWHERE


def test_a_rule_has_a_canonical_host_and_is_not_empty() -> None:
    for host, rule in tracking.HOSTS.items():
        assert canonical(f"https://{host}/") == f"https://{host}/"
        assert rule.adds or rule.keeps, host
        assert not rule.adds & tracking.EVERYWHERE, f"{host}: listed for all hosts already"
        assert rule.keeps <= tracking.EVERYWHERE, f"{host}: not listed for all hosts, so there is nothing to except"


def test_names_are_valid_query_parameters() -> None:
    names = tracking.EVERYWHERE.union(*(rule.adds for rule in tracking.HOSTS.values()))

    assert not [name for name in names if set(name) & set("&=#%+ ") or not name.isascii()]
    assert not [name for name in names if name != name.lower()]


def test_no_host_is_named_twice() -> None:
    named = [host for hosts, _ in (*tracking._TRACK_THERE, *tracking._CARRY_MEANING_THERE) for host in hosts.split()]

    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    ("host", "nearest"),
    [("youtube.com", "youtube.com"), ("a.b.youtube.com", "youtube.com"), ("x.aws.amazon.com", "aws.amazon.com")],
)
def test_the_rule_of_the_nearest_domain_applies(host: str, nearest: str) -> None:
    assert tracking.rule_for(host) is tracking.HOSTS[nearest]


@pytest.mark.parametrize("host", ["", "com", "example", "notyoutube.com", "youtube.com.example", "."])
def test_other_hosts_have_the_common_rule(host: str) -> None:
    rule = tracking.rule_for(host)

    assert (rule.adds, rule.keeps) == (frozenset(), frozenset())
