# moto's server, made fast enough for a world that is busy. It lists the folder of its own source for every call, while other calls wait,
# and reads the clock for every message of a queue by way of a calendar. A thread may keep the others waiting for 5 ms each time.
# Threads that change the list of a queue at the same time undo each other: a message that was deleted is there again, one that was sent is
# not. They take turns, so that nothing may wait in a call of SQS. It hides a message that is older than its queue keeps it, once for every
# visibility timeout, instead of forgetting it; and it counts the whole queue to know how long that is, for every message that it gives.
# It deduplicates among the messages that are in the queue, of whatever group. And it writes a log line per call.
import functools
import logging
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
DEDUPLICATION_MILLISECONDS = 300_000


def in_turn(owner, name):
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*words, **named):
        with turn:
            return method(*words, **named)

    setattr(owner, name, call)


receive_message = models.SQSBackend.receive_message


def receive_kept(backend, queue_name, *words, **named):
    queue = backend.get_queue(queue_name)
    oldest = (time.time() - queue.message_retention_period) * 1000
    expired = {message for message in queue._messages if message.sent_timestamp < oldest}
    queue._messages = [message for message in queue._messages if message not in expired]
    queue._pending_messages -= expired
    return receive_message(backend, queue_name, *words, **named)


def add_once(queue, message):
    now = message.sent_timestamp
    if queue.fifo_queue:
        is_by_group = queue.attributes.get("DeduplicationScope") == "messageGroup"
        key = (message.group_id if is_by_group else None, message.deduplication_id)
        recent = {key: sent for key, sent in getattr(queue, "recent", {}).items() if now - sent < DEDUPLICATION_MILLISECONDS}
        queue.recent = {key: now} | recent
        if key in recent:
            return
    with queue._messages_lock:
        queue._messages.append(message)
        queue._messages_lock.notify_all()


models.SQSBackend.receive_message = receive_kept
# `receive_kept` has forgotten the old ones.
models.SQSBackend.is_message_valid_based_on_retention_period = lambda *_: True
models.Queue.add_message = add_once
for name in ["add_message", "delete_message"]:
    in_turn(models.Queue, name)
for name in ["receive_message", "change_message_visibility", "purge_queue"]:
    in_turn(models.SQSBackend, name)
sys.setswitchinterval(0.0005)
logging.getLogger("werkzeug").setLevel(logging.ERROR)
main(sys.argv[1:])
