"""Query parameters that say where a reader came from, not what the page is.

Our own list, of exact names as programs write them (letters in their case). A name is on the list of all hosts only if
it means nothing else anywhere that we know of: `ref`, `source`, `s` or `tag` are not, because on many hosts they choose
what is shown. Hosts add their own names, and except names that carry meaning there.

A secondary key of a link is made with this list. Every change of it raises VERSION, so that it can be told with which
list a key was made.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True, slots=True)
class HostRule:
    """What is different on a host and on all below it: names that track only there, and listed names that do not."""

    adds: frozenset[str] = frozenset()
    keeps: frozenset[str] = frozenset()


EVERYWHERE = frozenset(
    "utm_source utm_medium utm_campaign utm_term utm_content utm_id "
    "gclid gclsrc dclid gbraid wbraid fbclid msclkid yclid twclid ttclid igshid mc_cid mc_eid mkt_tok".split()
)

HOSTS: dict[str, HostRule] = {
    "youtube.com": HostRule(adds=frozenset({"si"})),
    "youtu.be": HostRule(adds=frozenset({"si"})),
}


def rule_for(host: str) -> HostRule | None:
    """The rule of the host itself or of the nearest domain above it."""
    while host:
        if (rule := HOSTS.get(host)) is not None:
            return rule
        _, _, host = host.partition(".")
    return None
