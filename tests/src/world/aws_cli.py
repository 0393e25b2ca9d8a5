# The AWS CLI, imported once: its import takes most of a call's time. Each call runs in a fork of this process, with the arguments,
# the environment, the folder and the standard streams of the client that asks for it.
import json
import os
import signal
import socket
import sys
import traceback

from awscli import clidriver

# Creating a driver imports all customizations. Calls create their own, because a driver reads the environment.
clidriver.create_clidriver()
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + ".new")
listener.listen(64)
# The socket is there once it listens.
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def run(connection):
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as request:
        arguments, environment, folder = json.load(request)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # The import has set where the CLI's models are.
    environment = {"AWS_DATA_PATH": os.environ["AWS_DATA_PATH"]} | environment
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["aws", *arguments]
    return clidriver.main()


while True:
    connection, _ = listener.accept()
    if os.fork():
        connection.close()
        continue
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 255
    try:
        status = run(connection)
    except SystemExit as end:
        status = end.code or 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        connection.sendall(bytes([status]))
        os._exit(status)
