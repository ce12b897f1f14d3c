"""The cluster's certificate authority, and the kubeconfigs of its users."""

import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hack.kube.layout import API_PORT, API_SERVICE, DOMAIN, Layout, Node

SERVER: Final = "server"
"""The certificate of all that listens on 127.0.0.1."""

ADMIN: Final = "admin"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"
PROXY: Final = "kube-proxy"
_USERS: Final = (
    (ADMIN, "admin", "system:masters"),
    (CONTROLLER_MANAGER, "system:kube-controller-manager", ""),
    (SCHEDULER, "system:kube-scheduler", ""),
    (PROXY, "system:kube-proxy", ""),
)
"""File, user, group: the API server binds the roles of the last three by itself."""

_VALID: Final = dt.timedelta(days=365)


@dataclass(frozen=True)
class _Authority:
    """A certificate authority, and where its files go."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def issue(self, file: str, user: str, group: str = "", addresses: Sequence[str] = ()) -> None:
        """A key with a certificate: `user` of `group`, who may listen on `addresses`."""
        key = _key(self.folder / f"{file}.key")
        alternatives = [_alternative(address) for address in addresses]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = _builder(_name(user, group), self.certificate.subject, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        _write(self.folder / f"{file}.crt", builder.sign(self.key, hashes.SHA256()))


def make(layout: Layout) -> None:
    """Everything that the control plane needs."""
    for folder in (layout.pki, layout.kubeconfigs):
        folder.mkdir(mode=0o700)
    key = _key(layout.pki / "ca.key")
    name = _name("localkube-authority", "")
    builder = _builder(name, name, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    _write(layout.pki / "ca.crt", builder.sign(key, hashes.SHA256()))
    _key(layout.pki / "service-accounts.key")
    authority = _authority(layout)
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    names += [f"kubernetes.default.svc.{DOMAIN}", "127.0.0.1", API_SERVICE]
    names += [layout.node(1).address]  # where pods reach the API server
    authority.issue(SERVER, SERVER, addresses=names)
    for file, user, group in _USERS:
        authority.issue(file, user, group)
        _write_kubeconfig(layout, file)


def make_for(node: Node) -> None:
    """What the node's kubelet needs."""
    _authority(node.cluster).issue(
        node.name,
        f"system:node:{node.name}",
        "system:nodes",
        addresses=[node.name, node.address],
    )
    _write_kubeconfig(node.cluster, node.name)


def _authority(layout: Layout) -> _Authority:
    key = serialization.load_pem_private_key((layout.pki / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate((layout.pki / "ca.crt").read_bytes())
    return _Authority(layout.pki, key, certificate)


def _name(user: str, group: str) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks may be set back
        .not_valid_after(now + _VALID)
    )


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A new key, in a file too."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return key


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_kubeconfig(layout: Layout, user: str) -> None:
    cluster = {
        "server": f"https://127.0.0.1:{API_PORT}",
        "certificate-authority": str(layout.pki / "ca.crt"),
    }
    credentials = {
        "client-certificate": str(layout.pki / f"{user}.crt"),
        "client-key": str(layout.pki / f"{user}.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "localkube", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "localkube", "context": {"cluster": "localkube", "user": user}}],
        "current-context": "localkube",
    }
    layout.kubeconfig(user).write_text(json.dumps(config, indent=1))
