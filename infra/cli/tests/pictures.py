#!/usr/bin/env python3
"""Writes the pictures of `kubectl driftless ui` into docs/pictures, and a recording of the commands in a terminal of 80 columns.

make pictures

The Stacks are those of a one-machine world with real runs: some are up to date, one runs, one fails, one has drifted, one waits for
an approval. Fails if the page, or the browser that shows it, requests anything but its own server, or if it needs more than two
seconds to list 10,000 Stacks of an API server of their own.
"""

import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

PROJECT = pathlib.Path(__file__).resolve().parents[3]
TOOLS = PROJECT / "target/tools"
PICTURES = PROJECT / "docs/pictures"
CHROMIUM = os.environ.get("CHROMIUM", "chromium-headless-shell")
MANY, SECONDS = 10_000, 2
# Name, address within the page, width, largest height, and whether it is dark.
VIEWS = [
    ("fleet", "#/", 1100, 700, False),
    ("running", "#/team/web", 1100, 1500, False),
    ("failed", "#/team/network", 1100, 1500, True),
    ("drifted", "#/team/old", 1100, 1250, False),
    ("graph", "#/team/search", 1100, 1250, True),
    ("plan", "#/team/payments", 1100, 1500, False),
    ("phone", "#/team/web", 360, 1500, False),
]
RECORDED = ["get", "explain api", "tree web", "logs web", "diff payments", "approve payments --dry-run"]
# A view is complete when each part of it, and the log of its run, are there.
COMPLETE = """(() => {
  const parts = [...document.querySelectorAll("main section")], log = document.querySelector("main pre.log");
  return parts.length ? parts.slice(0, 5).every((part) => part.children.length) && (!log || log.textContent !== "")
    : document.querySelectorAll("main ol.fleet li").length > 0;
})()"""


