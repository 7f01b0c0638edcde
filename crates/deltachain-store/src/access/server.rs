//! Stores on servers: buckets of all kinds, and web servers, which can only be read.
#![cfg_attr(
    not(all(feature = "s3", feature = "gs", feature = "az", feature = "http")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        unused_mut,
        reason = "each kind of store uses a part"
    )
)]

use std::ffi::OsStr;
use std::fs;
use std::sync::Arc;

use deltachain::{Error, Result, without_secrets};
#[cfg(feature = "s3")]
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
#[cfg(feature = "az")]
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
#[cfg(feature = "http")]
use object_store::client::ClientConfigKey;
#[cfg(feature = "gs")]
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
#[cfg(feature = "http")]
use object_store::http::HttpBuilder;
use object_store::{Certificate, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

#[cfg(feature = "az")]
use crate::access::connection_string;
use crate::access::http::Connector;
use crate::access::opened::{OpenStore, Renewal};
use crate::access::options::StoreOptions;
#[cfg(feature = "s3")]
use crate::access::provider::Provider;
use crate::access::refusal::told;
use crate::access::services::{self, Limited, Service};
use crate::access::settings::{self, ENVIRONMENT};
use crate::access::sources;
#[cfg(feature = "s3")]
use crate::access::sources::METADATA_ENDPOINT;

/// Settings with which S3 asks for credentials elsewhere than in a profile.
const S3_CREDENTIALS: [&str; 6] = [
    "access_key_id",
    "web_identity_token_file",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
    "metadata_endpoint",
    "skip_signature",
];

pub(crate) fn open(url: &Url, options: &StoreOptions) -> Result<OpenStore> {
    let usage = |error: object_store::Error| Error::usage(error.to_string());
    let (scheme, prefix) =
        ObjectStoreScheme::parse(url).map_err(|error| Error::usage(error.to_string()))?;
    let mut settings = all_settings(options)?;
    #[cfg(feature = "az")]
    if scheme == ObjectStoreScheme::MicrosoftAzure {
        settings = connection_string::expand(&settings)?;
    }
    allow_plain(url, &mut settings);
    let takes_credentials = scheme == ObjectStoreScheme::AmazonS3;
    if takes_credentials && options.credentials.is_none() {
        check_profile(&settings)?;
    }
    if !takes_credentials && options.credentials.is_some() {
        return Err(Error::usage(
            "only S3 takes credentials of the caller's own; give settings",
        ));
    }
    let connector = Connector::new(options, authorities(&settings)?);
    let date = Arc::clone(&connector.date);
    let mut renewal: Option<Renewal> = None;
    let words;
    // All four are built alike, by builders that have no trait in common.
    macro_rules! configured {
        ($builder:expr, $url:expr, $key:ty, $known:expr, $own:expr) => {{
            let own: &[&str] = &$own;
            let mut builder = $builder
                .with_url($url)
                // Time limits are for progress, and retries are made here, where all kinds of
                // stores have them alike.
                .with_client_options(connector.client_options())
                .with_retry(RetryConfig {
                    max_retries: 0,
                    ..RetryConfig::default()
                });
            $known.check(&options.settings, |key| {
                own.contains(&key) || key.parse::<$key>().is_ok()
            })?;
            for (key, value) in &settings {
                // A variable of the environment may be for another kind of store, or for another
                // program.
                if let Ok(known) = key.parse() {
                    settings::check_value(key, value)?;
                    builder = builder.with_config(known, value);
                }
            }
            builder
        }};
    }
    // A store is built twice if a service gives its credentials: a first one is made for its
    // provider, whose requests have limits of their own.
    macro_rules! built {
        ($builder:expr, $service:expr) => {{
            let mut builder = $builder;
            if let Some(service) = $service {
                service.check()?;
                let asking =
                    connector.for_credentials(service.purpose(), service.token_file().cloned());
                let last_failure = Arc::clone(&asking.last_failure);
                let first = builder.clone().with_http_connector(asking).build();
                let first = first.map_err(|error| unusable(&error, &service))?;
                let limited = Limited {
                    inner: Arc::clone(first.credentials()),
                    service,
                    limit: services::time_limit(&settings)?,
                    store: without_secrets(url.as_str()),
                    last_failure,
                };
                builder = builder.with_credentials(Arc::new(limited));
            }
            let store = builder.with_http_connector(connector).build();
            Arc::new(store.map_err(usage)?)
        }};
    }
    let objects: Arc<dyn ObjectStore> = match scheme {
        #[cfg(feature = "s3")]
        ObjectStoreScheme::AmazonS3 => {
            words = settings::S3.words;
            let mut builder = AmazonS3Builder::new();
            if let Some(source) = options.credentials.clone() {
                let own = Provider::new(source);
                renewal = Some(own.renewal());
                builder = builder.with_credentials(Arc::new(own) as _);
            }
            let builder = configured!(
                builder,
                url.as_str(),
                AmazonS3ConfigKey,
                settings::S3,
                [services::TIMEOUT]
            );
            let service = if renewal.is_some() {
                None
            } else {
                sources::service_of_s3(&settings)?
            };
            built!(builder, service)
        }
        #[cfg(feature = "gs")]
        ObjectStoreScheme::GoogleCloudStorage => {
            words = settings::GOOGLE.words;
            let builder = configured!(
                GoogleCloudStorageBuilder::new(),
                url.as_str(),
                GoogleConfigKey,
                settings::GOOGLE,
                [services::TIMEOUT]
            );
            built!(builder, sources::service_of_google(&settings))
        }
        #[cfg(feature = "az")]
        ObjectStoreScheme::MicrosoftAzure => {
            words = settings::AZURE.words;
            let builder = configured!(
                MicrosoftAzureBuilder::new(),
                url.as_str(),
                AzureConfigKey,
                settings::AZURE,
                [services::TIMEOUT, "connection_string"]
            );
            built!(builder, sources::service_of_azure(&settings, url)?)
        }
        #[cfg(feature = "http")]
        ObjectStoreScheme::Http => {
            words = settings::WEB.words;
            let builder = configured!(
                HttpBuilder::new(),
                &url[..url::Position::BeforePath],
                ClientConfigKey,
                settings::WEB,
                []
            );
            let store = builder.with_http_connector(connector).build();
            Arc::new(store.map_err(usage)?)
        }
        _ => {
            return Err(Error::usage(format!(
                "unknown kind of store: {}://",
                url.scheme()
            )));
        }
    };
    let can_list = scheme != ObjectStoreScheme::Http;
    Ok(OpenStore {
        can_list,
        is_watched: true,
        words,
        date,
        renewal,
        ..OpenStore::new(objects, prefix)
    })
}

/// The error of a store that cannot be built, with the file that its credentials come from.
fn unusable(error: &object_store::Error, service: &Service) -> Error {
    let text = without_secrets(&told(error));
    match &service.file {
        Some(file) => Error::usage(format!("{}={}: {text}", file.name, file.path)),
        None => Error::usage(text),
    }
}

/// Settings from the environment, and after them the settings of the options; the later ones win.
///
/// # Errors
/// USAGE if one of these names an environment variable that is missing.
fn all_settings(options: &StoreOptions) -> Result<Vec<(String, String)>> {
    let environment = std::env::vars_os().filter_map(|(key, value)| {
        let key = key
            .into_string()
            .ok()
            .filter(|key| ENVIRONMENT.iter().any(|start| key.starts_with(start)))?;
        Some((key.to_ascii_lowercase(), value.into_string().ok()?))
    });
    // An empty variable is not set: so a secret looks that a pipeline lacks.
    let mut settings: Vec<(String, String)> =
        environment.filter(|(_, value)| !value.is_empty()).collect();
    for (key, value) in settings::resolve(&options.settings)? {
        let key = key.to_ascii_lowercase();
        if value.is_empty() {
            settings.retain(|(other, _)| *other != key);
        } else {
            settings.push((key, value));
        }
    }
    #[cfg(feature = "s3")]
    if let Some((_, endpoint)) = settings.iter().rfind(|(key, _)| key == METADATA_ENDPOINT) {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        settings.insert(0, ("metadata_endpoint".to_owned(), endpoint));
    }
    Ok(settings)
}

/// Allows servers without encryption to a user who names one.
fn allow_plain(url: &Url, settings: &mut Vec<(String, String)>) {
    let is_plain = |(key, value): &(String, String)| {
        let is_address = key.contains("endpoint") || key.ends_with("base_url");
        is_address && value.starts_with("http://")
    };
    if url.scheme() == "http" || settings.iter().any(is_plain) {
        settings.insert(0, ("allow_http".to_owned(), "true".to_owned()));
    }
}

/// The certificates of the user's own authorities, which count beside those of the machine.
///
/// # Errors
/// USAGE if a variable names a file that has none.
fn authorities(settings: &[(String, String)]) -> Result<Vec<u8>> {
    let named = settings
        .iter()
        .rfind(|(key, value)| key == "aws_ca_bundle" && !value.is_empty());
    let read = |name: &str, path: &OsStr| {
        let failed = |error| {
            Error::usage(format!("{name} names a file that cannot be read: {error}")).in_file(path)
        };
        fs::read(path).map_err(failed)
    };
    // It is read by a library that is silent about a file that is missing.
    if let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        read("SSL_CERT_FILE", &path)?;
    }
    named.map_or(Ok(Vec::new()), |(_, path)| {
        let pem = read("AWS_CA_BUNDLE", path.as_ref())?;
        match Certificate::from_pem_bundle(&pem) {
            Ok(certificates) if !certificates.is_empty() => Ok(pem),
            _ => Err(
                Error::usage("AWS_CA_BUNDLE names a file without certificates in PEM")
                    .in_file(path),
            ),
        }
    })
}

