import json
import os
import socket
import sys

server = socket.socket(socket.AF_UNIX)
server.connect(SOCKET)
socket.send_fds(server, [b" "], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
server.shutdown(socket.SHUT_WR)
sys.exit((server.recv(1) or b"\xff")[0])
