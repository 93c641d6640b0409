"""The health check of the container image: exit with 0 if the hub answers `GET /healthz`, and with 1 otherwise.

It needs only the standard library, because it starts every ten seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

# Below the timeout of the check in the Dockerfile, so that the reason is printed.
TIMEOUT_SECONDS = 4.0


def main() -> str | None:
    """Return the reason why the hub is not healthy, or none."""
    port = int(os.environ.get("ONCEWARD_HUB__PORT", "8787"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    if os.environ.get("ONCEWARD_HUB__TLS_CERT"):
        # The certificate is for the public name, and the connection does not leave the container.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS, context=context)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"the hub does not answer: {error}"
    return None if status == http.client.OK else f"the hub answered with status {status}"


if __name__ == "__main__":
    sys.exit(main())
