//! Rejects unknown settings and impossible values when a store is opened. Otherwise its first
//! request would fail without saying why.
#![cfg_attr(
    not(all(feature = "s3", feature = "gs", feature = "az", feature = "http")),
    allow(unused_imports, reason = "each kind of store uses a part")
)]

use std::env::{self, VarError};

use deltachain::{Error, Result, without_secrets};
use url::Url;

use crate::access::refusal::{PLAIN, StoreWords};

/// The settings that a kind of store knows.
pub(crate) struct KnownSettings {
    /// The name of this kind of store, for people.
    pub(crate) kind: &'static str,
    /// The usual settings. Others of the `object_store` crate are taken too.
    pub(crate) usual: &'static str,
    /// Words of this kind of store, for people.
    pub(crate) words: &'static StoreWords,
    /// Names that fsspec and similar programs have for a setting, and the name here.
    pub(crate) others: &'static [(&'static str, &'static str)],
}

#[cfg(feature = "s3")]
pub(crate) const S3: KnownSettings = KnownSettings {
    kind: "S3",
    usual: "region, endpoint, access_key_id, secret_access_key, session_token, skip_signature, \
            virtual_hosted_style_request, allow_http, request_payer, server_side_encryption, \
            sse_kms_key_id, checksum_algorithm, role_arn, web_identity_token_file, \
            credentials_timeout, user_agent, proxy_url, proxy_ca_certificate, \
            allow_invalid_certificates",
    words: &StoreWords {
        credentials: Some(
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN if they are \
            temporary",
        ),
        no_credentials: (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --store access_key_id=env:NAME \
            and secret_access_key=env:NAME; for a public bucket give --store skip_signature=true",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give Store(credentials=); for a \
            public bucket storage_options={'skip_signature': 'true'}",
        ),
        region: "set AWS_REGION to the bucket's region (the answer may name it), or \
            AWS_ENDPOINT_URL to its address",
        bucket: "check the URL and AWS_ENDPOINT_URL, or create the bucket: deltachain creates none",
        certificate: "check the name in the URL; AWS_CA_BUNDLE or SSL_CERT_FILE names a file \
            with your own authority's certificate",
    },
    others: &[
        ("key", "access_key_id"),
        ("username", "access_key_id"),
        ("secret", "secret_access_key"),
        ("password", "secret_access_key"),
        ("client_kwargs", "region and endpoint"),
        ("config_kwargs", "virtual_hosted_style_request"),
        (
            "s3_additional_kwargs",
            "server_side_encryption and sse_kms_key_id",
        ),
        ("anon", "skip_signature"),
        (
            "use_ssl",
            "allow_http, or an endpoint that begins with http://",
        ),
        ("requester_pays", "request_payer"),
        ("region_name", "region"),
        ("addressing_style", "virtual_hosted_style_request"),
        (
            "profile",
            "access_key_id, secret_access_key and session_token (profiles are not read)",
        ),
    ],
};

#[cfg(feature = "gs")]
pub(crate) const GOOGLE: KnownSettings = KnownSettings {
    kind: "Google Cloud Storage",
    usual: "service_account, service_account_key, application_credentials, bearer_token, base_url, \
            skip_signature, credentials_timeout, allow_http, user_agent, proxy_url, \
            proxy_ca_certificate, allow_invalid_certificates",
    words: &StoreWords {
        credentials: Some(
            "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS (paths of files)",
        ),
        no_credentials: (
            "set GOOGLE_APPLICATION_CREDENTIALS to the path of a file with credentials; for a \
            public bucket give --store skip_signature=true",
            "set GOOGLE_APPLICATION_CREDENTIALS to the path of a file with credentials; for a \
            public bucket storage_options={'skip_signature': 'true'}",
        ),
        region: "check the name of the bucket, and GOOGLE_BASE_URL if it is set",
        bucket: "check the URL, and GOOGLE_BASE_URL if it is set, or create the bucket: deltachain \
                 creates none",
        certificate: PLAIN.certificate,
    },
    others: &[
        (
            "token",
            "service_account (a path), service_account_key, bearer_token or skip_signature",
        ),
        ("anon", "skip_signature"),
        ("endpoint", "base_url"),
        ("endpoint_url", "base_url"),
        ("project", "nothing: it is not needed"),
    ],
};

