"""What of the machine is there for this process now: cores, those that are idle, memory, accelerators."""

from pathlib import Path
from typing import NamedTuple

import torch


# Seconds in which the idle cores are counted. The load average of the system (`os.getloadavg`) needs a minute to show
# that a program has begun or ended, the last run of a command among them.
SECONDS = 0.3
# Where Linux keeps the memory that a container may use, and how much of it is used: cgroups of version 2 and 1.
CGROUP = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


class Machine(NamedTuple):
    """What is there for this process."""

    # The cores that it may use, by its affinity, the limits of its container and OMP_NUM_THREADS; of two that share
    # one, one.
    cores: int
    idle: float  # the cores of the machine that nobody used just now; with a fraction
    memory: int  # free bytes
    accelerators: int  # the accelerators that it computes on; 0: it computes on the CPU

    @property
    def free_cores(self) -> int:
        """The threads for which there is a core: this process may use it, and others leave it idle."""
        return max(1, min(self.cores, round(self.idle)))


def device_type(device: str | None) -> str:
    """The type of a device, such as cpu or cuda; None: an accelerator if there is one."""
    if device is not None:
        return device.partition(":")[0]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else accelerator.type


def accelerators(device: str | None) -> int:
    """How many accelerators a name means."""
    if device_type(device) == "cpu":
        return 0
    return 1 if device is not None and ":" in device else torch.accelerator.device_count()


def free_memory() -> int:
    """The bytes that this process may still take: those of the machine, or of its container if these are fewer."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in LIMITS:
        try:
            left = int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text())
        except (OSError, ValueError):  # no such limit, or "max"
            continue
        free = min(free, left)
    return max(0, free)


def look(device: str | None) -> Machine:
    """Look at the machine, which takes `SECONDS`."""
    import joblib
    import psutil

    idle = (psutil.cpu_count() or 1) * (1 - psutil.cpu_percent(interval=SECONDS) / 100)
    cores = min(joblib.cpu_count(), torch.get_num_threads())
    return Machine(cores, idle, free_memory(), accelerators(device))
