"""Some of these tests use Django, which needs its settings before anything of it is imported."""

from __future__ import annotations

import tests.http.django_settings  # noqa: F401
