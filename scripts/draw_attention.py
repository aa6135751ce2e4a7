from vanilla_transformer_hf_command import run_script


if __name__ == "__main__":
    run_script("attention")
