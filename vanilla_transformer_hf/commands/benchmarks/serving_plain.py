"""A simple server for comparison: an application around `generate()`, with a thread for each request."""

import sys

import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

from vanilla_transformer_hf.common.http import address_of, bind, parse_object, run_server
from vanilla_transformer_hf.common.opening import open_model


def plain_application(folder: str) -> Starlette:
    """POST /translate of a text, and GET /ready."""
    model, tokenizer = open_model(folder, device="cpu")
    model.eval()

    @torch.inference_mode()
    def translated(text: str) -> str:
        sequences = model.generate(**tokenizer(text, return_tensors="pt"))
        return tokenizer.decode(sequences[0], skip_special_tokens=True)

    def ready(request):
        return JSONResponse({"status": "ready"})

    async def translate(request):
        body = parse_object(await request.body())
        return JSONResponse({"translatedText": await run_in_threadpool(translated, body["q"])})

    return Starlette(routes=[Route("/translate", translate, methods=["POST"]), Route("/ready", ready)])


if __name__ == "__main__":
    listening = bind("127.0.0.1", 0)
    application = plain_application(sys.argv[1])
    print(f"listening on {address_of(listening)}", file=sys.stderr, flush=True)
    run_server(application, listening)
