"""The application: says what it was asked, as JSON."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Application(BaseHTTPRequestHandler):
    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        asked = {"method": self.command, "path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}}
        body = json.dumps(asked).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9000), Application).serve_forever()
