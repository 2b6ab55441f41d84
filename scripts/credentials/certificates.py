"""A certificate authority of one's own and a server certificate by it, for development."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 825
_STARTS_EARLIER = datetime.timedelta(hours=1)
"""Clocks of hosts differ."""


class Authority:
    """Signs server certificates; its key is in memory only and gone with it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("moonpool development CA")
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_ca=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def write_server(
        self, hosts: Sequence[str], cert: Path, key: Path, *, is_peer: bool = False
    ) -> None:
        """A certificate for these names and addresses, and its key readable by its owner only.

        `is_peer`: it may also be shown to a server, as those of one cluster do to one another.
        """
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if is_peer else []
        own = ec.generate_private_key(ec.SECP256R1())
        signed = (
            _builder(_name(hosts[0]), self._name, own.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_ca=False), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False
            )
            .add_extension(x509.ExtendedKeyUsage(usages), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
            .sign(self._key, hashes.SHA256())
        )
        cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key.touch(mode=0o600)
        key.write_bytes(
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _STARTS_EARLIER)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
