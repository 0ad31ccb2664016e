"""A server that counts tokens in its own way."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def counting_server(per_word: int, overhead: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            words = sum(len(message["content"].split()) for message in asked["messages"])
            usage = {"prompt_tokens": per_word * words + overhead, "completion_tokens": 1}
            events = [
                {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]},
                {"choices": [], "usage": usage},
            ]
            body = "".join(f"data: {json.dumps(each)}\n\n" for each in events).encode() + b"data: [DONE]\n\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
