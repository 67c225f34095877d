"""Explains to users why a server refuses the API key, or why TLS fails, and what to do."""

from __future__ import annotations

import ssl

#: OpenSSL's codes (X509_V_ERR_...) for a certificate of another host name or address, and for one that is not valid today.
_OTHER_NAME = (62, 64)
_OTHER_TIME = (9, 10)

#: OpenSSL's reasons if a server does not use TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def of_key(variable: str | None, *, sent: bool) -> str:
    """Returns what to do about an answer with the status 401 or 403.

    `variable` is the environment variable of the key, `sent` whether the server got any credentials.
    """
    if variable:
        return f"check that the environment variable {variable}, which `api_key_env` names, has a key of this server"
    if sent:
        return "check the key"
    return "no key was sent: `api_key_env` in a backend's YAML (under `judge`: `api_key`) names the environment variable that holds it"


def of_tls(error: ssl.SSLError, host: str, ca_file: str | None) -> str:
    """Explains a TLS failure and how to fix it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error.verify_code, error.verify_message.rstrip("."), host, ca_file)
    reason = error.reason or str(error)
    return (
        f"the server does not speak TLS ({reason}); check whether the URL should begin with http://"
        if reason in _NO_TLS
        else f"TLS failed: {reason}"
    )


def _of_certificate(code: int, message: str, host: str, ca_file: str | None) -> str:
    if code in _OTHER_NAME:
        return (
            f"the server's certificate is not for {host} ({message}); use a name from the certificate in the URL; a `ca_file` does not help"
        )
    if code in _OTHER_TIME:
        return f"the server's certificate is not valid today ({message}); the server needs a new one; a `ca_file` does not help"
    if ca_file:
        advice = f"`ca_file` {ca_file} does not contain its authority; use that one's PEM file"
        return f"the server's certificate is not trusted ({message}); {advice}"
    return f"the server's certificate is not trusted ({message}); set `ca_file` in the backend's YAML to the PEM file of its authority"


def lasts(error: ssl.SSLError) -> bool:
    """Returns whether a TLS error is permanent, such as a bad certificate. After others, such as a lost connection, a retry may help."""
    return isinstance(error, ssl.SSLCertVerificationError) or error.reason in _NO_TLS
