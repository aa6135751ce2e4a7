from vanilla_transformer_hf.commands.main import run_script


if __name__ == "__main__":
    run_script("export-checkpoint")
