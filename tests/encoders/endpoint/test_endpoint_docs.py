"""The example of another service, run as it is written."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np

import stickytoken
import tiny
from word_bag import WordBag

PAGE = Path(__file__).resolve().parents[3] / "docs" / "endpoints.md"
URL, TOKENIZER = "https://api.cohere.com/v2/embed", "Cohere/multilingual-22-12"


class Service(BaseHTTPRequestHandler):
    """Answers as the service of the example does, which takes 96 texts."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer a key"
        assert len(asked["texts"]) <= 96
        found = np.asarray(WordBag().encode(asked["texts"])).tolist()
        content = json.dumps({"embeddings": dict.fromkeys(asked["embedding_types"], found)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def test_the_example_of_another_service_runs(bert_folder, monkeypatch):
    section = PAGE.read_text("utf-8").partition("## Any other service")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    assert URL in code
    assert TOKENIZER in code
    monkeypatch.setenv("COHERE_API_KEY", "a key")
    monkeypatch.setattr(stickytoken, "detect", lambda encoder, sample: encoder)
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = code.replace(URL, f"http://127.0.0.1:{server.server_port}").replace(
            TOKENIZER, str(bert_folder)
        )
        names = {}
        exec(compile(here, "the example", "exec"), names)
        texts = tiny.sentences(200)
        np.testing.assert_allclose(names["run"].encode(texts), WordBag().encode(texts), rtol=1e-6)
        server.shutdown()
