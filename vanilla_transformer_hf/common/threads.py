"""How threads that compute together wait for each other. Nothing heavy is imported: it is decided before torch is."""

import os


# GNU's OpenMP, which torch's wheels for Linux use, lets a thread look this often whether the others are done before it
# sleeps. Its own 300,000 keep cores from the very threads that are waited for when other work takes them up; threads
# that sleep at once are slow on a quiet machine.
TURNS = 10_000
# Variables by which a user, or a cluster, sets how threads wait.
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def wait_briefly() -> None:
    """Let threads of this process and its children wait `TURNS` turns, unless the environment sets how they wait."""
    if not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = str(TURNS)
