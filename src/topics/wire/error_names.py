"""Names in errors: an error for somebody who may know only some names (`http-api.md` section 8.7).

Most errors are about what the caller has named. Those here bring names that were stored, and are cut; a test makes
every error there is with a foreign name in it. Called by `auth` for keys that are bound to prefixes.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.errors import CorruptSegment, Internal, RouterCycle, TopicExistsIncompatible, TopicsError

Permits = Callable[[str], bool]
_ENDS = ("existing_source", "existing_dest")


def error_seen(error: TopicsError, permits: Permits) -> TopicsError:
    """The error without the names that are not permitted and were not sent; itself if it has none."""
    if isinstance(error, RouterCycle):
        return _cycle(error, permits)
    if isinstance(error, TopicExistsIncompatible):
        return _incompatible(error, permits)
    if isinstance(error, CorruptSegment) and not permits(error.topic):
        return Internal("a record that this needs is damaged")
    return error


def _cycle(error: RouterCycle, permits: Permits) -> TopicsError:
    known = [topic for topic in error.cycle if permits(topic)]
    if len(known) == len(error.cycle):
        return error
    seen = RouterCycle(known)
    seen.message = f"the router would close a cycle through topics that the key may not see, and {' -> '.join(known)}"
    seen.detail = {"cycle": known, "hidden": ["cycle"]}
    return seen


def _incompatible(error: TopicExistsIncompatible, permits: Permits) -> TopicsError:
    """A router that was to be pointed elsewhere: where it goes now."""
    detail = dict(error.detail or {})
    ends = [key for key in _ENDS if key in detail]
    if all(permits(str(detail[key])) for key in ends):
        return error
    shown = {key: value for key, value in detail.items() if key not in ends} | {"hidden": ends}
    return TopicExistsIncompatible(f"router {detail['router']!r} already goes elsewhere", detail=shown)
