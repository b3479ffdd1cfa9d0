"""The same job started twice at the same moment: one owns it, the others are told by whom; twenty rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 20

STARTER = """
import json, sys
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.errors import JobOwnedError

storage = FileSystemCheckpointStorage(sys.argv[1])
for line in sys.stdin:
    job = line.strip()
    lease = Lease(storage, job)
    try:
        lease.acquire()
    except JobOwnedError as refusal:
        print(json.dumps({"owner": False, "message": str(refusal)}), flush=True)
        continue
    directory = JobDirectory(storage, job)
    run = directory.open_run()
    attempt = directory.claim_attempt()
    directory.record_restored(attempt, None)
    print(json.dumps({"owner": True, "run": run, "attempt": attempt}), flush=True)
"""


@pytest.mark.timeout(120)
def test_of_several_that_start_at_once_one_owns_the_job_and_the_others_are_refused_by_name(tmp_path: Path) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        for number in range(ROUNDS):
            for starter in starters:
                assert starter.stdin is not None
                starter.stdin.write(f"job-{number}\n")
                starter.stdin.flush()
            answers = [json.loads(starter.stdout.readline()) for starter in starters if starter.stdout is not None]
            owners = [index for index, answer in enumerate(answers) if answer["owner"]]
            assert len(owners) == 1, answers
            assert answers[owners[0]]["run"] == answers[owners[0]]["attempt"] == 1
            owner = starters[owners[0]].pid
            for answer in answers:
                assert answer["owner"] or f"is run by process {owner}" in answer["message"]
    finally:
        for starter in starters:
            starter.communicate()
