"""
The console command `vanilla-transformer`.

It lies beside the package, which registers with transformers as soon as anything in it is imported. That takes
seconds, and help does without: once a command has started, `commands/main.py` registers when it runs.
"""

has_started = False  # as a command; the package reads it


def main() -> None:
    """Run the command line of this process."""
    global has_started
    has_started = True
    from vanilla_transformer_hf.commands.main import main as run

    run()


def run_script(name: str) -> None:
    """Run a command for a file in scripts/; its messages begin with the file's name."""
    global has_started
    has_started = True
    from vanilla_transformer_hf.commands.main import run_script as run

    run(name)
