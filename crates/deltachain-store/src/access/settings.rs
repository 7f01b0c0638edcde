//! Settings that a kind of store does not know are refused: a misspelt one would be missed only when a request fails.

use deltachain::{Error, Result};

/// What a kind of store knows.
pub(crate) struct Known {
    /// What it is, for people.
    pub(crate) kind: &'static str,
    /// The usual settings. Others of the `object_store` crate are taken too.
    pub(crate) usual: &'static str,
    /// Names that fsspec and its kind have for the same thing, and what it is called here.
    pub(crate) others: &'static [(&'static str, &'static str)],
}

#[cfg(feature = "s3")]
pub(crate) const S3: Known = Known {
    kind: "S3",
    usual: "region, endpoint, access_key_id, secret_access_key, session_token, skip_signature, \
            virtual_hosted_style_request, allow_http, request_payer, server_side_encryption, sse_kms_key_id, \
            checksum_algorithm, role_arn, web_identity_token_file, user_agent, proxy_url, \
            proxy_ca_certificate, allow_invalid_certificates",
    others: &[
        ("key", "access_key_id"),
        ("username", "access_key_id"),
        ("secret", "secret_access_key"),
        ("password", "secret_access_key"),
        ("client_kwargs", "region and endpoint"),
        ("config_kwargs", "virtual_hosted_style_request"),
        ("s3_additional_kwargs", "server_side_encryption and sse_kms_key_id"),
        ("anon", "skip_signature"),
        ("use_ssl", "allow_http, or an endpoint that begins with http://"),
        ("requester_pays", "request_payer"),
        ("region_name", "region"),
        ("addressing_style", "virtual_hosted_style_request"),
        ("profile", "access_key_id, secret_access_key and session_token (profiles are not read)"),
    ],
};

#[cfg(feature = "gs")]
pub(crate) const GOOGLE: Known = Known {
    kind: "Google Cloud Storage",
    usual: "service_account, service_account_key, application_credentials, bearer_token, base_url, \
            skip_signature, allow_http, user_agent, proxy_url, proxy_ca_certificate, \
            allow_invalid_certificates",
    others: &[
        ("token", "service_account (a path), service_account_key, bearer_token or skip_signature"),
        ("anon", "skip_signature"),
        ("endpoint", "base_url"),
        ("endpoint_url", "base_url"),
        ("project", "nothing: it is not needed"),
    ],
};

#[cfg(feature = "az")]
pub(crate) const AZURE: Known = Known {
    kind: "Azure",
    usual: "account_name, account_key, sas_token, bearer_token, client_id, client_secret, tenant_id, \
            endpoint, skip_signature, use_emulator, use_azure_cli, allow_http, user_agent, proxy_url, \
            proxy_ca_certificate, allow_invalid_certificates",
    others: &[
        ("credential", "account_key, sas_token or bearer_token"),
        ("connection_string", "account_name and account_key"),
        ("anon", "skip_signature"),
        ("account_host", "endpoint"),
        ("account_url", "endpoint"),
        ("endpoint_url", "endpoint"),
    ],
};

#[cfg(feature = "http")]
pub(crate) const WEB: Known = Known {
    kind: "web server",
    usual: "allow_http, user_agent, proxy_url, proxy_ca_certificate, allow_invalid_certificates, http1_only, \
            http2_only",
    others: &[("client_kwargs", "user_agent, proxy_url and so on"), ("headers", "nothing: none can be set")],
};

impl Known {
    /// # Errors
    /// USAGE, with the names of the settings that are not known; values may be secret.
    pub(crate) fn check(&self, settings: &[(String, String)], is_known: impl Fn(&str) -> bool) -> Result<()> {
        let unknown = settings.iter().map(|(key, _)| key).filter(|key| !is_known(&key.to_ascii_lowercase()));
        let unknown: Vec<String> = unknown.map(|key| self.unknown(key)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let Self { kind, usual, .. } = self;
        Err(Error::usage(format!("unknown settings of the store: {}; {kind} has {usual}", unknown.join(", "))))
    }

    /// An unknown setting, with the name that it has here, if it has one.
    fn unknown(&self, key: &str) -> String {
        let own = self.others.iter().find(|(other, _)| key.eq_ignore_ascii_case(other));
        own.map_or_else(|| format!("{key:?}"), |(_, own)| format!("{key:?} (here: {own})"))
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

    fn check<K: FromStr>(known: &Known) {
        let is_known = |key: &str| key.parse::<K>().is_ok();
        known.usual.split(", ").for_each(|key| assert!(is_known(key), "{key}"));
        for (other, own) in known.others {
            assert!(!is_known(other), "{other}");
            let given = [((*other).to_owned(), "hidden".to_owned())];
            let error = known.check(&given, is_known).unwrap_err();
            let text = error.message();
            assert!(text.contains(&format!("{other:?} (here: {own})")) && text.contains(known.usual), "{text}");
            assert!(!text.contains("hidden"), "{text}");
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
