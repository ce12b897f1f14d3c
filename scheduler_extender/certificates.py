"""Our certificate and the authority that it is trusted by, made and renewed. Time is passed in.

The authority outlives many certificates: kube-scheduler reads it from a file of its own at start.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_FOR: Final = timedelta(days=3650)
CERTIFICATE_FOR: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
_SKEW: Final = timedelta(hours=1)
"""Clocks differ: a certificate is valid from a little before it was made."""


class CertificateError(Exception):
    """What is stored cannot be used; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """In PEM. `authority_key` is None where somebody else makes our certificates."""

    authority: bytes
    authority_key: bytes | None
    chain: bytes
    key: bytes

    @property
    def ends(self) -> datetime:
        """When it is not valid any more."""
        return x509.load_pem_x509_certificate(self.chain).not_valid_after_utc


def new(names: Sequence[str], now: datetime) -> Certificate:
    """A new authority, and a certificate of it for these DNS names."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tandem-extender authority")
    authority = (
        _builder(name, name, key.public_key(), now, now + AUTHORITY_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _issue(authority, key, names, now)


def renewed(certificate: Certificate, names: Sequence[str], now: datetime) -> Certificate:
    """The same while it is good for long enough, else with a new certificate of its authority.

    Raises CertificateError where that cannot be.
    """
    if now < certificate.ends - RENEW_BEFORE:
        return certificate
    authority = x509.load_pem_x509_certificate(certificate.authority)
    if certificate.authority_key is None or authority.not_valid_after_utc <= certificate.ends:
        if now < certificate.ends:
            return certificate
        raise CertificateError(
            f"it ended on {certificate.ends:%Y-%m-%d} and cannot be renewed: delete the Secret, a "
            f"new authority is made then, and give kube-scheduler the new caData"
        )
    key = serialization.load_pem_private_key(certificate.authority_key, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return _issue(authority, key, names, now)


def stored(data: Mapping[str, str]) -> Certificate:
    """Read the data of a Secret. Raises CertificateError."""
    try:
        pem = {key: base64.b64decode(value, validate=True) for key, value in data.items()}
        certificate = Certificate(pem["ca.crt"], pem.get("ca.key"), pem["tls.crt"], pem["tls.key"])
        for one in (certificate.authority, certificate.chain):
            x509.load_pem_x509_certificate(one)
        if certificate.authority_key is not None:
            key = serialization.load_pem_private_key(certificate.authority_key, password=None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise CertificateError("ca.key: is no EC key")
    except KeyError as exc:
        raise CertificateError(f"{exc.args[0]} is missing") from exc
    except (ValueError, TypeError) as exc:
        raise CertificateError(f"cannot be read: {exc}") from exc
    return certificate


def to_store(certificate: Certificate) -> dict[str, str]:
    """The data of a Secret."""
    pem = {
        "ca.crt": certificate.authority,
        "ca.key": certificate.authority_key,
        "tls.crt": certificate.chain,
        "tls.key": certificate.key,
    }
    return {key: base64.b64encode(one).decode() for key, one in pem.items() if one is not None}


def _issue(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    now: datetime,
) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("tandem-extender")
    ends = min(now + CERTIFICATE_FOR, authority.not_valid_after_utc)
    certificate = (
        _builder(subject, authority.subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Certificate(
        authority=authority.public_bytes(serialization.Encoding.PEM),
        authority_key=_pem(authority_key),
        chain=certificate.public_bytes(serialization.Encoding.PEM),
        key=_pem(key),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(ends)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
