"""A program run by the command sees what it would see under `python`, and its errors look like its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.cli.program import Program
from headrace.datastream.overrides import Overrides, current_overrides

Write = Callable[[str], Path]

JOB = """
from headrace import NumberSequenceSource, StreamExecutionEnvironment, WatermarkStrategy

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(500)
numbers = env.from_source(NumberSequenceSource(1, 10), WatermarkStrategy.no_watermarks(), "numbers")
numbers.key_by(lambda n: n % 2).reduce(lambda a, b: a + b).print()
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts a program into the working directory."""
    monkeypatch.chdir(tmp_path)

    def put(source: str) -> Path:
        file = tmp_path / "job.py"
        file.write_text(source)
        return file

    return put


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


def test_a_program_sees_its_arguments_its_folder_and_the_name_main(write: Write, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'")
    program = write(
        "import sys, json, beside\n"
        "json.dump([__name__, sys.argv, beside.word, sys.modules['__main__'].__file__], open('seen.json', 'w'))\n"
    )
    before = list(sys.argv), list(sys.path), sys.modules["__main__"]
    Program("job.py", ("--speed", "9")).run(Overrides())
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == ["__main__", [str(program), "--speed", "9"], "beside", str(program)]
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    assert current_overrides() == Overrides()
    del sys.modules["beside"]


def test_explain_shows_the_plan_and_runs_nothing_after_execute(write: Write) -> None:
    write(JOB + "env.execute('sums')\nraise SystemExit('went on')")
    result = explain("job.py")
    assert result.exit_code == 0, result.output
    assert "Job sums (id sums)" in result.stdout
    assert "survives the loss of a task, not of this process" in result.stdout
    assert "at-least-once end to end" in result.stdout


def test_explain_as_json_is_nothing_but_json_even_if_the_program_prints(write: Write) -> None:
    write("print('hello')\n" + JOB + "env.execute('sums')")
    result = explain("job.py", "--json", "--parallelism", "3", "--checkpoint-dir", "ck", "--backend", "rocksdb")
    facts = json.loads(result.stdout)
    assert facts["name"] == "sums"
    assert facts["spark"]["slots"] == 6
    assert facts["backend"].startswith("RocksDB")
    assert facts["checkpointing"]["storage"].endswith("/ck")
    assert "hello" in result.stderr


def test_explain_takes_the_job_of_execute_and_collect_too(write: Write) -> None:
    write(JOB.replace(".print()", ".execute_and_collect('sums')"))
    assert "Job sums" in explain("job.py").stdout


def test_a_program_without_a_job_is_told_what_to_call(write: Write) -> None:
    write("x = 1")
    result = explain("job.py")
    assert result.exit_code == 3
    assert "job.py ended without a job" in result.stderr
    assert "env.execute()" in result.stderr


def test_a_wrong_program_is_refused_with_its_own_line_and_no_traceback(write: Write) -> None:
    write(JOB.replace(".print()", ".uid('a').print().uid('a')") + "\n\nenv.execute('sums')\n")
    result = explain("job.py")
    assert result.exit_code == 3
    assert "job.py:10" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_line_shown_is_the_programs_own_and_not_one_of_the_library_that_it_waited_in(write: Write) -> None:
    write(
        "from concurrent.futures import Future\nfrom headrace.errors import ConfigurationError\n\n"
        "waited = Future()\nwaited.set_exception(ConfigurationError('too few'))\nwaited.result()"
    )
    result = explain("job.py")
    assert "too few" in result.stderr
    assert "job.py:6" in result.stderr
    assert "_base.py" not in result.stderr


def test_verbose_shows_the_frames_of_headrace_too(write: Write) -> None:
    write(JOB.replace(".print()", ".uid('a').print().uid('a')") + "env.execute('sums')")
    result = explain("job.py", "--verbose")
    assert "Traceback" in result.stderr
    assert "headrace/plan" in result.stderr


def test_an_error_of_the_program_itself_shows_its_own_frames_only(write: Write) -> None:
    write("def parse(text):\n    return int(text)\n\nparse('four')")
    result = explain("job.py")
    assert result.exit_code == 1
    assert "ValueError: invalid literal for int() with base 10: 'four'" in result.stderr
    assert 'job.py", line 2, in parse' in result.stderr
    assert "runpy" not in result.stderr
    assert "headrace/cli" not in result.stderr


def test_a_program_may_choose_its_own_exit_code(write: Write) -> None:
    write("import sys; sys.exit(7)")
    assert explain("job.py").exit_code == 7
    assert CliRunner().invoke(main, ["run", "job.py"]).exit_code == 7


def test_run_refuses_a_program_that_starts_no_job(write: Write) -> None:
    write("x = 1")
    result = CliRunner().invoke(main, ["run", "job.py"])
    assert result.exit_code == 3
    assert "ended without a job" in result.stderr


def test_run_refuses_a_wrong_program_before_spark_is_needed(write: Write) -> None:
    write(JOB.replace(".print()", ".uid('a').print().uid('a')") + "env.execute('sums')")
    result = CliRunner().invoke(main, ["run", "job.py"])
    assert result.exit_code == 3
    assert "headrace:" in result.stderr
    assert "Traceback" not in result.stderr


def test_run_refuses_storage_that_cannot_be_written_before_spark_is_needed(write: Write, tmp_path: Path) -> None:
    write(JOB + "env.execute('sums')")
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["run", "job.py", "--checkpoint-dir", str(tmp_path / "file" / "ck")])
    assert result.exit_code == 3
    assert str(tmp_path / "file" / "ck") in result.stderr
    assert "Traceback" not in result.stderr
