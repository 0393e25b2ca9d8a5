# moto's server, made fast enough for a world that is busy. It lists the folder of its own source for every call, while other calls wait,
# and reads the clock for every message of a queue by way of a calendar. A thread may keep the others waiting for 5 ms each time.
# Threads that change the list of a queue at the same time undo each other: a message that was deleted is there again, one that was sent is
# not. They take turns, so that nothing may wait in a call of SQS.
import functools
import os
import sys
import threading
import time

from moto import backends
from moto.server import main
from moto.sqs import models

# A test that has the world to itself purges what others left, more often than once a minute.
os.environ["MOTO_SQS_ENFORCE_STRICT_QUEUE_PURGE_BEHAVIOUR"] = "false"
modules = frozenset(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: modules
models.unix_time_millis = lambda: time.time() * 1000
turn = threading.RLock()


def in_turn(owner, name):
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*words, **named):
        with turn:
            return method(*words, **named)

    setattr(owner, name, call)


for name in ["add_message", "delete_message"]:
    in_turn(models.Queue, name)
for name in ["receive_message", "change_message_visibility", "purge_queue"]:
    in_turn(models.SQSBackend, name)
sys.setswitchinterval(0.0005)
main(sys.argv[1:])
