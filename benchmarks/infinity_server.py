"""Serve a model by infinity, the embedding server, without its command line.

    pip install --no-deps --target FOLDER infinity-emb==0.0.78
    pip install --no-deps --target FOLDER prometheus-fastapi-instrumentator prometheus-client
    PYTHONPATH=FOLDER python benchmarks/infinity_server.py all-MiniLM-L6-v2 --port 8451 --name mini

Its command line wants an old typer and its extras an old transformers; the server itself runs with those of
this project, and with fastapi, uvicorn and orjson, which the extra ``demo`` brings.
"""

from __future__ import annotations

import argparse

import uvicorn
from infinity_emb import EngineArgs  # type: ignore[import-not-found]
from infinity_emb.infinity_server import create_server  # type: ignore[import-not-found]

from stickytoken.encoders.loading.resolution import resolve_model


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8451)
    parser.add_argument("--name", default="mini")
    given = parser.parse_args()
    engine = EngineArgs(
        model_name_or_path=str(resolve_model(given.model).location),
        served_model_name=given.name,
        engine="torch",
        device="cpu",
        batch_size=64,
        bettertransformer=False,
        model_warmup=False,
        compile=False,
    )
    server = create_server(engine_args_list=[engine], url_prefix="/v1")
    uvicorn.run(server, host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