/// Profiles are not read: better to say so than to ask for credentials where there are none.
///
/// # Errors
/// USAGE if there is nothing but a profile.
fn check_profile(settings: &[(String, String)]) -> Result<()> {
    let find = |wanted: &str| {
        let found = settings
            .iter()
            .rfind(|(key, value)| key.trim_start_matches("aws_") == wanted && !value.is_empty());
        found.map(|(_, value)| value)
    };
    match find("profile") {
        Some(profile) if S3_CREDENTIALS.iter().all(|key| find(key).is_none()) => {
            Err(Error::usage(format!(
                "AWS_PROFILE is {profile}, but profiles (single sign-on among them) are not read: set AWS_ACCESS_KEY_ID \
             and so on, as `aws configure export-credentials --profile {profile} --format env` prints them, or unset \
             AWS_PROFILE"
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(settings: &[(&str, &str)]) -> Result<()> {
        let settings: Vec<_> = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        check_profile(&settings)
    }

    #[test]
    fn a_profile_alone_is_refused() {
        let error = checked(&[("aws_profile", "sso-dev"), ("aws_region", "x")]).unwrap_err();
        assert!(
            error
                .message()
                .contains("export-credentials --profile sso-dev"),
            "{error:?}"
        );
        checked(&[]).unwrap();
        checked(&[("aws_profile", "")]).unwrap();
        for key in [
            "aws_access_key_id",
            "access_key_id",
            "aws_web_identity_token_file",
            "skip_signature",
        ] {
            checked(&[("aws_profile", "dev"), (key, "something")]).unwrap();
        }
    }
}
