//! Where a server is, and who calls it.

use std::time::Duration;

use tonic::codegen::http::{HeaderValue, Uri};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::error::{Error, Result, refused};

/// How long a server with open calls may be silent before it is asked whether it is there, and may take to answer: who
/// watches one that vanished without a word would wait for ever.
const SILENCE: Duration = Duration::from_secs(30);

/// Returns the server of a target, and how to connect to it.
pub(crate) fn endpoint(target: &str, roots: Option<Vec<u8>>) -> Result<Endpoint> {
    let (scheme, authority) = target.split_once("://").unwrap_or(("grpc", target));
    let (http, named) = match scheme {
        "grpc" => ("http", false),
        "http" => ("http", true),
        "grpcs" => ("https", false),
        "https" => ("https", true),
        _ => return Err(refused("target", "must begin with grpc://, grpcs://, http:// or https://")),
    };
    let uri = format!("{http}://{authority}").parse().ok().filter(|uri| is_address(uri, named));
    // The target is not shown: it may hold a password.
    let endpoint = Endpoint::from(uri.ok_or_else(|| refused("target", "must be of the form grpc://HOST:PORT"))?)
        .http2_keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE);
    if roots.as_ref().is_some_and(|pem| !String::from_utf8_lossy(pem).contains("BEGIN CERTIFICATE")) {
        return Err(unusable_roots("must hold certificates in PEM"));
    }
    if http == "http" {
        return Ok(endpoint);
    }
    let tls = match roots {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    endpoint.tls_config(tls).map_err(|error| unusable_roots(&error.to_string()))
}

/// Whether a URI is no more than an address; `named` tells that its scheme has a port of its own.
fn is_address(uri: &Uri, named: bool) -> bool {
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    plain && matches!(uri.path(), "" | "/") && uri.query().is_none() && (named || uri.port_u16().is_some())
}

fn unusable_roots(why: &str) -> Error {
    refused("root_certificates", why)
}

/// Returns the header that carries a token.
pub(crate) fn authorization(token: &str) -> Result<HeaderValue> {
    let visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let header = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| visible);
    header.ok_or_else(|| refused("token", "must be visible ASCII characters without spaces"))
}
