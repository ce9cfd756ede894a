"""A hub of models on this machine, as much of it as a commit of two files needs."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from embedding_server import QuietHandler


class Hub:
    """One repository."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.commits: list[list[dict]] = []
        self.refusing = 200
        self.url = ""

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@contextmanager
def serving(repository: str, files: dict[str, bytes]) -> Iterator[Hub]:
    hub = Hub(files)

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _json(self, status: int, document: dict) -> None:
            self._answer(status, json.dumps(document).encode(), Content_Type="application/json")

        def do_GET(self) -> None:
            if self.path.startswith(f"/api/models/{repository}"):
                siblings = [{"rfilename": name} for name in hub.files]
                self._json(200, {"id": repository, "sha": hub.sha, "siblings": siblings})
                return
            name = self.path.partition(f"/{repository}/resolve/{hub.sha}/")[2]
            content = hub.files[name]
            self._answer(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=hub.sha)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if "/preupload/" in self.path:
                asked = json.loads(body)["files"]
                answer = [
                    {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in asked
                ]
                self._json(200, {"files": answer})
                return
            if self.path == "/api/validate-yaml":
                self._json(200, {})
                return
            lines = [json.loads(line) for line in body.splitlines()]
            if hub.refusing != 200:
                self._json(hub.refusing, {"error": "no"})
                return
            hub.commits.append(lines)
            for line in lines:
                if line["key"] == "file":
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._json(200, {"commitUrl": f"{hub.url}/{repository}/commit/{hub.sha}", "commitOid": hub.sha})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
