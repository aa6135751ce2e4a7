"""`python -m vanilla_transformer_hf` is `vanilla-transformer`."""

from vanilla_transformer_hf_command import main


if __name__ == "__main__":
    main()
