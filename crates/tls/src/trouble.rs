//! What to do about a connection that TLS refused, of either side.

use std::error::Error;

use rustls::{AlertDescription, CertificateError, Error as Tls, InvalidMessage};

/// What to do, if the chain of causes of `error` holds an error of TLS that people can do something
/// about.
pub fn advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = tls(error).and_then(of_tls) {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// An error of TLS travels inside one of I/O, which does not tell it as its source.
fn tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Tls> {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.downcast_ref().or_else(|| inner.and_then(|inner| inner.downcast_ref()))
}

const fn of_tls(error: &Tls) -> Option<&'static str> {
    use AlertDescription as Alert;
    Some(match error {
        Tls::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            "the other side's certificate is of an authority that ca.crt does not hold: use the \
             folders that one `orchestrator certs init` made"
        }
        Tls::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "the other side's certificate has expired: renew it there",
        Tls::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            "the coordinator's certificate does not name this host: call it by a name that it \
             holds, or make it anew with `--host`"
        }
        Tls::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => "what answers there shows a certificate that is no coordinator's",
        Tls::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the coordinator does not believe the authority of this certificate: use the folders \
             that one `orchestrator certs init` made"
        }
        Tls::AlertReceived(Alert::CertificateExpired) => {
            "this certificate has expired: renew it (`orchestrator certs issue`)"
        }
        Tls::AlertReceived(Alert::CertificateRequired) => {
            "the coordinator takes nobody without a certificate: give one with --tls"
        }
        Tls::AlertReceived(Alert::BadCertificate | Alert::UnsupportedCertificate) => {
            "the coordinator does not take this certificate; its log says why"
        }
        Tls::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "what answers there speaks no TLS: if the coordinator was started with \
             --insecure-plaintext, write http://"
        }
        _ => return None,
    })
}
