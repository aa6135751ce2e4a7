"""A simple server for comparison: a FastAPI application around `generate()`, with a thread for each request."""

import sys

import torch
from fastapi import FastAPI
from pydantic import BaseModel

from vanilla_transformer_hf.common.opening import open_model
from vanilla_transformer_hf.serving.http import address_of, bind, run_server


class Request(BaseModel):
    """The body of a request."""

    q: str


def plain_application(folder: str) -> FastAPI:
    """POST /translate of a text, and GET /ready."""
    model, tokenizer = open_model(folder, device="cpu")
    model.eval()
    application = FastAPI()

    @application.post("/translate")
    @torch.inference_mode()
    def translate(request: Request) -> dict[str, str]:
        sequences = model.generate(**tokenizer(request.q, return_tensors="pt"))
        return {"translatedText": tokenizer.decode(sequences[0], skip_special_tokens=True)}

    @application.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    return application


if __name__ == "__main__":
    listening = bind("127.0.0.1", 0)
    application = plain_application(sys.argv[1])
    print(f"listening on {address_of(listening)}", file=sys.stderr, flush=True)
    run_server(application, listening)