def until(what, attempt, seconds=300):
    """Repeats `attempt` until it returns something."""
    deadline = time.monotonic() + seconds
    while not (found := attempt()):
        if time.monotonic() > deadline:
            sys.exit(f"after {seconds} s: {what}")
        time.sleep(0.05)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Parts:
    """Processes that end with the script, each with a log."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, name, *arguments, **options):
        log = open(self.folder / f"{pathlib.Path(name).name}.log", "ab")
        process = subprocess.Popen([name, *map(str, arguments)], **{"stdout": log, "stderr": log, "text": True, **options})
        self.running.append(process)
        return process

    def stop(self):
        for process in reversed(self.running):
            process.terminate()
            process.wait()


class Browser:
    """Headless Chromium, which answers commands of its DevTools protocol on pipes."""

    def __init__(self, parts, folder):
        read, self.commands = os.pipe()
        answers, write = os.pipe()
        self.net_log, self.last = folder / "network.json", 0
        self.process = parts.start(
            "sh", "-c", f'exec "$@" 3<&{read} 4>&{write}', "sh", CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars",
            "--remote-debugging-pipe", "--disable-component-update", f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={self.net_log}", pass_fds=(read, write))
        os.close(read), os.close(write)
        self.answers = os.fdopen(answers, "rb")
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **parameters):
        self.last += 1
        command = {"id": self.last, "method": method, "params": parameters, **({"sessionId": self.session} if self.session else {})}
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while True:
            text = b""
            while not text.endswith(b"\0"):
                if not (byte := self.answers.read(1)):
                    sys.exit(f"{CHROMIUM} has ended")
                text += byte
            answer = json.loads(text[:-1])
            if answer.get("id") == self.last:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address, width, height, dark):
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.size(width, height)
        self.call("Page.navigate", url=address)

    def picture(self, name, width, height):
        end = self.value("document.querySelector('main').getBoundingClientRect().bottom + scrollY + 16 | 0")
        self.size(width, min(height, end))
        self.value("scrollTo(0, 0)")
        shot = self.call("Page.captureScreenshot", format="png")["data"]
        (PICTURES / f"{name}.png").write_bytes(base64.b64decode(shot))
        print(f"docs/pictures/{name}.png")

    def close(self):
        """The servers that the browser has asked, for the page or for itself."""
        self.session = None
        self.call("Browser.close")
        self.process.wait()
        return set(re.findall(r'"url":"((?:https?|wss?)://[^/"]+)', self.net_log.read_text()))


class Cluster:
    def __init__(self, kubeconfig):
        self.environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def kubectl(self, *arguments, text=None, **options):
        command = [TOOLS / "kubectl", *arguments]
        options = {"check": True, "stdout": subprocess.PIPE, **options}
        return subprocess.run(command, input=text, env=self.environment, text=True, **options)

    def apply(self, *objects):
        objects = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(objects))

    def until(self, name, type_, status, reason=""):
        """Waits until a condition of a Stack has that status and, if given, that reason."""
        def found():
            stack = json.loads(self.kubectl("get", "stack", name, "--output", "json").stdout)
            conditions = stack.get("status", {}).get("conditions", [])
            return any((c["type"], c["status"]) == (type_, status) and c["reason"].startswith(reason) for c in conditions)
        until(f"Stack {name} is not {reason or type_}", found)


def start_world(parts, folder):
    """A world with an empty namespace `team` that allows runs. Returns it, and the variables of its `env`."""
    binary = next((PROJECT / "target").glob("*/debug/world"))
    world = parts.start(binary, "world-pictures", stdout=subprocess.PIPE)
    ready = next((line for line in world.stdout if line.startswith("world: ready; source ")), None)
    if not ready:
        sys.exit((folder / "world.log").read_text())
    threading.Thread(target=world.stdout.read, daemon=True).start()
    env = dict(re.findall(r"^export (\w+)=['\"]?(.*?)['\"]?$", pathlib.Path(ready.split()[-1]).read_text(), re.M))
    kubeconfig = folder / "kubeconfig"
    shutil.copy(env["KUBECONFIG"], kubeconfig)
    cluster = Cluster(kubeconfig)
    cluster.kubectl("create", "namespace", "team")
    cluster.kubectl("config", "set-context", "--current", "--namespace", "team")
    bindings = (PROJECT / "infra/kubernetes/runs/runs.yaml").read_text().replace("namespace: default", "namespace: team")
    cluster.kubectl("apply", "--server-side", "-f", "-", text=bindings)
    cluster.kubectl("create", "secret", "generic", "pulumi", "--from-literal=passphrase=of-the-pictures")
    pathlib.Path(env["WORLD_STATE"].removeprefix("file://"), "team").mkdir(parents=True)
    return cluster, env


class Team:
    """The Stacks of the pictures, and the files that are their resources."""

    def __init__(self, cluster, env, files):
        self.cluster, self.env, self.files = cluster, env, files

    def program(self, name, **resources):
        """Applies a Program. A resource is the content of its file, or the file's properties."""
        def resource(key, given):
            properties = given if isinstance(given, dict) else {"content": given}
            return {"type": "world:index:Object", "properties": {"path": str(self.files / f"{name}-{key}"), **properties}}
        self.cluster.apply({
            "apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": {"name": name, "namespace": "team"},
            "program": {"resources": {key: resource(key, given) for key, given in resources.items()}},
        })

    def stack(self, name, requires=(), **annotations):
        """Applies a Stack of the Program of that name."""
        annotations = {f"driftless.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.cluster.apply({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"name": name, "namespace": "team", "annotations": annotations},
            "spec": {
                "stack": "prod", "backend": f"{self.env['WORLD_STATE']}/team", "programRef": {"name": name},
                "prerequisites": [{"name": other} for other in requires],
                "envRefs": {"PULUMI_CONFIG_PASSPHRASE": {"type": "Secret", "secret": {"name": "pulumi", "key": "passphrase"}}},
            },
        })

    def bring_into_states(self):
        """Returns when the Stacks are in the states that the pictures show."""
        until_ = self.cluster.until
        fails, holds = self.files / "quota-is-exceeded", self.files / "instance-starts"
        self.program("shop", site="open", orders="queue")
        self.program("database", instance="small")
        self.program("search", index="of the database")
        self.program("network", vpc="10.4.0.0/16")
        self.program("web", assets="owner: ops", server="cpu: 256")
        self.program("old", bucket="private", topic="alerts")
        self.program("payments", db="version: 16", invoices="owner: team")
        self.program("api", server="cpu: 256")
        for name, requires in {"shop": [], "database": ["shop"], "search": ["database", "shop"], "network": [], "web": []}.items():
            self.stack(name, requires)
        self.stack("old", drift_schedule="1m")
        self.stack("payments")
        for name in ["shop", "database", "search", "network", "web", "payments"]:
            until_(name, "Ready", "True")
        until_("old", "Drifted", "False")

        (self.files / "old-bucket").write_text("public")
        (self.files / "old-topic").unlink()
        fails.touch(), holds.touch()
        self.program("network", vpc="10.4.0.0/16", gateway="of the vpc",
                     subnet={"content": "10.4.1.0/24", "failWhenExists": str(fails)})
        self.stack("payments", approval="required")
        self.program("payments", db={"content": "version: 17", "path": str(self.files / "payments-db-17")},
                     invoices="owner: finance", refunds="queue")
        until_("network", "Reconciling", "True", "RetryingAfterFailure")
        self.stack("api", ["network"])
        until_("payments", "Reconciling", "True", "ApprovalRequired")
        until_("api", "Reconciling", "True", "PrerequisiteNotSatisfied")
        until_("old", "Drifted", "True")
        self.cluster.kubectl("annotate", "stack", "old", "driftless.dev/drift-suspend=true")
        self.program("web", assets="owner: web", headers="cache: 1h", server={
            "content": "cpu: 512", "path": str(self.files / "web-server-512"), "waitWhileExists": str(holds)})
        until("the run of web does not change its last resource", lambda: "waiting" in self.cluster.kubectl(
            "driftless", "logs", "web", check=False, stderr=subprocess.DEVNULL).stdout)
        return holds


