"""A server that has one answer, for measurements of what stands before it."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answering(reply):
    """A server that gives these bytes of JSON to every POST; it runs until it is shut down."""

    class OneAnswer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), OneAnswer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
