//! TLS to Redis: rustls with ring, checked against the authorities of the system or one's own.
//!
//! Files are read anew for every connection, so that certificates are renewed without a restart.

use super::dial::Access;
use crate::store::StoreError;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Speaks TLS over `stream` with the server called `host`.
///
/// # Errors
/// Why it cannot, and which setting mends it. No name of a host is told.
pub(super) async fn over(
    stream: TcpStream,
    host: &str,
    access: &Access,
) -> Result<TlsStream<TcpStream>, StoreError> {
    let (config, name) = prepared(host, access).await.map_err(StoreError::Unfit)?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|e| told(&e))
}

async fn prepared(host: &str, access: &Access) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let of = access.clone();
    // The system's authorities are some hundred files.
    let config = tokio::task::spawn_blocking(move || config(&of)).await.map_err(|e| e.to_string())??;
    let name = access.server_name.as_deref().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name)
        .map_err(|_| "the name of the server is none that a certificate can have: see redis.server_name")?;
    Ok((config, name))
}

fn config(access: &Access) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("TLS cannot be set up: {e}"))?
        .with_root_certificates(roots(access)?);
    let config = match (&access.cert_file, &access.key_file) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unread("redis.key_file", key, &e))?;
            builder
                .with_client_auth_cert(certificates("redis.cert_file", cert)?, key)
                .map_err(|e| format!("redis.cert_file and redis.key_file cannot be used: {e}"))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err("redis.cert_file and redis.key_file are set together or not at all".into()),
    };
    Ok(Arc::new(config))
}

fn roots(access: &Access) -> Result<RootCertStore, String> {
    static OF_THE_SYSTEM: OnceLock<RootCertStore> = OnceLock::new();
    let Some(file) = &access.ca_file else {
        let roots = OF_THE_SYSTEM.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        });
        if roots.is_empty() {
            return Err("this system has no certificate authorities: set redis.ca_file".into());
        }
        return Ok(roots.clone());
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("redis.ca_file", file)? {
        roots.add(certificate).map_err(|e| format!("redis.ca_file holds no certificate authority: {e}"))?;
    }
    Ok(roots)
}

fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).map_err(|e| unread(setting, file, &e))?.collect();
    let found = found.map_err(|e| unread(setting, file, &e))?;
    if found.is_empty() {
        return Err(format!("{setting}: {}: holds no certificate in PEM form", file.display()));
    }
    Ok(found)
}

fn unread(setting: &str, file: &Path, error: &rustls::pki_types::pem::Error) -> String {
    format!("{setting}: {}: cannot be read: {error}", file.display())
}

/// What the other end did not like. It may come with the first reply, when for us TLS is set up.
pub(super) fn refusal(error: &std::io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref::<Error>()? {
        Error::AlertReceived(alert) => Some(format!(
            "Redis refused TLS ({alert:?}): does it want other certificates by redis.cert_file and redis.key_file?"
        )),
        _ => None,
    }
}

/// What a failed handshake means. What TLS itself does not like is for people to change; a connection that broke is not.
fn told(error: &std::io::Error) -> StoreError {
    let of = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
    let message = match of {
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "the certificate of Redis is for another name: set redis.server_name to one it is for".into(),
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            "the certificate of Redis is from an authority that is not trusted: set redis.ca_file".into()
        }
        Some(Error::InvalidMessage(_)) => {
            "what answers does not speak TLS: use an address without TLS (redis://), or the TLS port".into()
        }
        _ if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "Redis closed the connection instead of speaking TLS: is it the TLS port?".into()
        }
        _ => refusal(error).unwrap_or_else(|| format!("TLS failed: {error}")),
    };
    match of {
        Some(_) => StoreError::Unfit(message),
        None => StoreError::Unavailable { message, sent: false },
    }
}
