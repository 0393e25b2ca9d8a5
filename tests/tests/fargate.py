"""Fargate's own addresses in a network namespace of this process: ECS on 169.254.170.2, and S3 of a Region by name and TLS. Runs the
program of the arguments there, and prints what it asked and how it ended."""

import http.server, json, os, ssl, subprocess, sys, threading

certificate, key, hosts, *program = sys.argv[1:]
asked = []


def serve(address, answer, context=None):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(f"{self.headers['host']} {self.path} {self.headers['authorization'] or ''}")
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(address, Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ecs(path):
    task = {"TaskARN": "arn:aws:ecs:eu-central-2:123456789012:task/driftless/a", "Family": "run", "Revision": "1"}
    keys = {"AccessKeyId": "ASIAKEY", "SecretAccessKey": "s", "Token": "t", "Expiration": "2100-01-01T00:00:00Z"}
    found = {"/v4/x/task": task, "/v2/credentials/x": keys}.get(path)
    return (200, json.dumps(found).encode()) if found else (404, b"{}")


def s3(path):
    return 403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>"


for command in ["ip link set lo up", "ip address add 169.254.170.2/32 dev lo", f"mount --bind {hosts} /etc/hosts"]:
    subprocess.run(command.split(), check=True)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
serve(("169.254.170.2", 80), ecs)
serve(("127.0.0.1", 443), s3, context)
environment = {
    "AWS_REGION": "eu-central-2",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/x",
    "ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/x",
    "DRIFTLESS_BUCKET": "bucket",
    "DRIFTLESS_ROLE_ID": "AROAROLE",
    "SSL_CERT_FILE": os.environ["SSL_CERT_FILE"],
}
ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
print(json.dumps({"asked": asked, "code": ended.returncode, "said": ended.stderr}))
