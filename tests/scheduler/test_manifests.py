# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests of packaging/: their schemas, references and commands."""

import shutil
import signal
import ssl
import subprocess
import sys
from contextlib import closing, suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment, free_port
from serving import LIMIT, wait_for

yaml = pytest.importorskip("yaml", reason="THE MANIFESTS ARE NOT VALIDATED: pip install PyYAML")

FOLDER = Path(__file__).resolve().parents[2] / "packaging" / "kubernetes"
BIN = Path(sys.executable).parent


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def find(kind: str, name: str, file: str = "serve.yaml") -> Any:
    (found,) = (d for d in documents(file) if (d["kind"], d["metadata"]["name"]) == (kind, name))
    return found["spec"]


def container(name: str) -> Any:
    (found,) = find("Deployment", name)["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_manifest_has_the_schema_of_kubernetes(file: str) -> None:
    reason = "THE MANIFESTS ARE NOT VALIDATED: pip install kubernetes-validate"
    validate = pytest.importorskip("kubernetes_validate", reason=reason).validate
    for each in documents(file):
        if each["kind"] == "JobSet":  # an extension: its parts are Jobs
            each = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ranks"}} | {
                "spec": each["spec"]["replicatedJobs"][0]["template"]["spec"]
            }
        validate(each, "1.30", strict=True)
        with pytest.raises(Exception, match="wrong"):  # the check finds an unknown field
            validate({**each, "wrong": 1}, "1.30", strict=True)


def ports(policy: Any) -> set[int]:
    rows = [port for rule in policy["ingress"] for port in rule["ports"]]
    return {
        port for row in rows for port in range(row["port"], row.get("endPort", row["port"]) + 1)
    }


def in_range(text: str) -> set[int]:
    first, last = map(int, text.split("-"))
    return set(range(first, last + 1))


def test_policies_allow_the_ports_in_use() -> None:
    for name, others in (("ddl-serve", {8470, 29400}), ("ddl-agent", set[int]())):
        (variable,) = container(name)["env"]
        assert variable["name"] == "DDL_PORTS"
        assert ports(find("NetworkPolicy", name)) == in_range(variable["value"]) | others
        labels = find("Deployment", name)["template"]["metadata"]["labels"]
        assert find("NetworkPolicy", name)["podSelector"]["matchLabels"] == labels
    for service in ("ddl", "ddl-serve"):
        assert find("Service", service)["selector"] == {"app": "ddl-serve"}
    (rank,) = find("JobSet", "train", "jobset.yaml")["replicatedJobs"][0]["template"]["spec"][
        "template"
    ]["spec"]["containers"]
    given = {each["name"]: each.get("value", "") for each in rank["env"]}
    rendezvous = given["DDL_RENDEZVOUS"].rpartition(":")[2]
    used = in_range(given["DDL_PORTS"]) | {int(rendezvous), int(given["MASTER_PORT"])}
    assert ports(find("NetworkPolicy", "train", "jobset.yaml")) == used


@pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl, for a certificate")
def test_commands_of_the_manifests_start_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "tls").mkdir()
    (tmp_path / "agents" / "token").write_text("a token of this test\n")
    made = tmp_path / "tls"
    order = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    order += ["-subj", "/CN=localhost", "-out", f"{made}/tls.crt", "-keyout", f"{made}/tls.key"]
    subprocess.run(order, check=True, capture_output=True)
    agents, https, log = free_port(), free_port(), tmp_path / "log"
    here = {"/etc/ddl": f"{tmp_path}", "/var/lib/ddl": f"{tmp_path}", "ddl-serve:": "127.0.0.1:"}
    here |= {"29400": str(agents), "8470": str(https)}

    def command(name: str) -> list[str]:
        found = container(name)
        words = [*found["command"], *found["args"]]
        for old, new in here.items():
            words = [word.replace(old, new) for word in words]
        return [str(BIN / words[0]), *words[1:]]

    def probe(name: str) -> tuple[int, str] | None:
        probed = container("ddl-serve")[f"{name}Probe"]["httpGet"]
        assert probed["scheme"] == "HTTPS" and probed["port"] == "https"
        context = ssl._create_unverified_context()  # like the kubelet
        connection = HTTPSConnection("127.0.0.1", https, context=context, timeout=60)
        with closing(connection), suppress(OSError):
            connection.request("GET", probed["path"], headers={"host": f"10.1.2.3:{https}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        return None

    processes = []
    with log.open("ab") as file:
        for name in ("ddl-serve", "ddl-agent"):
            (variable,) = container(name)["env"]
            environment = clean_environment({variable["name"]: variable["value"]})
            processes.append(
                subprocess.Popen(command(name), env=environment, stdout=file, stderr=file)
            )
    try:
        for name in ("startup", "liveness", "readiness"):
            wait_for(lambda name=name: probe(name) == (200, "ok\n"), name)
        wait_for(lambda: "has connected with 2 slots" in log.read_text(), "the agent")
    finally:
        for process in reversed(processes):  # with SIGTERM, like the kubelet
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0, log.read_text()