def many_stacks(parts, folder, etcd):
    """The kubeconfig of an API server with 10,000 Stacks. In the world, each of them would be reconciled."""
    key, port = folder / "key", free_port()
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (folder / "tokens").write_text("local,admin,admin,system:masters\n")
    parts.start(TOOLS / "kube-apiserver", f"--etcd-servers={etcd}", "--etcd-prefix=/many", "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder / 'certificates'}",
                f"--token-auth-file={folder / 'tokens'}", f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--authorization-mode=RBAC",
                "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24",
                "--endpoint-reconciler-type=none")
    kubeconfig = folder / "kubeconfig-many"
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "local",
        "clusters": [{"name": "local", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "local", "user": {"token": "local"}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local", "namespace": "team"}}],
    }))
    cluster = Cluster(kubeconfig)
    until("the API server does not answer", lambda: not cluster.kubectl(
        "get", "--raw", "/readyz", check=False, stderr=subprocess.DEVNULL).returncode)
    cluster.kubectl("apply", "--server-side", "-f", PROJECT / "infra/kubernetes/crds")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    cluster.kubectl("create", "namespace", "team")
    path = "/apis/pulumi.com/v1/namespaces/team/stacks"

    def create(numbers):
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=ssl._create_unverified_context())
        for number in numbers:
            stack = {
                "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": f"stack-{number}"},
                "spec": {"stack": "prod", "programRef": {"name": "app"}},
            }
            status = {
                "observedGeneration": 1,
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "ProcessingCompleted",
                    "message": "the stack has been processed and is up to date", "lastTransitionTime": "2026-11-26T10:00:00Z",
                }],
                "lastUpdate": {
                    "name": f"stack-{number}-1", "generation": 1, "state": "succeeded", "type": "up", "lastSuccessfulCommit": "1",
                },
            }
            for method, address in [("POST", path), ("PUT", f"{path}/stack-{number}/status")]:
                headers = {"Authorization": "Bearer local", "Content-Type": "application/json"}
                connection.request(method, address, json.dumps(stack), headers)
                response = connection.getresponse()
                answer = json.load(response)
                if response.status >= 300:
                    sys.exit(f"{method} {address}: {answer}")
                stack = {**answer, "status": status}

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(create, [range(first, MANY, 8) for first in range(8)]))
    return kubeconfig


def main():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shop-", ignore_cleanup_errors=True) as folder:
        folder = pathlib.Path(folder)
        parts, holds = Parts(folder), None
        binary = next((PROJECT / "target").glob("*/debug/kubectl-driftless"))
        # As a user: kubectl finds its plugin in PATH.
        os.environ["PATH"] = os.pathsep.join(map(str, [binary.parent, TOOLS, os.environ["PATH"]]))
        try:
            cluster, env = start_world(parts, folder)
            holds = Team(cluster, env, folder).bring_into_states()
            os.environ["KUBECONFIG"] = cluster.environment["KUBECONFIG"]
            commands = [f"kubectl driftless {command}" for command in RECORDED]
            subprocess.run([PROJECT / "tests/tools/record", PICTURES / "cli.svg", "--screens", "80", *commands], check=True)
            print("docs/pictures/cli.svg")
            browser = Browser(parts, folder)
            served = []

            def serve():
                url = parts.start(binary, "ui", stdout=subprocess.PIPE).stdout.readline().strip()
                served.append(url.split("/?")[0])
                return url

            url = serve()
            for name, address, width, height, dark in VIEWS:
                browser.open(url + address, width, height, dark)
                until(f"{name} is not complete", lambda: browser.value(COMPLETE))
                browser.picture(name, width, height)
            holds.unlink()
            os.environ["KUBECONFIG"] = str(many_stacks(parts, folder, env["WORLD_ETCD"]))
            url, started = serve(), time.monotonic()
            browser.open(url, 1100, 700, False)
            listed = f"document.body.innerText.includes('{MANY} Stacks')"
            until(f"the page does not list {MANY} Stacks", lambda: browser.value(listed))
            print(f"{MANY} Stacks are listed after {time.monotonic() - started:.1f} s")
            if time.monotonic() - started > SECONDS:
                sys.exit(f"the page needs more than {SECONDS} s")
            elsewhere = browser.close() - set(served)
            if elsewhere:
                sys.exit(f"the page requests {elsewhere}")
            print(f"no request but to {' and '.join(served)}")
        finally:
            if holds:
                holds.unlink(missing_ok=True)
            parts.stop()


main()