#[cfg(feature = "az")]
pub(crate) const AZURE: KnownSettings = KnownSettings {
    kind: "Azure",
    usual: "connection_string, account_name, account_key, sas_token, bearer_token, client_id, \
            client_secret, tenant_id, endpoint, skip_signature, use_emulator, use_azure_cli, \
            credentials_timeout, allow_http, user_agent, proxy_url, proxy_ca_certificate, \
            allow_invalid_certificates",
    words: &StoreWords {
        credentials: Some(
            "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with \
            AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID",
        ),
        no_credentials: (
            "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or \
            AZURE_STORAGE_CONNECTION_STRING; for a public container give --store \
            skip_signature=true",
            "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or \
            AZURE_STORAGE_CONNECTION_STRING; for a public container \
            storage_options={'skip_signature': 'true'}",
        ),
        region: "check the name of the account, and AZURE_STORAGE_ENDPOINT if it is set",
        bucket: "check the container in the URL and the name of the account, or create the \
                 container: deltachain creates none",
        certificate: PLAIN.certificate,
    },
    others: &[
        ("credential", "account_key, sas_token or bearer_token"),
        ("anon", "skip_signature"),
        ("account_host", "endpoint"),
        ("account_url", "endpoint"),
        ("endpoint_url", "endpoint"),
    ],
};

#[cfg(feature = "http")]
pub(crate) const WEB: KnownSettings = KnownSettings {
    kind: "web server",
    usual: "allow_http, user_agent, proxy_url, proxy_ca_certificate, allow_invalid_certificates, \
            http1_only, http2_only",
    words: &PLAIN,
    others: &[
        ("client_kwargs", "user_agent, proxy_url and so on"),
        ("headers", "nothing: none can be set"),
    ],
};

/// Environment variables that begin with one of these are settings of a store.
pub(crate) const ENVIRONMENT: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// Settings that have Azure's account, key and address in one.
pub(crate) const CONNECTION_STRINGS: [&str; 2] =
    ["azure_storage_connection_string", "connection_string"];

/// Prefix of a value that names an environment variable.
const FROM_ENVIRONMENT: &str = "env:";

/// The settings, with the values of the environment variables that they name. So two stores can
/// have different credentials, and the process list shows none of them.
///
/// # Errors
/// USAGE, with the name of the variable, if it is missing or empty. Values are not shown.
pub(crate) fn resolve(settings: &[(String, String)]) -> Result<Vec<(String, String)>> {
    let mut resolved = Vec::new();
    for (key, value) in settings {
        let value = match value.strip_prefix(FROM_ENVIRONMENT) {
            Some(variable) => read_variable(key, variable)?,
            None => value.clone(),
        };
        resolved.push((key.clone(), value));
    }
    Ok(resolved)
}

fn read_variable(key: &str, variable: &str) -> Result<String> {
    let refused = |what: &str| {
        let text = format!("the setting {key:?} is env:{variable}, and {what}");
        Error::usage(text)
    };
    if variable.is_empty() || variable.contains(['=', '\0']) {
        return Err(refused("that names no variable: write env:NAME"));
    }
    match env::var(variable) {
        Ok(value) if value.is_empty() => Err(refused("this variable is empty")),
        Ok(value) => Ok(value),
        Err(VarError::NotPresent) => Err(refused("this variable is not set")),
        Err(VarError::NotUnicode(_)) => Err(refused("its value is not UTF-8")),
    }
}

/// Settings that go into the head of a request, by the end of their names.
const IN_HEADS: [&str; 9] = [
    "access_key_id",
    "secret_access_key",
    "session_token",
    "region",
    "account_name",
    "account_key",
    "sas_token",
    "bearer_token",
    "user_agent",
];

/// Settings that are addresses, by the end of their names.
const ADDRESSES: [&str; 5] = [
    "endpoint",
    "endpoint_url",
    "endpoint_url_s3",
    "base_url",
    "proxy_url",
];

/// The name of a setting, for people: that of the variable, if it can come from one.
pub(crate) fn name_of(key: &str) -> String {
    let variable = key.to_ascii_uppercase();
    if ENVIRONMENT.iter().any(|start| variable.starts_with(start)) {
        variable
    } else {
        format!("the setting {key:?}")
    }
}

/// Checks the value of a setting that the kind of store knows: a request with it would fail in ways
/// that tell nothing.
///
/// # Errors
/// USAGE, with the name of the setting.
pub(crate) fn check_value(key: &str, value: &str) -> Result<()> {
    let name = name_of(key);
    // An empty value counts as unset, and `use_fabric_endpoint` is a switch.
    let is_address = !value.is_empty()
        && !key.contains("use_")
        && ADDRESSES.iter().any(|end| key.ends_with(end));
    // A document of Google's, in JSON.
    let is_document = key.ends_with("service_account_key");
    if is_address || !is_document && IN_HEADS.iter().any(|end| key.ends_with(end)) {
        check_text(&name, value)?;
    }
    let has_host = |url: Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    if is_address && !Url::parse(value).is_ok_and(has_host) {
        let rest = without_secrets(value.split_once("://").map_or(value, |(_, rest)| rest));
        return Err(Error::usage(format!(
            "{name} is not an address: write http://{rest} or https://{rest}"
        )));
    }
    Ok(())
}

