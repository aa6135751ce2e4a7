"""The subcommands of scripts/benchmark.py."""
