"""`python -m vanilla_transformer_hf` is `vanilla-transformer`."""

from .commands.main import main


if __name__ == "__main__":
    main()