/// Checks a value that goes into the head of a request. It may be secret, and is not shown.
///
/// # Errors
/// USAGE, with this name.
pub(crate) fn check_text(name: &str, value: &str) -> Result<()> {
    if value.ends_with(['\n', '\r']) {
        return Err(Error::usage(format!(
            "{name} ends with a newline: remove it (files often end with one)"
        )));
    }
    match value.chars().find(|c| !matches!(c, ' '..='~')) {
        Some(c) => Err(Error::usage(format!(
            "{name} has the character {c:?}, which is not allowed in it"
        ))),
        None => Ok(()),
    }
}

impl KnownSettings {
    /// Checks that all settings are known.
    ///
    /// # Errors
    /// USAGE, with the names of the settings that are not known; values may be secret.
    pub(crate) fn check(
        &self,
        settings: &[(String, String)],
        is_known: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let unknown = settings
            .iter()
            .map(|(key, _)| key)
            .filter(|key| !is_known(&key.to_ascii_lowercase()));
        let unknown: Vec<String> = unknown.map(|key| self.unknown(key)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let Self { kind, usual, .. } = self;
        Err(Error::usage(format!(
            "unknown settings of the store: {}; {kind} has {usual}",
            unknown.join(", ")
        )))
    }

    /// An unknown setting, with the name that it has here, if it has one.
    fn unknown(&self, key: &str) -> String {
        let own = self
            .others
            .iter()
            .find(|(other, _)| key.eq_ignore_ascii_case(other));
        own.map_or_else(
            || format!("{key:?}"),
            |(_, own)| format!("{key:?} (here: {own})"),
        )
    }
}

#[cfg(all(test, feature = "s3", feature = "gs", feature = "az", feature = "http"))]
mod tests {
    use std::str::FromStr;

    use object_store::aws::AmazonS3ConfigKey;
    use object_store::azure::AzureConfigKey;
    use object_store::client::ClientConfigKey;
    use object_store::gcp::GoogleConfigKey;

    use super::*;

    fn check<K: FromStr>(known: &KnownSettings) {
        let is_known = |key: &str| key.parse::<K>().is_ok();
        for key in known.usual.split(", ") {
            let is_own = matches!(key, "credentials_timeout" | "connection_string");
            assert!(is_known(key) || is_own, "{key}");
        }
        for (other, own) in known.others {
            assert!(!is_known(other), "{other}");
            let given = [((*other).to_owned(), "hidden".to_owned())];
            let error = known.check(&given, is_known).unwrap_err();
            let text = error.message();
            assert!(
                text.contains(&format!("{other:?} (here: {own})")) && text.contains(known.usual),
                "{text}"
            );
            assert!(!text.contains("hidden"), "{text}");
        }
    }

    #[test]
    fn values_that_cannot_be_are_refused_by_name() {
        let text = |key, value| {
            check_value(key, value)
                .err()
                .map(|error| error.message().to_owned())
        };
        for (key, value, told) in [
            (
                "aws_endpoint_url",
                "minio:9000",
                "AWS_ENDPOINT_URL is not an address: write http://minio:9000 or",
            ),
            (
                "endpoint",
                "ftp://h",
                "the setting \"endpoint\" is not an address: write http://h",
            ),
            (
                "aws_endpoint_url_s3",
                "http://h\n",
                "AWS_ENDPOINT_URL_S3 ends with a newline",
            ),
            (
                "aws_access_key_id",
                "k\r\n",
                "AWS_ACCESS_KEY_ID ends with a newline",
            ),
            (
                "aws_secret_access_key",
                "hidden\n",
                "AWS_SECRET_ACCESS_KEY ends with a newline",
            ),
            (
                "session_token",
                "a\tb",
                "the setting \"session_token\" has the character '\\t'",
            ),
            ("aws_region", "é", "AWS_REGION has the character 'é'"),
            (
                "azure_storage_account_key",
                "\0",
                "AZURE_STORAGE_ACCOUNT_KEY has the character '\\0'",
            ),
            (
                "google_base_url",
                "storage",
                "GOOGLE_BASE_URL is not an address",
            ),
        ] {
            let found = text(key, value).unwrap_or_default();
            assert!(
                found.contains(told) && !found.contains("hidden"),
                "{key}: {found}"
            );
        }
        for (key, value) in [
            ("aws_endpoint_url", ""),
            ("aws_endpoint_url", "http://[::1]:9000/base"),
            ("azure_use_fabric_endpoint", "true"),
            ("google_service_account_key", "{\n}"),
            ("aws_web_identity_token_file", "/é"),
        ] {
            assert_eq!(text(key, value), None, "{key}");
        }
    }

    #[test]
    fn settings_of_others_are_named_with_our_names() {
        check::<AmazonS3ConfigKey>(&S3);
        check::<GoogleConfigKey>(&GOOGLE);
        check::<AzureConfigKey>(&AZURE);
        check::<ClientConfigKey>(&WEB);
    }
}
