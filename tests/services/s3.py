"""A real server that speaks S3, in a process of its own: moto, unthreaded, so that its conditional put is atomic."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.testing.ports import free_ports

_PROGRAM = """
import sys
from werkzeug.serving import run_simple
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""
_READY_WITHIN_S = 180


@dataclass(frozen=True)
class S3Server:
    """Where it listens; any credentials do."""

    port: int

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client, or the command line, needs to find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create_bucket(self, name: str) -> str:
        """Its URI."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("PUT", f"/{name}", headers={"Authorization": _ANYBODY})
        assert connection.getresponse().status == 200
        connection.close()
        return f"s3://{name}"


_ANYBODY = "AWS4-HMAC-SHA256 Credential=test/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Start it, wait for its first answer, and end it."""
    (port,) = free_ports(1)
    # Not a pipe: nobody would empty it.
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for_answer(port, process)
        yield S3Server(port)
    finally:
        process.kill()
        process.wait()


def _wait_for_answer(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended with {process.returncode} before it answered")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/moto-api/")
            connection.getresponse().read()
            connection.close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the S3 server on port {port} did not answer within {_READY_WITHIN_S} s")
