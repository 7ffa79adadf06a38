"""A hub on loopback that serves directories as models, and turns clients away while it is told to."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Models by their id. `busy(path)` says whether a request is answered with 429."""

    def __init__(self, models: dict[str, Path], busy=lambda path: False) -> None:
        self.models, self.busy = models, busy
        self.turned_away = 0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub._answer(self, body=False)

            def do_GET(self) -> None:
                hub._answer(self, body=True)

            def log_message(self, *_) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        status, data, headers = self._find(request.path)
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data)), "X-Repo-Commit": COMMIT}.items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            request.wfile.write(data)

    def _find(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        if self.busy(path):
            self.turned_away += 1
            return 429, b"", {"Retry-After": "0"}
        for name, folder in self.models.items():
            for revision in ("main", COMMIT):
                prefix = f"/{name}/resolve/{revision}/"
                file = folder / path.removeprefix(prefix)
                if path.startswith(prefix) and file.is_file():
                    data = file.read_bytes()
                    return 200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        return 404, b"", {"X-Error-Code": "EntryNotFound"}
