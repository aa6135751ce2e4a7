"""Scripts in processes of their own that begin with torch and transformers imported, which takes others seconds."""

import multiprocessing
import os
import runpy
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory


# Neither our package, whose registration scripts ask for, nor `datasets`, which reads where its cache is on import.
IMPORTED = ["torch", "transformers.modeling_utils", "transformers.pipelines"]


def run_script(
    script: str | Path, *arguments: str, folder: Path | None = None, environment: dict[str, str] | None = None
) -> CompletedProcess[str]:
    """
    What `subprocess.run([sys.executable, script, *arguments], cwd=folder, env=environment)` returns, with its output.
    Variables that torch, transformers or huggingface_hub read on import are those of the tests.
    """
    command = [str(script), *arguments]
    with TemporaryDirectory() as place:
        outputs = [Path(place, name) for name in ("stdout", "stderr")]
        given = (command, folder or Path.cwd(), environment or {**os.environ}, outputs)
        process = _start(_run, *given)
        process.join()
        texts = [path.read_text(encoding="utf-8") for path in outputs]
        return CompletedProcess(command, process.exitcode, *texts)


class ForkedPopen:
    """What `subprocess.Popen([sys.executable, "-c", code, …])` is to engines of benchmarks, begun likewise."""

    def __init__(self, command: list[str], stderr, env: dict[str, str], **pipes):
        given, stdin = os.pipe()
        stdout, written = os.pipe()
        ends = [Connection(each) for each in (given, written, os.dup(stderr.fileno()))]
        self._process = _start(_run_code, command[2:], env, ends)
        for end in ends:
            end.close()
        self.stdin, self.stdout, self.kill = os.fdopen(stdin, "w"), os.fdopen(stdout), self._process.kill

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


def _start(target, *arguments) -> multiprocessing.Process:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def _run_code(command: list[str], environment: dict[str, str], ends: list[Connection]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.argv = os.fdopen(0), ["-c", *command[1:]]
    exec(compile(command[0], "-c", "exec"), {"__name__": "__main__"})


def _run(command: list[str], folder: Path, environment: dict[str, str], outputs: list[Path]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
