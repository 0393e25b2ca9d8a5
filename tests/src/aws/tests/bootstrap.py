#!/usr/bin/env python3
"""A function that does what its messages say, and notes every event in events/<function>.jsonl below its working directory."""
import json, os, sys, time, urllib.request

api = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime"
name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
if os.path.exists(f"broken-{name}"):
    sys.exit("this function does not start")
os.makedirs("events", exist_ok=True)


def note(**what):
    with open(f"events/{name}.jsonl", "a") as file:
        file.write(json.dumps(what) + "\n")


note(environment=dict(os.environ))
while True:
    with urllib.request.urlopen(f"{api}/invocation/next") as answer:
        request = answer.headers["Lambda-Runtime-Aws-Request-Id"]
        event = json.load(answer)
    note(event=event)
    failures = []
    records = event.get("Records", [])
    for record in records:
        text = record["body"]
        note(begin=text)
        if text.startswith("slow"):
            time.sleep(0.3)
        note(end=text)
        if text.startswith("crash"):
            os._exit(3)
        if text.startswith("fail"):
            failures.append({"itemIdentifier": record["messageId"]})
    if event.get("rawPath") == "/hang":
        time.sleep(30)
    reply = {"batchItemFailures": failures} if records else {"statusCode": 202, "headers": {"x-from": name}, "body": "done"}
    urllib.request.urlopen(f"{api}/invocation/{request}/response", data=json.dumps(reply).encode()).close()
