#!/usr/bin/env python3
"""Writes the pictures of `kubectl driftless ui` into docs/pictures, with an API server of its own and headless Chromium, and a recording
of the commands in a terminal of 80 columns.

make pictures

The objects are those of the tests, with times before now. Fails if the page requests anything but its own server.
"""

import datetime
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

PROJECT = pathlib.Path(__file__).resolve().parents[3]
TOOLS = PROJECT / "target/tools"
OBJECTS = PROJECT / "infra/cli/tests/objects"
PICTURES = PROJECT / "docs/pictures"
CLOCK = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.timezone.utc)
CHROMIUM = os.environ.get("CHROMIUM", "chromium-headless-shell")
# Name, address within the page, width, height, and whether it is dark.
VIEWS = [
    ("fleet", "#/", 1100, 560, False),
    ("running", "#/team/web", 1100, 1500, False),
    ("failed", "#/team/network", 1100, 1250, True),
    ("drifted", "#/team/old", 1100, 800, False),
    ("graph", "#/team/search", 1100, 800, True),
    ("plan", "#/team/payments", 1100, 900, False),
    ("phone", "#/team/web", 360, 1500, False),
]
RECORDED = ["get", "explain api", "tree web", "logs web", "diff payments", "approve payments --dry-run"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def objects():
    """The objects of the tests, moved in time, with the generation that the API server gives to a new object."""
    text = "\n---\n".join((OBJECTS / name).read_text() for name in ["stacks.yaml", "updates.yaml", "previews.yaml", "pictures.yaml"])
    shift = datetime.datetime.now(datetime.timezone.utc) - CLOCK
    moved = lambda match: (datetime.datetime.fromisoformat(match[0].replace("Z", "+00:00")) + shift).strftime("%Y-%m-%dT%H:%M:%S.000000Z" if match[1] else "%Y-%m-%dT%H:%M:%SZ")
    text = re.sub(r"2026-11-2\dT\d\d:\d\d:\d\d(\.0+)?Z", moved, text)
    text = re.sub(r"([gG]eneration): \d+", r"\1: 1", text)
    # The revision of a Program is its generation.
    return re.sub(r'([cC]ommit): "2"', r'\1: "1"', text)


def main():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="driftless-pictures-") as folder:
        folder = pathlib.Path(folder)
        running = []

        def start(name, *arguments, **options):
            log = open(folder / f"{pathlib.Path(name).name}.log", "wb")
            process = subprocess.Popen([name, *map(str, arguments)], stdout=options.get("stdout", log), stderr=log, text=True)
            running.append(process)
            return process

        try:
            peer, client, port = free_port(), free_port(), free_port()
            etcd = f"http://127.0.0.1:{client}"
            peers = f"http://127.0.0.1:{peer}"
            start(TOOLS / "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
                  "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
                  "--unsafe-no-fsync")
            key = folder / "key"
            subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
            (folder / "tokens").write_text("local,admin,admin,system:masters\n")
            start(TOOLS / "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                  f"--secure-port={port}", f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={folder / 'tokens'}",
                  f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
                  "--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--authorization-mode=RBAC",
                  "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none")
            kubeconfig = folder / "kubeconfig"
            kubeconfig.write_text(json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "local",
                "clusters": [{"name": "local", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}],
                "users": [{"name": "local", "user": {"token": "local"}}],
                "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local", "namespace": "team"}}],
            }))
            environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

            def kubectl(*arguments, text=None, **options):
                command = [TOOLS / "kubectl", *arguments]
                return subprocess.run(command, input=text, env=environment, text=True, stdout=subprocess.PIPE, **{"check": True, **options})

            deadline = time.monotonic() + 60
            while kubectl("get", "--raw", "/readyz", check=False, stderr=subprocess.DEVNULL).returncode:
                if time.monotonic() > deadline:
                    sys.exit(f"the API server does not answer; see {folder}/kube-apiserver.log")
                time.sleep(0.5)
            kubectl("apply", "--server-side", "-f", PROJECT / "infra/kubernetes/crds", "-f", (TOOLS / "source-controller-crds").resolve())
            kubectl("wait", "--for=condition=Established", "crd", "--all")
            kubectl("create", "namespace", "team")
            text = objects()
            documents = text.split("\n---\n")
            by_kind = lambda *kinds: "\n---\n".join(d for d in documents if re.search(r"^kind: (\w+)$", d, re.M)[1] in kinds)
            kubectl("create", "-f", "-", text=by_kind("Stack", "ConfigMap", "GitRepository", "Program"))
            uid_of = lambda kind, name: kubectl("get", kind, name, "--namespace", "team", "--output", "jsonpath={.metadata.uid}").stdout
            updates = by_kind("Update").replace("uid: u-web }", f"uid: {uid_of('stack', 'web')} }}")
            kubectl("create", "-f", "-", text=updates)
            with_status = by_kind("Stack", "GitRepository", "Program") + "\n---\n" + updates
            kubectl("apply", "--server-side", "--force-conflicts", "--subresource=status", "-f", "-", text=with_status)
            kubectl("create", "-f", "-", text=by_kind("Event").replace("UID-OF-network-4", uid_of("update", "network-4")))

            os.environ["KUBECONFIG"] = str(kubeconfig)
            binary = next((PROJECT / "target").glob("*/debug/kubectl-driftless"))
            # As a user: kubectl finds its plugin in PATH.
            os.environ["PATH"] = os.pathsep.join(map(str, [binary.parent, TOOLS, os.environ["PATH"]]))
            commands = [f"kubectl driftless {command}" for command in RECORDED]
            subprocess.run([PROJECT / "tests/tools/record", PICTURES / "cli.svg", "--screens", "80", *commands], check=True)
            print("docs/pictures/cli.svg")
            page = start(binary, "ui", stdout=subprocess.PIPE)
            url = page.stdout.readline().strip()
            for name, address, width, height, dark in VIEWS:
                net_log = folder / f"{name}.json"
                subprocess.run([
                    CHROMIUM, "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}", "--virtual-time-budget=2500",
                    f"--log-net-log={net_log}", f"--user-data-dir={folder / 'profile'}", "--disable-component-update",
                    f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--screenshot={PICTURES / name}.png", url + address,
                ], check=True, capture_output=True, timeout=60)
                asked = set(re.findall(r'"url":"(https?://[^/"]+)', net_log.read_text()))
                elsewhere = asked - {url.split("/?")[0]}
                if elsewhere:
                    sys.exit(f"{name}: the page requests {elsewhere}")
                print(f"docs/pictures/{name}.png")
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()


main()
