# A translation server on a CPU. Build it in the checkout, and give it the folder of a model:
#   docker build --tag vanilla-transformer .
#   docker run --publish 8000:8000 --volume "$PWD/outputs/quickstart:/model:ro" vanilla-transformer
FROM python:3.11-slim

WORKDIR /app
COPY pyproject.toml vanilla_transformer_hf_command.py constraints.txt README.md LICENSE MANIFEST.in ./
COPY vanilla_transformer_hf vanilla_transformer_hf

# torch comes first: what is installed after it takes the build that is already there. Its build for CPUs alone is
# smaller by gigabytes: --build-arg PIP_EXTRA_INDEX_URL=, with the address that torch's own page of installation names.
ARG PIP_EXTRA_INDEX_URL=
RUN python -m pip install --no-cache-dir --constraint constraints.txt torch
RUN python -m pip install --no-cache-dir --constraint constraints.txt ".[serve]"

# Not as root; the model is mounted, and nothing is downloaded.
RUN useradd --create-home server
USER server
ENV HF_HUB_OFFLINE=1

EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["vanilla-transformer", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/model"]
