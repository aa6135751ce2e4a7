"""Scripts in processes of their own that begin with torch and transformers imported, which takes others seconds."""

import multiprocessing
import os
import runpy
import sys
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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    command = [str(script), *arguments]
    with TemporaryDirectory() as place:
        outputs = [Path(place, name) for name in ("stdout", "stderr")]
        given = (command, folder or Path.cwd(), environment or {**os.environ}, outputs)
        process = context.Process(target=_run, args=given)
        process.start()
        process.join()
        texts = [path.read_text(encoding="utf-8") for path in outputs]
        return CompletedProcess(command, process.exitcode, *texts)


def _run(command: list[str], folder: Path, environment: dict[str, str], outputs: list[Path]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
